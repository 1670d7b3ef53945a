"""Tools and grader as a child process with a new token, for the duration of a `with` block."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from examples.ledger.server import TOKEN_VARIABLE

START_TIMEOUT_S = 60.0


@contextmanager
def services(*options: str) -> Iterator[dict[str, str]]:
    """Context manager that starts servers with `options`, and yields an environment with their URLs and token.

    Raises:
        RuntimeError: The servers did not start.
    """
    environment = os.environ | {TOKEN_VARIABLE: secrets.token_urlsafe(24)}
    with tempfile.TemporaryDirectory() as folder:
        ports_file = Path(folder) / "ports.json"
        command = [sys.executable, "-m", "examples.ledger.server", "--ports-file", str(ports_file), *options]
        # A new session: Ctrl-C in the terminal is for the trainer to handle, and the servers must outlive it.
        with subprocess.Popen(command, env=environment, start_new_session=True) as server:
            try:
                ports = _wait_for(ports_file, server)
                yield environment | {
                    "LEDGER_TOOLS_URL": f"http://127.0.0.1:{ports['tools_port']}",
                    "LEDGER_GRADER_URL": f"http://127.0.0.1:{ports['grader_port']}",
                }
            finally:
                server.terminate()


def _wait_for(ports_file: Path, server: subprocess.Popen[bytes]) -> dict[str, int]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the servers exited while starting, with code {server.returncode}")
        if ports_file.exists():
            ports: dict[str, int] = json.loads(ports_file.read_text())
            return ports
        time.sleep(0.05)
    raise RuntimeError(f"the servers were not listening after {START_TIMEOUT_S:g} s")


def run_with_services(command: Sequence[str], *options: str) -> int:
    """Run a command while the servers run, and return its exit code. The command handles Ctrl-C."""
    with services(*options) as environment:
        return run_command(command, environment)


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command that handles Ctrl-C, and return its exit code."""
    child = subprocess.Popen(command, env=environment)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue  # the child received it too, and shuts down cleanly
