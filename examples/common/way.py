"""Training of a small model on an example: evaluation, SFT warm-up and reinforcement, each by a command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from examples.common.results import rows_part
from examples.ledger.services import run_command

AGENT_RFT: Final = str(Path(sys.executable).with_name("agent-rft"))


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Context manager that serves tools and graders on a free port of this host, and yields their URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Way:
    """Training of one model with one seed: evaluation, the example's SFT warm-up, and a reinforcement job.

    `variables` are the environment variables of the example's jobs, except for the model's.
    """

    def __init__(self, job: Path, example: Path, folder: Path, model: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self._started, self._load = time.monotonic(), os.getloadavg()[0]
        self.stages: list[dict[str, Any]] = []
        self._example = example
        self._job = job
        self._model = f"{example.name.upper()}_MODEL"
        self._environment = {**os.environ, **variables, self._model: str(model)}

    def untrained(self) -> None:
        minutes = self._run("eval", self._job, "--runs", self.folder / "untrained")
        (run,) = (self.folder / "untrained").iterdir()
        self._note("base model", run, "eval-test", minutes)

    def trained(self) -> Path:
        """Run the SFT warm-up and the reinforcement job; return the folder of the last checkpoint."""
        warm, run = self.folder / "warm_start", self.folder / "reinforcement"
        warm_minutes = self._run("train", self._example / "warm_start.yaml", "--run-folder", warm)
        self._environment[self._model] = str(_last_checkpoint(warm))
        minutes = self._run("train", self._job, "--run-folder", run)
        self._note("after the SFT warm-up", run, "test-before", warm_minutes)
        self._note("after reinforcement", run, "test-after", minutes)
        return _last_checkpoint(run)

    def _run(self, command: str, job: Path, *options: str | Path) -> float:
        """Run a command of the CLI, and return its duration in minutes."""
        arguments = [command, str(job), *map(str, options)]
        print(f"\n$ agent-rft {' '.join(arguments)}", flush=True)
        started = time.monotonic()
        if code := run_command([AGENT_RFT, *arguments], self._environment):
            raise SystemExit(code)
        return (time.monotonic() - started) / 60

    def write_summary(self, seed: int, settings: Iterable[str] = ()) -> Path:
        """Write `summary.json`, which examples.common.results reads, and return its path."""
        summary = {
            "seed": seed,
            "settings": list(settings),
            "cores": os.cpu_count(),
            "minutes": (time.monotonic() - self._started) / 60,
            "load": [self._load, os.getloadavg()[2]],
            "stages": self.stages,
        }
        path = self.folder / "summary.json"
        path.write_text(json.dumps(summary, indent=1) + "\n")
        return path

    def _note(self, name: str, run: Path, evaluation: str, minutes: float) -> None:
        lines = map(json.loads, (run / "evaluations.jsonl").read_text().splitlines())
        (found,) = (line for line in lines if line["name"] == evaluation)
        command = [AGENT_RFT, "traces", str(run), "--name", evaluation, "--json"]
        traces = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        self.stages.append(stage(name, found, minutes) | rows_part(map(json.loads, traces)))


def stage(name: str, evaluation: dict[str, Any], minutes: float) -> dict[str, Any]:
    """Return the name and the results of a stage. `minutes` is the duration of its command."""
    kept = ("num_rows", "grade", "ci95", "pass_rate", "tool_calls", "completion_tokens")
    return {"stage": name, "minutes": minutes, **{key: evaluation[key] for key in kept}}


def _last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())
