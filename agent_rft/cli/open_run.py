"""The console over the run of `agent-rft train --open`, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer


@contextmanager
def open_console(run: Path, *, resumed: bool) -> Iterator[None]:
    """Opens the console over a run folder in the browser; after the run it stays until Ctrl-C."""
    on_terminal = sys.stdin is not None and sys.stdin.isatty()
    command = [
        sys.executable,
        "-P",
        "-m",
        "agent_rft.serve.host.one_run",
        str(run),
        *(["--resumed"] if resumed else []),
    ]
    # In a session of its own: Ctrl-C is for the training, and the console ends after it, with its standard input.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as console:
        threading.Thread(target=_show, args=[console], daemon=True).start()
        try:
            yield
            if on_terminal and not sys.stdin.isatty():
                return  # the terminal is gone, and Ctrl-C with it
            typer.echo("The console stays open until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                console.wait()
        finally:
            assert console.stdin is not None
            console.stdin.close()
            with suppress(OSError):  # not empty, unless the job was refused
                run.rmdir()


def _show(console: subprocess.Popen[str]) -> None:
    assert console.stdout is not None
    address = console.stdout.readline().strip()  # once the job is checked and its run folder written
    if address:
        typer.echo(f"console:         {address}")
        typer.launch(address)
