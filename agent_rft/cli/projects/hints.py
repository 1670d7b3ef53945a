"""A program of its own: imports a module and writes the JSON schemas of its functions' arguments, as pydantic has them.

    python -P hints.py ROOT MODULE OUT NAME...

OUT gets a list with a schema for each name, or a text that says why it has none. No function is called.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import PydanticUserError, TypeAdapter


def main(root: str, module: str, out: str, *names: str) -> None:
    """Write the schemas of the functions with these names."""
    sys.path.insert(0, root)
    found = importlib.import_module(module)
    Path(out).write_text(json.dumps([_schema(getattr(found, name, None)) for name in names]), encoding="utf-8")


def _schema(function: Any) -> dict[str, Any] | str:
    if not callable(function):
        return "the module has no such function once it is imported"
    try:
        return TypeAdapter[Any](function).json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        return str(error).splitlines()[0][:500]


if __name__ == "__main__":
    main(*sys.argv[1:])
