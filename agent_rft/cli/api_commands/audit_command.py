"""Command `agent-rft audit`: shows the audit log in a server's folder or database.

The server may be running or stopped.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from agent_rft.cli.api_commands.key_commands import (
    DEFAULT_FOLDER,
    DatabaseUrl,
    Folder,
    open_server_database,
    require_folder,
)
from agent_rft.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Show who changed what on a server; the server may be running or stopped.")


@app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="number of entries to show, newest first")] = 50,
    actor: Annotated[
        str | None,
        typer.Option(
            help="only changes by this actor: the id of an API key, or `operator` for changes with `agent-rft keys`"
        ),
    ] = None,
    action: Annotated[str | None, typer.Option(help="only entries with this action, such as job.cancel")] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", help="only entries about the object with this id")
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            help="only entries with this outcome: done, refused (the key lacks a scope) or failed (another error)"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
    folder: Folder = DEFAULT_FOLDER,
    database: DatabaseUrl = None,
) -> None:
    """List recorded creations, changes and deletions, newest first, with actor, action, object, request and outcome."""
    from agent_rft.serve.stores.audit_log import OUTCOMES, AuditLog

    found = next((known for known in OUTCOMES if known == outcome), None)
    if found != outcome:
        raise UserError(f"--outcome: must be one of {', '.join(OUTCOMES)}")
    with open_server_database(require_folder(folder, database), database) as server_database:
        entries = AuditLog(server_database).list(limit, actor=actor, action=action, object=object_id, outcome=found)
    if as_json:
        for entry in entries:
            typer.echo(json.dumps(asdict(entry)))
        return
    id_columns = Column("object", overflow="fold"), Column("request", overflow="fold")  # full ids, for copying
    table = Table("time", Column("actor", no_wrap=True), Column("action", no_wrap=True), *id_columns, "outcome")
    for entry in entries:
        time = f"{datetime.fromtimestamp(entry.at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        status = f" {entry.status}" if entry.status is not None and entry.outcome != "done" else ""
        times = f" ({entry.num_requests} requests)" if entry.num_requests > 1 else ""
        values = entry.actor, entry.action, entry.object, entry.request_id, entry.outcome + status + times
        table.add_row(time, *(Text(value or "") for value in values))
    Console().print(table)
