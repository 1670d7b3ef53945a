"""Commands `agent-rft keys ...`: manage the API keys in a server's folder or database.

The server may be running or stopped. Each command imports the database modules when it runs, so that `--help` and
shell completion start quickly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from agent_rft.cli.completion import key_scopes
from agent_rft.cli.job_files import strip_option
from agent_rft.errors import UserError

if TYPE_CHECKING:
    from agent_rft.serve.stores.audit_log import AuditLog
    from agent_rft.serve.stores.database import Database
    from agent_rft.serve.stores.key_store import KeyStore, Scope
import re

app = typer.Typer(no_args_is_help=True, help="Manage the API keys of a server; the server may be running or stopped.")

Folder = Annotated[Path, typer.Option(help="folder with the server's state", envvar="AGENT_RFT_FOLDER")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="database URL, postgresql://... (default: a file in the server's folder)",
        envvar="AGENT_RFT_DATABASE",
        callback=strip_option,
    ),
]
DEFAULT_FOLDER = Path("agent-rft-server")


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="name of the key's user or purpose")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="scope of the key: read, write (includes read; may change only objects that the key created) or admin "
            "(everything)",
            autocompletion=key_scopes,
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="lifetime of the key, such as 12h, 90d or 4w (default: until the key is revoked)")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="rate limit (default: the server's limit)")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    database: DatabaseUrl = None,
) -> None:
    """Create an API key. The key is printed once; the server stores only a hash of it."""
    scopes: list[Scope] = scope or ["write"]  # type: ignore[assignment]  # KeyStore validates them
    from agent_rft.serve.stores.audit_log import OPERATOR

    expires_after_s = None if expires is None else parse_duration(expires, "--expires")
    with _open_keys(folder, database) as (keys, audit):
        key, token = keys.create(name, scopes, requests_per_minute, expires_after_s)
        audit.append(OPERATOR, "key.create", key.id)
    where = folder if database is None else "the database"
    until = "" if key.expires_at is None else f"; valid until {_format_time(key.expires_at)}"
    facts = f"scopes: {', '.join(key.scopes)}{until}"
    typer.echo(f"key {key.id} was created for {where} ({facts}). The key is shown only once:", err=True)
    typer.echo(token)


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
    folder: Folder = DEFAULT_FOLDER,
    database: DatabaseUrl = None,
) -> None:
    """List all API keys, including revoked and expired keys. The secret part of the keys is not shown."""
    with _open_keys(require_folder(folder, database), database) as (keys, _):
        found = keys.list()
    if as_json:
        for key in found:
            typer.echo(json.dumps(asdict(key)))
        return
    table = Table(Column("id", no_wrap=True), "name", "scopes", "requests per minute", "created", "expires", "revoked")
    for key in found:
        rate = str(key.requests_per_minute or "default")
        expires = _format_time(key.expires_at) + " (expired)" * key.has_expired(time.time())
        times = _format_time(key.created_at), expires, _format_time(key.revoked_at)
        table.add_row(key.id, Text(key.name), ", ".join(key.scopes), rate, *times)
    Console().print(table)


@app.command("revoke")
def revoke_command(
    key_id: Annotated[str, typer.Argument(metavar="id", help="id of the key, see `agent-rft keys list`")],
    folder: Folder = DEFAULT_FOLDER,
    database: DatabaseUrl = None,
) -> None:
    """Revoke an API key. The server then refuses all requests with this key."""
    from agent_rft.serve.stores.audit_log import OPERATOR

    with _open_keys(require_folder(folder, database), database) as (keys, audit):
        key = keys.revoke(key_id)
        audit.append(OPERATOR, "key.revoke", key.id)
    typer.echo(f"key {key.id} ({key.name}) is revoked")


@app.command("rotate-master")
def rotate_master_command(folder: Folder = DEFAULT_FOLDER, database: DatabaseUrl = None) -> None:
    """Replace the master secret, and encrypt the stored headers of all jobs with the new secret.

    If the command is interrupted, run it again. The server may be running, and its jobs continue.

    If the current secret is set in AGENT_RFT_SECRET_KEY, set the new secret in AGENT_RFT_NEW_SECRET_KEY. In this case,
    a running server must have been started with both variables.
    """
    from agent_rft.serve.stores.audit_log import OPERATOR, AuditLog
    from agent_rft.serve.stores.sealed_secrets import NEW_VARIABLE, VARIABLE, FileSecrets, find_master_secrets
    from agent_rft.serve.stores.secret_rotation import MasterSecretRotation

    secrets = find_master_secrets(require_folder(folder, database))
    with open_server_database(folder, database) as server_database:
        done = MasterSecretRotation(server_database, secrets).run()
        AuditLog(server_database).append(OPERATOR, "keys.rotate_master", done.secret_id)
    typer.echo(f"the headers of {done.num_sealed} jobs are now encrypted with the secret {done.secret_id}")
    if done.unreadable:
        typer.echo(
            f"the headers of these jobs are unchanged, because no secret decrypts them: {', '.join(done.unreadable)}",
            err=True,
        )
    if isinstance(secrets, FileSecrets):
        typer.echo(f"{secrets.path} now contains only the new secret; back up this file")
    else:
        typer.echo(f"now set {VARIABLE} to the value of {NEW_VARIABLE}, remove {NEW_VARIABLE}, and restart the server")


def require_folder(folder: Path, database: str | None) -> Path:
    """Check that the server's folder exists, unless `database` is given, and return the folder.

    Without this check, a missing folder would be created with an empty database.

    Raises:
        UserError: The folder does not exist, and no database is given.
    """
    if database is None and not folder.is_dir():
        raise UserError(f"the server's folder {folder} does not exist: set --folder or AGENT_RFT_FOLDER")
    return folder


@contextmanager
def open_server_database(folder: Path, database: str | None) -> Iterator[Database]:
    """Context manager that opens a server's database and closes it at the end; `database` is a URL or None."""
    from agent_rft.serve.host.server_state import StateLocations
    from agent_rft.serve.stores.migration import open_database

    found = open_database(folder, database or StateLocations.load(folder).database)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def _open_keys(folder: Path, database: str | None) -> Iterator[tuple[KeyStore, AuditLog]]:
    from agent_rft.serve.stores.audit_log import AuditLog
    from agent_rft.serve.stores.key_store import KeyStore

    with open_server_database(folder, database) as found:
        yield KeyStore(found), AuditLog(found)


def _format_time(seconds: int | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


# -- durations ---------------------------------------------------------------------------------------------------------


UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([1-9][0-9]{0,3})([smhdw])", re.ASCII)


def parse_duration(duration: str, option: str) -> int:
    """Return a duration such as `10m`, `12h` or `90d` in seconds; `option` is the option's name for error messages.

    Raises:
        UserError: The duration is invalid.
    """
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise UserError(
            f"{option} {duration!r} is not a duration; give a number of up to four digits, followed by s, m, h, d or "
            "w, such as 90d"
        )
    return int(match[1]) * UNIT_S[match[2]]
