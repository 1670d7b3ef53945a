"""`agent-rft files|jobs|models`: a server through its API, for people (tables) and for scripts (--json).

The server and the key come from options, else from the environment (AGENT_RFT_BASE_URL, AGENT_RFT_API_KEY; OpenAI's
names do as well), else from a profile: `~/.config/agent-rft/profiles.yaml`, `NAME: {base_url: ..., api_key: ...}`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from trainer.errors import RftError, UserError

PROFILES = Path("~/.config/agent-rft/profiles.yaml")
TIMEOUT = httpx.Timeout(60.0, write=600.0)
POLL_S = 1.0
ENDED = ("succeeded", "failed", "cancelled")
FILE_KEYS = ("training_file", "validation_file", "test_file")
TIMES = ("created_at", "created")
LEVELS = {"warn": "yellow", "error": "bold red"}

files = typer.Typer(no_args_is_help=True, help="Files of a server.")
jobs = typer.Typer(no_args_is_help=True, help="Fine-tuning jobs of a server.")
models = typer.Typer(no_args_is_help=True, help="Models of a server.")

BaseUrl = Annotated[str | None, typer.Option(help="the server, https://host/v1 (else the environment, a profile)")]
Key = Annotated[str | None, typer.Option("--api-key", help="better given by the environment or a profile")]
Profile = Annotated[str, typer.Option(help="of profiles.yaml", envvar="AGENT_RFT_PROFILE")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object a line")]
Limit = Annotated[int, typer.Option(min=1, help="newest first")]


@files.callback()
@jobs.callback()
@models.callback()
def connect(
    context: typer.Context, base_url: BaseUrl = None, api_key: Key = None, profile: Profile = "default"
) -> None:
    """Find the server, unless a client is handed in."""
    if context.obj is None:
        context.obj = client_of(base_url, api_key, profile, os.environ, PROFILES.expanduser())


def client_of(
    base_url: str | None, api_key: str | None, profile: str, environment: Mapping[str, str], profiles: Path
) -> httpx.Client:
    """
    Raises:
        UserError: no server or no key is named anywhere.
    """
    known = (yaml.safe_load(profiles.read_text()) or {}) if profiles.exists() else {}
    chosen = known.get(profile) or {}
    if profile != "default" and not chosen:
        raise UserError(f"there is no profile {profile!r} in {profiles}; it has {', '.join(known) or 'none'}")

    def found(given: str | None, name: str) -> str:
        for value in (given, environment.get(f"AGENT_RFT_{name}"), environment.get(f"OPENAI_{name}")):
            if value:
                return value
        if value := chosen.get(name.lower()):
            return str(value)
        option = name.lower().replace("_", "-")
        raise UserError(f"which server? give --{option}, AGENT_RFT_{name}, or {name.lower()} in {profiles}")

    headers = {"Authorization": f"Bearer {found(api_key, 'API_KEY')}"}
    return httpx.Client(base_url=found(base_url, "BASE_URL"), headers=headers, timeout=TIMEOUT)


# -- files -------------------------------------------------------------------------------------------------------------


@files.command("upload")
def upload_file(context: typer.Context, path: Path, purpose: str = "fine-tune", as_json: AsJson = False) -> None:
    """Upload a file; its id is printed."""
    _show(_upload(context.obj, path, purpose), as_json, lambda made: made["id"])


@files.command("list")
def list_files(context: typer.Context, limit: Limit = 100, as_json: AsJson = False) -> None:
    """All files."""
    rows = _pages(context.obj, "/files", limit)
    _table(
        rows, as_json, {"id": "id", "filename": "name", "purpose": "purpose", "bytes": "bytes", "created_at": "made"}
    )


@files.command("download")
def download_file(context: typer.Context, file_id: str, path: Path) -> None:
    """Write a file's content to PATH."""
    with context.obj.stream("GET", f"/files/{file_id}/content") as answer:
        _checked(answer)
        with path.open("wb") as out:
            for chunk in answer.iter_bytes():
                out.write(chunk)


@files.command("delete")
def delete_file(context: typer.Context, file_id: str) -> None:
    """Delete a file."""
    typer.echo(_ask(context.obj, "DELETE", f"/files/{file_id}")["id"])


# -- jobs --------------------------------------------------------------------------------------------------------------


@jobs.command("create")
def create_job(
    context: typer.Context,
    request: Annotated[Path, typer.Argument(help="the API's request, YAML or JSON; ${NAME} is the environment's")],
    follow: Annotated[bool, typer.Option(help="show its events until it has ended")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin a job. Files that are named by their path, seen from REQUEST, are uploaded first."""
    body = yaml.safe_load(_expanded(request.read_text()))
    if not isinstance(body, dict):
        raise UserError(f"{request} holds no request: give model, training_file and method")
    for key in FILE_KEYS:
        if isinstance(body.get(key), str) and (path := request.parent / body[key]).exists():
            body[key] = _upload(context.obj, path, "fine-tune")["id"]
    made = _ask(context.obj, "POST", "/fine_tuning/jobs", json=body)
    _show(made, as_json, lambda job: job["id"])
    if follow:
        _follow(context.obj, made["id"], as_json)


@jobs.command("list")
def list_jobs(context: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """Jobs."""
    names = {"id": "id", "status": "status", "model": "model", "fine_tuned_model": "tuned model", "created_at": "made"}
    _table(_pages(context.obj, "/fine_tuning/jobs", limit), as_json, names)


@jobs.command("get")
def get_job(context: typer.Context, job_id: str) -> None:
    """One job, as JSON."""
    typer.echo(json.dumps(_ask(context.obj, "GET", f"/fine_tuning/jobs/{job_id}"), indent=2))


@jobs.command("follow")
def follow_job(context: typer.Context, job_id: str, as_json: AsJson = False) -> None:
    """Show a job's events as they come, until it has ended. Exit code 1 where it did not succeed."""
    _follow(context.obj, job_id, as_json)


@jobs.command("events")
def list_events(context: typer.Context, job_id: str, limit: Limit = 100, as_json: AsJson = False) -> None:
    """A job's events."""
    rows = _pages(context.obj, f"/fine_tuning/jobs/{job_id}/events", limit)
    _table(rows, as_json, {"created_at": "at", "level": "level", "message": "message"})


@jobs.command("checkpoints")
def list_checkpoints(context: typer.Context, job_id: str, limit: Limit = 10, as_json: AsJson = False) -> None:
    """A job's checkpoints."""
    rows = _pages(context.obj, f"/fine_tuning/jobs/{job_id}/checkpoints", limit)
    _table(rows, as_json, {"step_number": "step", "fine_tuned_model_checkpoint": "model", "created_at": "made"})


def _move(name: str) -> None:
    @jobs.command(name, help=f"{name.capitalize()} a job.")
    def move(context: typer.Context, job_id: str) -> None:
        typer.echo(_ask(context.obj, "POST", f"/fine_tuning/jobs/{job_id}/{name}")["status"])


for _name in ("cancel", "pause", "resume"):
    _move(_name)


def _follow(client: httpx.Client, job_id: str, as_json: bool) -> None:
    console, last = Console(), ""
    while True:
        status = _ask(client, "GET", f"/fine_tuning/jobs/{job_id}")["status"]  # before its events: none is missed
        for event in reversed(list(_until(_pages(client, f"/fine_tuning/jobs/{job_id}/events", 10_000), last))):
            last = event["id"]
            if as_json:
                typer.echo(json.dumps(event))
            else:
                style = LEVELS.get(event["level"], "default")
                console.print(f"{_at(event['created_at'])}  [{style}]{escape(event['message'])}[/]", highlight=False)
        if status in ENDED:
            if status != "succeeded":
                raise RftError(f"{job_id} {status}")
            return
        time.sleep(POLL_S)


def _until(events: Iterator[dict[str, Any]], last: str) -> Iterator[dict[str, Any]]:
    """Those that came after the event `last`, newest first."""
    for event in events:
        if event["id"] == last:
            return
        yield event


# -- models ------------------------------------------------------------------------------------------------------------


@models.command("list")
def list_models(context: typer.Context, as_json: AsJson = False) -> None:
    """Base models, tuned ones and checkpoints."""
    rows = _ask(context.obj, "GET", "/models")["data"]
    _table(rows, as_json, {"id": "id", "owned_by": "owned by", "created": "made"})


@models.command("delete")
def delete_model(context: typer.Context, model: str) -> None:
    """Delete a tuned model or a checkpoint."""
    typer.echo(_ask(context.obj, "DELETE", f"/models/{model}")["id"])


# -- the API -----------------------------------------------------------------------------------------------------------


def _ask(client: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    try:
        answer = client.request(method, path, **options)
    except httpx.TransportError as error:
        raise RftError(f"the server at {client.base_url} does not answer: {error}") from None
    _checked(answer)
    body: dict[str, Any] = answer.json()
    return body


def _checked(answer: httpx.Response) -> None:
    """
    Raises:
        UserError: the request was refused; says what the server said.
    """
    if answer.is_success:
        return
    answer.read()
    try:
        error = answer.json()["error"]
        place = f"{error['param']}: " if error.get("param") else ""
        text = f"{place}{error['message']}" + (f" [{error['code']}]" if error.get("code") else "")
    except (ValueError, KeyError, TypeError):
        text = answer.text[:200]
    raise (RftError if answer.is_server_error else UserError)(f"HTTP {answer.status_code}: {text}")


def _upload(client: httpx.Client, path: Path, purpose: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return _ask(client, "POST", "/files", data={"purpose": purpose}, files={"file": (path.name, file)})
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _pages(client: httpx.Client, path: str, limit: int) -> Iterator[dict[str, Any]]:
    """The first `limit` entries of a list, page by page."""
    after: dict[str, Any] = {}
    while limit > 0:
        page = _ask(client, "GET", path, params={"limit": min(limit, 100), **after})
        yield from page["data"]
        limit -= len(page["data"])
        if not page["has_more"] or not page["data"]:
            return
        after = {"after": page["data"][-1]["id"]}


def _expanded(text: str) -> str:
    """`${NAME}` by the environment's values.

    Raises:
        UserError: one is not set.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise UserError(f"${{{match[1]}}} is not set: export {match[1]}=... before the command")
        return os.environ[match[1]]

    return re.sub(r"\$\{(\w+)\}", value, text)


# -- what is shown -----------------------------------------------------------------------------------------------------


def _show(value: dict[str, Any], as_json: bool, short: Callable[[dict[str, Any]], str]) -> None:
    typer.echo(json.dumps(value) if as_json else short(value))


def _table(rows: Iterator[dict[str, Any]] | Sequence[dict[str, Any]], as_json: bool, names: Mapping[str, str]) -> None:
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    table = Table(*(Column(label, no_wrap=key == "id", overflow="fold") for key, label in names.items()))
    for row in rows:
        cells = (_at(row[key]) if key in TIMES else escape(str(row[key] or "")) for key in names)
        table.add_row(*cells)
    Console().print(table)


def _at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
