"""Command `agent-rft train JOB`: trains a job in a new run folder, or resumes a run from its last checkpoint."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from agent_rft.actors.runtime.process_setup import fast_imports
from agent_rft.cli import completion
from agent_rft.cli.api_commands.key_commands import parse_duration
from agent_rft.cli.job_files import (
    ClusterAddress,
    ConfigFile,
    JobFile,
    Runs,
    add_line_numbers,
    read_job_file,
    read_operator,
    to_cli_arguments,
)
from agent_rft.cluster.run.stop_signals import STOPPED_EXIT_CODE
from agent_rft.errors import InvalidJob, OutdatedFormat

if TYPE_CHECKING:
    from agent_rft.rows.ownership import FolderClaim
    from agent_rft.spec.job import JobSpec
    from agent_rft.spec.operator.operator_config import OperatorConfig


def train_command(
    job: JobFile,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None,
        typer.Option(
            help="folder of the run to resume; training continues from the run's last checkpoint",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    run_folder: Annotated[
        Path | None,
        typer.Option(
            help="run folder to train in; if the folder has checkpoints, training resumes from the last one",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    wait_for_run: Annotated[
        str | None,
        typer.Option(
            help="time to wait while another process trains in the folder, such as 90s, 10m or 2h (default: fail "
            "immediately)"
        ),
    ] = None,
    address: ClusterAddress = None,
    config: ConfigFile = None,
    retry_refused: Annotated[
        bool,
        typer.Option(
            help="if the job is invalid, end the Ray job as FAILED, so that KubeRay retries the Ray job. With "
            "--no-retry-refused, the Ray job ends as STOPPED and is not retried"
        ),
    ] = True,
    open_browser: Annotated[
        bool,
        typer.Option("--open", help="show the run in this machine's browser; after the run, Ctrl-C ends the console"),
    ] = False,
) -> None:
    """Check a job, then train it. The run folder contains the metrics, events, traces, checkpoints and report."""
    with _end_refused_ray_job(retry_refused):
        operator = read_operator(config)
        if run_folder is not None and resume is not None:
            raise typer.BadParameter("give --resume or --run-folder, not both")
        folder = resume or run_folder
        if wait_for_run is not None and folder is None:
            raise typer.BadParameter("requires --run-folder or --resume", param_hint="--wait-for-run")
        with ExitStack() as stack:
            claimed = stack.enter_context(_claim_folder(folder, wait_for_run))
            if folder is not None:
                _restore_checkpoints(folder, operator)
            resumed = resume is not None or (run_folder is not None and _has_checkpoint(run_folder))
            if folder is not None and resumed:
                from agent_rft.cluster.checks.local_endpoints import allow_local_endpoints
                from agent_rft.cluster.planning.model_folder import ModelFolder

                spec = _load_accepted(job, folder)
                model = ModelFolder.find(spec.model)
                operator = allow_local_endpoints(operator, spec, address)
            else:
                spec, model, operator = read_job_file(job, operator, address)
            with fast_imports():
                from agent_rft.cluster.records.run_folder import new_run_folder
                from agent_rft.cluster.run.driver import claim_run, train

            arguments = [str(job), *to_cli_arguments({"--address": address, "--config": config})]
            if claimed is None and open_browser:
                folder = new_run_folder(runs, spec.suffix)
                claimed = stack.enter_context(claim_run(folder, 0.0, print))
            parent = runs if run_folder is None else run_folder.parent
            must_resume = resume is not None
            training = train(
                spec, model, parent, claimed, address, operator, cli_args=arguments, must_resume=must_resume
            )
            opened = _open_console(folder, resumed=resumed) if open_browser and folder is not None else nullcontext()
            with add_line_numbers(job), opened:
                outcome = asyncio.run(training)
    raise typer.Exit(STOPPED_EXIT_CODE if outcome == "stopped" else 0)


@contextmanager
def _claim_folder(folder: Path | None, wait: str | None) -> Iterator[FolderClaim | None]:
    """Context manager that claims `folder` for this process, unless it is None; `wait` is the value of --wait-for-run.

    Raises:
        FolderOwned: Another process owns the folder.
    """
    if folder is None:
        yield None
        return
    wait_s = 0 if wait is None else parse_duration(wait, "--wait-for-run")
    with fast_imports():
        from agent_rft.cluster.run.driver import claim_run
    notify = partial(Console(stderr=True).print, soft_wrap=True, markup=False, highlight=False)
    with claim_run(folder, wait_s, notify) as claimed:
        yield claimed


def _restore_checkpoints(run_folder: Path, operator: OperatorConfig) -> None:
    """Download the run's checkpoints from the operator's checkpoint store if the run folder was lost."""
    from agent_rft.cluster.run.checkpoint_upload import open_store, restore_checkpoints

    restore_checkpoints(
        run_folder, open_store(operator), partial(Console(stderr=True).print, soft_wrap=True, markup=False)
    )


def _has_checkpoint(run_folder: Path) -> bool:
    from agent_rft.trainer.loop.checkpoint import latest_checkpoint

    return latest_checkpoint(run_folder / "checkpoints") is not None


def _load_accepted(path: Path, folder: Path) -> JobSpec:
    """Load the job file of the resumed run in `folder`, and print warnings about outdated settings."""
    from agent_rft.cluster.records.run_folder import RunFolder
    from agent_rft.spec.job_file import load_accepted_job

    try:
        recorded = RunFolder(folder).job().get("job", {})
    except ValueError:
        recorded = {}  # the damaged file is reported when the run is resumed
    job, warnings = load_accepted_job(path, recorded)
    for warning in warnings:
        Console(stderr=True, emoji=False).print(f"[yellow]warning[/] {escape(warning)}", soft_wrap=True)
    return job


@contextmanager
def _end_refused_ray_job(retry: bool) -> Iterator[None]:
    """Context manager that ends the current Ray job as STOPPED if the training job is refused and `retry` is false."""
    try:
        yield
    except (InvalidJob, OutdatedFormat) as error:
        if not retry:
            from agent_rft.cluster.ray_cluster.ray_job_status import stop_without_retry

            stop_without_retry(error)
        raise


# -- the console of the run -------------------------------------------------------------------------------------------


@contextmanager
def _open_console(run: Path, *, resumed: bool) -> Iterator[None]:
    """Context manager that starts a process with a console for the run folder, and opens the console in the browser.

    After the run, the console stays open until the user presses Ctrl-C.
    """
    on_terminal = sys.stdin is not None and sys.stdin.isatty()
    command = [
        sys.executable,
        "-P",
        "-m",
        "agent_rft.serve.host.run_console",
        str(run),
        *(["--resumed"] if resumed else []),
    ]
    # In a new process session, so that Ctrl-C stops only the training. The console ends when its standard input closes.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as console:
        threading.Thread(target=_show_url, args=[console], daemon=True).start()
        try:
            yield
            if on_terminal and not sys.stdin.isatty():
                return  # the terminal was closed, so nobody can press Ctrl-C
            typer.echo("The console stays open until you press Ctrl-C.")
            with suppress(KeyboardInterrupt):
                console.wait()
        finally:
            assert console.stdin is not None
            console.stdin.close()
            with suppress(OSError):  # the folder is empty only if the job was refused
                run.rmdir()


def _show_url(console: subprocess.Popen[str]) -> None:
    assert console.stdout is not None
    url = console.stdout.readline().strip()  # printed once the job is checked and its run folder written
    if url:
        typer.echo(f"console:         {url}")
        typer.launch(url)
