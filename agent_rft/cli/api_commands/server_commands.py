"""Commands `agent-rft files`, `jobs`, `events`, `checkpoints` and `models`, which call a server's API.

They print tables or JSON. `agent_rft.cli.api_commands.api_client` describes how the server is selected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from os.path import expanduser
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rft.cli.api_commands.api_client import (
    download,
    iter_pages,
    make_server_client,
    profiles_file,
    send_request,
    upload,
)
from agent_rft.cli.completion import file_ids, job_ids, profile_names
from agent_rft.errors import RftError, UserError

CANCELLED = 3
"""Exit code of `jobs follow` for a cancelled job."""
MAX_LINE = 10_000
TIMES = ("created_at", "created")

files = typer.Typer(no_args_is_help=True, help="Upload, list, download and delete files on a server.")
jobs = typer.Typer(no_args_is_help=True, help="Create, watch and control fine-tuning jobs on a server.")
events = typer.Typer(no_args_is_help=True, help="List the events of a job on a server.")
checkpoints = typer.Typer(no_args_is_help=True, help="List the checkpoints of a job on a server.")
models = typer.Typer(no_args_is_help=True, help="Examine local models; list and delete a server's models.")

BaseUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of the server, https://host/v1 (default: AGENT_RFT_BASE_URL, OPENAI_BASE_URL, or the profile's URL)"
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        help="API key (default: AGENT_RFT_API_KEY, or the profile's key). If OPENAI_BASE_URL sets the server's URL, "
        "the default is OPENAI_API_KEY. Other users of this machine can see this option in the list of processes",
    ),
]
Profile = Annotated[
    str,
    typer.Option(
        help="profile in ~/.config/agent-rft/profiles.yaml", envvar="AGENT_RFT_PROFILE", autocompletion=profile_names
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]
Limit = Annotated[int, typer.Option(min=1, help="number of entries to show, newest first")]
JobIdArgument = Annotated[str, typer.Argument(help="id of the job, ftjob-...", autocompletion=job_ids)]
FileIdArgument = Annotated[str, typer.Argument(help="id of the file, file-...", autocompletion=file_ids)]


@files.callback()
@jobs.callback()
@events.callback()
@checkpoints.callback()
@models.callback()
def store_connection_options(
    context: typer.Context, base_url: BaseUrl = None, api_key: Key = None, profile: Profile = "default"
) -> None:
    """Set `context.obj` to a function that creates an HTTP client for the selected server.

    The client is created only when a command runs, so that --help works without a server.
    """
    if context.obj is None:
        context.obj = partial(make_server_client, base_url, api_key, profile, os.environ, profiles_file())


# -- files -------------------------------------------------------------------------------------------------------------


@files.command("upload")
def upload_file(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="file to upload; files for jobs must be JSONL")],
    purpose: Annotated[
        str, typer.Option(help="purpose of the file; jobs accept only files with the purpose fine-tune")
    ] = "fine-tune",
    as_json: AsJson = False,
) -> None:
    """Upload a file and print its id."""
    _print_result(upload(context.obj(), path, purpose), as_json, lambda made: made["id"])


@files.command("list")
def list_files(context: typer.Context, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List files, newest first."""
    rows = iter_pages(context.obj(), "/files", limit)
    _print_table(
        rows, as_json, {"id": "id", "filename": "name", "purpose": "purpose", "bytes": "bytes", "created_at": "created"}
    )


@files.command("download")
def download_file(
    context: typer.Context,
    file_id: FileIdArgument,
    path: Annotated[Path, typer.Argument(help="file to write; an existing file is replaced")],
) -> None:
    """Download a file, such as a job's result file, to PATH."""
    download(context.obj(), f"/files/{file_id}/content", path)


@files.command("delete")
def delete_file(context: typer.Context, file_id: FileIdArgument) -> None:
    """Delete a file and print its id."""
    typer.echo(send_request(context.obj(), "DELETE", f"/files/{file_id}")["id"])


# -- jobs --------------------------------------------------------------------------------------------------------------


@jobs.command("create")
def create_job(
    context: typer.Context,
    request: Annotated[
        Path,
        typer.Argument(help="YAML or JSON file with the API request; ${NAME} is replaced by an environment variable"),
    ],
    follow: Annotated[bool, typer.Option(help="show the job's progress until it ends")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a job. If REQUEST names local files of rows, the files are uploaded first.

    If REQUEST names a chat template file, the file's text is inserted into the request. Paths are relative to the
    folder of REQUEST.
    """
    from agent_rft.spec.config_reader import Variables
    from agent_rft.spec.job import FILES  # imports pydantic, which other commands do not need
    from agent_rft.spec.model_options import is_template

    client: httpx.Client = context.obj()
    variables = Variables(os.environ)
    body = variables.fill_in(yaml.safe_load(request.read_text()), ())
    for _, name in variables.missing:
        raise UserError(f"${{{name}}} is not set: export {name}=... before the command")
    if not isinstance(body, dict):
        raise UserError(
            f"{request} is not a valid API request: it must be a mapping with model, training_file and method"
        )
    for key in FILES:
        if isinstance(body.get(key), str) and (path := request.parent / expanduser(body[key])).exists():
            body[key] = upload(client, path, "fine-tune")["id"]
    match body.get("model_options"):
        case {"chat_template": str(template), **options} if not is_template(template):
            body["model_options"] = options | {
                "chat_template": _read_chat_template(request.parent / expanduser(template))
            }
    made = send_request(client, "POST", "/fine_tuning/jobs", json=body)
    _print_result(made, as_json, lambda job: job["id"])
    if follow:
        _follow(client, made["id"], as_json)


def _read_chat_template(path: Path) -> str:
    from agent_rft.spec.model_options import read_template

    try:
        return read_template(path)
    except ValueError as error:
        raise UserError(f"model_options.chat_template: {error}") from None


@jobs.command("list")
def list_jobs(context: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List jobs with their status, newest first."""
    names = {"id": "id", "status": "status", "model": "model", "fine_tuned_model": "tuned model"}
    _print_table(iter_pages(context.obj(), "/fine_tuning/jobs", limit), as_json, names | {"created_at": "created"})


@jobs.command("get")
def get_job(context: typer.Context, job_id: JobIdArgument, as_json: AsJson = False) -> None:
    """Show the status, settings and tuned model of a job, and its error if it has failed."""
    job = send_request(context.obj(), "GET", f"/fine_tuning/jobs/{job_id}")
    if as_json:
        typer.echo(json.dumps(job))
        return
    table = Table("", "", show_header=False)
    for name, value in job.items():
        shown = _format_time(value) if name.endswith("_at") and value else value
        if shown not in (None, [], {}):
            text = shown if isinstance(shown, str) else json.dumps(shown, indent=2, ensure_ascii=False)
            table.add_row(name, Text(text))
    Console().print(table)


@jobs.command("follow")
def follow_job(context: typer.Context, job_id: JobIdArgument, as_json: AsJson = False) -> None:
    """Show a job's progress until the job ends.

    The exit code is 0 if the job succeeded, 1 if it failed, and 3 if it was cancelled.
    """
    _follow(context.obj(), job_id, as_json)


@jobs.command("log")
def show_job_log(
    context: typer.Context,
    job_id: JobIdArgument,
    attempt: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="number of the driver process to show, starting with 1; 0 shows the output of the job's validation",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show a job's error and the last output of its processes, with secrets removed. Requires an admin key."""
    chosen = {} if attempt is None else {"attempt": attempt}
    found = send_request(context.obj(), "GET", f"/fine_tuning/jobs/{job_id}/log", params=chosen)
    if as_json:
        typer.echo(json.dumps(found))
        return
    if found["error"]:
        typer.echo(f"error: {found['error']}")
    for output in found["outputs"]:
        name = "the validation" if output["process"] == "validation" else f"driver {output['attempt']}"
        typer.echo(f"== {name}, last output at {_format_time(output['written_at'])} UTC ==")
        typer.echo(output["text"].rstrip() or "(empty)")
    if not found["outputs"]:
        typer.echo(
            "no output is stored: the job's processes have not started, or their last output is over 30 days old"
        )


def _add_job_action(name: str, about: str) -> None:
    @jobs.command(name, help=about)
    def action(context: typer.Context, job_id: JobIdArgument) -> None:
        typer.echo(send_request(context.obj(), "POST", f"/fine_tuning/jobs/{job_id}/{name}")["status"])


_add_job_action("cancel", "Cancel a job permanently and print its status. Its checkpoints remain.")
_add_job_action(
    "pause", "Pause a running job and print its status. A paused job releases its CPUs and GPUs and can be resumed."
)
_add_job_action("resume", "Queue a paused job again and print its status. The job continues from its last checkpoint.")


def _follow(client: httpx.Client, job_id: str, as_json: bool) -> None:
    """Show a job's progress until the job ends.

    Raises:
        RftError: The job failed.
        Exit: The job was cancelled.
    """
    # Imports numpy, which other commands do not need.
    from agent_rft.cli.api_commands.job_progress_view import JsonProgress, LiveProgress, follow, next_steps

    console = Console()
    job = send_request(client, "GET", f"/fine_tuning/jobs/{job_id}")
    try:
        if as_json:
            job = follow(client, job, JsonProgress())
        else:
            progress = LiveProgress(job, console)
            with progress.view:
                job = follow(client, job, progress)
    except KeyboardInterrupt:
        typer.echo(
            f"{job_id} continues on the server; to follow it again, run agent-rft jobs follow {job_id}", err=True
        )
        raise
    if job["status"] == "failed":
        raise RftError(f"{job_id} failed: {(job['error'] or {}).get('message')}")
    if not as_json:
        model = f": {job['fine_tuned_model']}" if job["fine_tuned_model"] else ""
        print_line = partial(console.print, soft_wrap=True, markup=False, emoji=False, highlight=False)
        print_line(f"{job_id} {job['status']}{model}")
        with suppress(RftError):  # the job has succeeded even if the server does not answer now
            for label, text in next_steps(client, job) if model else ():
                print_line(f"{label + ':':<17}{text}")
    if job["status"] == "cancelled":
        raise typer.Exit(CANCELLED)


# -- events and checkpoints of a job -----------------------------------------------------------------------------------


@events.command("list")
def list_events(context: typer.Context, job_id: JobIdArgument, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List a job's events, newest first: progress, warnings and errors."""
    rows = iter_pages(context.obj(), f"/fine_tuning/jobs/{job_id}/events", limit)
    _print_table(rows, as_json, {"created_at": "time", "level": "level", "message": "message"})


@checkpoints.command("list")
def list_checkpoints(context: typer.Context, job_id: JobIdArgument, limit: Limit = 10, as_json: AsJson = False) -> None:
    """List a job's checkpoints. Each checkpoint can be used as the model of chat requests."""
    rows = iter_pages(context.obj(), f"/fine_tuning/jobs/{job_id}/checkpoints", limit)
    _print_table(
        rows, as_json, {"step_number": "step", "fine_tuned_model_checkpoint": "model", "created_at": "created"}
    )


# -- models ------------------------------------------------------------------------------------------------------------


@models.command("list")
def list_models(context: typer.Context, as_json: AsJson = False) -> None:
    """List base models, tuned models and checkpoints."""
    rows = send_request(context.obj(), "GET", "/models")["data"]
    _print_table(rows, as_json, {"id": "id", "owned_by": "owned by", "created": "created"})


@models.command("delete")
def delete_model(
    context: typer.Context, model: Annotated[str, typer.Argument(help="id of the model, see `agent-rft models list`")]
) -> None:
    """Delete a tuned model or a checkpoint and print its id. Base models cannot be deleted."""
    typer.echo(send_request(context.obj(), "DELETE", f"/models/{model}")["id"])


# -- output ------------------------------------------------------------------------------------------------------------


def _print_result(value: dict[str, Any], as_json: bool, format_short: Callable[[dict[str, Any]], str]) -> None:
    typer.echo(json.dumps(value) if as_json else format_short(value))


def _print_table(rows: Iterable[dict[str, Any]], as_json: bool, names: Mapping[str, str]) -> None:
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    table = Table(*names.values(), box=None, header_style="bold", pad_edge=False)
    for row in rows:
        # Text, not markup: rich would turn parts of names such as ft:on:a into emojis.
        cells = (Text(_format_time(row[key]) if key in TIMES else str(row[key] or "")) for key in names)
        table.add_row(*cells)
    # Lines are not wrapped here, so that ids and names can be copied; the terminal wraps long lines.
    Console(width=MAX_LINE).print(table)


def _format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
