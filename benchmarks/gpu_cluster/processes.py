"""Runs a command with a time limit, and ends it with all its descendants, however they were started."""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

MARK = "AGENT_RFT_GPU_PART"
"""Environment variable of a command and of all its descendants."""
KILL_TIMEOUT_S = 10.0


def run_limited(
    command: Sequence[str], log: Path, limit_s: float, on_line: Callable[[str], None], environment: Mapping[str, str]
) -> str | None:
    """Run a command; returns None, or why it failed. None of its processes is left, on errors and Ctrl-C neither.

    `on_line` gets each line of its standard output at once; both outputs go to `log`.
    """
    mark = secrets.token_hex(16)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            env={**environment, MARK: mark},
            start_new_session=True,
        )
        assert child.stdout is not None
        reader = threading.Thread(target=_read, args=(child.stdout, file, on_line), daemon=True)
        reader.start()
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"it had not finished after {limit_s:g} s"
        finally:
            _end(child, mark)
            reader.join(KILL_TIMEOUT_S)
    return None if code == 0 else f"it ended with code {code}"


def _read(output: IO[bytes], log: IO[bytes], on_line: Callable[[str], None]) -> None:
    with output:
        for line in output:
            log.write(line)
            log.flush()
            on_line(line.decode(errors="replace"))


def _end(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the command's processes; those whose parent is gone are found by their environment."""
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    for _ in range(2):  # the second time for those that were started meanwhile
        family += [process for process in psutil.process_iter() if _mark_of(process) == mark]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    psutil.wait_procs(family, KILL_TIMEOUT_S)
    child.wait()


def _mark_of(process: psutil.Process) -> str | None:
    if process.pid == os.getpid():
        return None
    try:
        return process.environ().get(MARK)
    except psutil.Error:  # it has exited, or belongs to another user
        return None
