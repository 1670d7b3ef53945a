"""Commands `agent-rft explain NAME` and `agent-rft schema`: explain a name, or print a file's JSON schema."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent_rft.cli.completion import explainable_names

if TYPE_CHECKING:
    from agent_rft.cli.reference.catalog import CatalogEntry

UNKNOWN_NAME = 2


def explain_command(
    name: Annotated[
        str,
        typer.Argument(
            help="name to explain: a problem code, setting, metric, event, alarm rule, discard reason, readiness "
            "reason or exit code. The end of a setting's path and the Prometheus name of a metric are enough",
            autocompletion=explainable_names,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """Explain a name from a message, job file, metric or event: its meaning and, for a problem, the fix."""
    from agent_rft.cli.reference.catalog import build_catalog, find_entries, similar_names
    from agent_rft.cli.reference.setting_list import list_settings

    entries = build_catalog(list_settings())
    found = find_entries(name, entries)
    settings = [entry for entry in found if entry.kind == "setting"]
    if not found:
        hint = ", ".join(similar_names(name, entries))
        typer.echo(f"unknown name {name!r}" + (f"; did you mean: {hint}?" if hint else ""), err=True)
        raise typer.Exit(UNKNOWN_NAME)
    if len(settings) > 1 and len(found) == len(settings):
        paths = "\n".join(f"  {entry.name} ({entry.facts['in']})" for entry in settings)
        typer.echo(f"{name!r} matches {len(settings)} settings; give a longer part of the path:\n{paths}", err=True)
        raise typer.Exit(UNKNOWN_NAME)
    if as_json:
        for entry in found:
            typer.echo(json.dumps(asdict(entry)))
    else:
        typer.echo("\n\n".join(map(_format_entry, found)))


def _format_entry(entry: CatalogEntry) -> str:
    lines = [f"{entry.name}: {entry.kind}", *(f"  {paragraph}" for paragraph in entry.meaning.split("\n\n"))]
    if entry.fix:
        lines.append(f"  -> {entry.fix}")
    for title, value in entry.facts.items():
        lines += (
            [f"  {title}: {value}"] if isinstance(value, str) else [f"  {title}:", *(f"    {item}" for item in value)]
        )
    return "\n".join(lines)


def schema_command(
    file: Annotated[Literal["job", "operator", "nodes"], typer.Argument(help="kind of file")],
) -> None:
    """Print the JSON schema of a job, operator or nodes file, for editors and other programs."""
    from agent_rft.cli.reference.editor_schemas import editor_schema

    typer.echo(json.dumps(editor_schema(file), indent=2, ensure_ascii=False))
