"""Command `agent-rft import`: converts jobs from other services into job files."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from functools import partial
from os.path import expanduser
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from agent_rft.cluster.run.stop_signals import hangup_signals
from agent_rft.errors import UserError
from agent_rft.rows.ownership import strip_owner_folder

app = typer.Typer(no_args_is_help=True, help="Convert a job from another service into a job file and rows.")


@app.command("openai")
def openai_command(
    job: Annotated[str | None, typer.Option(help="id of a fine-tuning job in your account, ftjob-...")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="folder of an exported job to use instead of --job; it contains job.json, train.jsonl and, "
            "optionally, validation.jsonl",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="new folder to write (default: a folder with the job's id as its name)")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="base model: a folder or a Hugging Face name (default: a model is proposed)")
    ] = None,
    training_file: Annotated[
        Path | None, typer.Option(help="file of rows to use instead of the job's training file")
    ] = None,
    validation_file: Annotated[
        Path | None, typer.Option(help="file of rows to use instead of the job's validation file")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="URL of the API (default: OPENAI_BASE_URL, or OpenAI's URL); the key is read from OPENAI_API_KEY"
        ),
    ] = None,
) -> None:
    """Import a job from OpenAI's fine-tuning API as job.yaml and files of rows.

    The command prints how the imported job differs from the original job, and which environment variables you must set.
    """
    from agent_rft.cli.openai_import.export_source import FolderSource
    from agent_rft.cli.openai_import.import_folder import Source, import_job
    from agent_rft.cli.openai_import.openai_objects import JOB_ID
    from agent_rft.cli.openai_import.openai_source import ApiSource, make_openai_client

    if (job is None) == (export is None):
        raise typer.BadParameter("give either --job or --from")
    if job is not None and not re.fullmatch(JOB_ID, job):
        raise UserError(f"--job: {job!r} is not the id of a fine-tuning job; give an id that begins with ftjob-")
    if model is not None and Path(expanduser(model)).is_dir():
        model = str(
            strip_owner_folder(Path(expanduser(model)).resolve())
        )  # paths in a job file are relative to the file
    files = {"training_file": training_file, "validation_file": validation_file}
    replacements = {field: path for field, path in files.items() if path is not None}
    for number in (signal.SIGTERM, *hangup_signals()):
        signal.signal(number, _raise_keyboard_interrupt)  # so that the unfinished folder is removed
    with ExitStack() as stack:
        if export is not None:
            source: Source = FolderSource(export)
        else:
            client, key = make_openai_client(base_url, os.environ)
            source = ApiSource(stack.enter_context(client), key, job or "", notify=partial(typer.echo, err=True))
        text = import_job(source, out, replacements, model)
    typer.echo(text, nl=False)


def _raise_keyboard_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
