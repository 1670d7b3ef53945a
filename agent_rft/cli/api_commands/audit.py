"""`agent-rft audit`: reads the audit log in the server's folder or database, running or not."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from agent_rft.cli.api_commands.keys import DEFAULT_FOLDER, DatabaseUrl, Folder, existing, opened
from agent_rft.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Show who changed what on a server; it may be running or not.")


@app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="number of entries, the newest ones")] = 50,
    actor: Annotated[str | None, typer.Option(help="only of this key's id, or operator: agent-rft keys")] = None,
    action: Annotated[str | None, typer.Option(help="only this action, such as job.cancel")] = None,
    object: Annotated[str | None, typer.Option(help="only of the object with this id")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="only done, refused (the key lacks a scope) or failed (another error)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    folder: Folder = DEFAULT_FOLDER,
    database: DatabaseUrl = None,
) -> None:
    """List what was created, changed and deleted, newest first: who, what, which object, the request, the outcome."""
    from agent_rft.serve.stores.audit import OUTCOMES, AuditLog

    found = next((known for known in OUTCOMES if known == outcome), None)
    if found != outcome:
        raise UserError(f"--outcome: must be one of {', '.join(OUTCOMES)}")
    with opened(existing(folder, database), database) as of_server:
        entries = AuditLog(of_server).list(limit, actor=actor, action=action, object=object, outcome=found)
    if as_json:
        for entry in entries:
            typer.echo(json.dumps(asdict(entry)))
        return
    whole = Column("object", overflow="fold"), Column("request", overflow="fold")  # ids are there to be copied
    table = Table("time", Column("who", no_wrap=True), Column("what", no_wrap=True), *whole, "outcome")
    for entry in entries:
        time = f"{datetime.fromtimestamp(entry.at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        status = f" {entry.status}" if entry.status is not None and entry.outcome != "done" else ""
        texts = entry.actor, entry.action, entry.object, entry.request_id, entry.outcome + status
        table.add_row(time, *(Text(text or "") for text in texts))
    Console().print(table)
