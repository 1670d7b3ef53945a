"""Separate program that imports a module and writes pydantic's JSON schemas of its functions' arguments.

    python -P function_schemas.py ROOT MODULE OUT NAME...

The file OUT receives a JSON list with a schema or an error message for each NAME. No function is called.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import PydanticUserError, TypeAdapter


def main(root: str, module: str, out: str, *names: str) -> None:
    """Import `module` from the folder `root`, and write the schemas of its functions `names` to the file `out`."""
    sys.path.insert(0, root)
    found = importlib.import_module(module)
    Path(out).write_text(json.dumps([_schema(getattr(found, name, None)) for name in names]), encoding="utf-8")


def _schema(function: Any) -> dict[str, Any] | str:
    if not callable(function):
        return "the imported module has no such function"
    try:
        return TypeAdapter[Any](function).json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        return str(error).splitlines()[0][:500]


if __name__ == "__main__":
    main(*sys.argv[1:])
