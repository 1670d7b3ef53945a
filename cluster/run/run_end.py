"""End of a run: records the outcome, closes the run, and prints the report's path, the problems and the next steps."""

from __future__ import annotations

import asyncio
import errno
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from rich.console import Console
from rich.markup import escape

from agent_rft.cluster.run.job_run import JobRun
from agent_rft.cluster.run.stop_signals import StopSignals
from agent_rft.cluster.views.next_steps import next_steps
from agent_rft.cluster.views.readiness.readiness_page import readiness_page_path
from agent_rft.cluster.views.report.report_page import write_report
from agent_rft.errors import RftError
from agent_rft.rows.ownership import FolderClaim, FolderLost
from agent_rft.trainer.loop.checkpoint import latest_checkpoint

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


@asynccontextmanager
async def record_run_end(run: JobRun, signals: StopSignals, claimed: FolderClaim) -> AsyncIterator[None]:
    """Context manager around the work of a run: records how the work ends, and closes the run.

    Raises:
        FolderLost: Another process has taken over the run's folder.
        RftError: Writing to the run's folder failed, for example because the disk is full.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    claimed.on_lost(lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        with run.outputs.view:
            yield
    except asyncio.CancelledError:
        run.record_immediate_end()  # cancelled by a signal, by the server, or because the folder was lost
        try:
            claimed.check()
        except FolderLost as lost:
            run.record_failure(lost)
            raise
        if not signals.count:
            raise
    except OSError as error:
        run.record_failure(error)
        claimed.check()  # raises if another process has taken over the folder
        if error.errno not in DISK_ERRORS:
            raise
        raise RftError(
            f"cannot write to {run.path}: {error.strerror}",
            public_message=f"cannot write to the run folder: {error.strerror}",
        ) from error
    except Exception as error:
        run.record_failure(error)
        raise
    finally:
        with signals.on_first(lambda: None):  # a first signal that arrives now has nothing left to stop
            await asyncio.shield(_close(run))


async def _close(run: JobRun) -> None:
    await run.close()
    _print_end(run)


def _print_end(run: JobRun) -> None:
    """Write the report, and print its path, the problems and the next steps."""
    folder, console = run.outputs.folder, run.outputs.console
    show = partial(print_line, console)
    show("run folder", str(folder.path))
    problems = list(folder.problems)
    try:
        page = readiness_page_path(folder.path) if run.readiness is not None else write_report(folder)
        show("report", str(folder.path / page.name))
    except OSError as error:
        problems.append(f"cannot write the report: {error.strerror}")
    for problem in problems:
        console.print(f"[yellow]warning[/] {escape(problem)}", soft_wrap=True, highlight=False)
    for label, text in next_steps(folder, run.cli_args):
        show(label, text)
    if run.outcome != "done" and folder.can_resume:
        latest = latest_checkpoint(folder.checkpoints)
        where = "the start" if latest is None else latest[0].name
        show("to resume", f"{_resume_command(run, 'train')}  # from {where}")
    elif run.outcome != "done" and folder.readiness_files:
        show("to resume", _resume_command(run, "ready"))


def _resume_command(run: JobRun, command: str) -> str:
    """Return the command that resumes the run."""
    return shlex.join(["agent-rft", command, *(run.cli_args or ["JOB"]), "--resume", str(run.path)])


def print_line(console: Console, label: str, text: str) -> None:
    """Print a line without wrapping it, so that it can be copied."""
    console.print(f"{label + ':':<17}{escape(text)}", soft_wrap=True, highlight=False)
