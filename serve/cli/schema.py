"""The command `agent-rft schema`."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer


def schema(
    file: Annotated[Literal["job", "operator", "nodes"], typer.Argument(help="what the schema is of")],
) -> None:
    """Print the JSON schema of a file that you write, for editors and other programs."""
    from serve.reference.schemas import schema_of

    typer.echo(json.dumps(schema_of(file), indent=2, ensure_ascii=False))
