"""Goes from three Python functions and a CSV file to the first step of training, and prints how long each step took.

    python -m examples.fifteen_minutes [FOLDER] [--model MODEL --template FILE]

Each step is a command that you could type. The project and its run are written to FOLDER, which must not exist
(default: build/fifteen_minutes). The model is the ledger example's small model, or a real one with a chat template that
renders tools, such as the template of examples/orders.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import yaml

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = Path(__file__).with_name("ledger_tools.py")
ROWS: Final = ROOT / "examples" / "ledger" / "data" / "train.jsonl"
AGENT_RFT: Final = str(Path(sys.executable).with_name("agent-rft"))
BUILD: Final = ROOT / "build" / "fifteen_minutes"
POLL_S: Final = 0.2
SMALL_STEPS: Final[dict[str, Any]] = {
    "hyperparameters": {"batch_size": 2, "compute_multiplier": 0.5},
    "limits": {"max_tool_calls": 4, "max_completion_tokens": 200},
}
"""Settings for a real model on two cores: eight short rollouts per step."""
TURNS: Final = {
    "colocated": True,
    "engine_cores": 2,
    "rank_cores": 2,
    "context_length": 1024,
    "micro_batch_tokens": 2048,
}
"""Settings with which engine and learner share both cores by time-sharing, within 24 GB of memory."""


class Steps:
    """Runs the steps, and records the duration of each step."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        yield
        self.times.append((name, time.monotonic() - started))

    def run(self, name: str, command: list[str], folder: Path) -> None:
        """Run a step that is one command, which must succeed."""
        with self.step(name):
            print("$", " ".join(command), flush=True)
            subprocess.run(command, cwd=folder, check=True)

    def table(self) -> str:
        lines = [f"{name:44}{seconds:7.1f} s" for name, seconds in self.times]
        return "\n".join([*lines, f"{'in all':44}{sum(seconds for _, seconds in self.times):7.1f} s"])


def write_questions(path: Path) -> None:
    """Write a CSV file as a user might have it: one question and its answer per line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("question", "reference_answer", "kind"))
        for line in ROWS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            writer.writerow((row["messages"][-1]["content"], row["reference_answer"], row["kind"]))


@contextmanager
def served(project: Path, listener: socket.socket) -> Iterator[None]:
    """Context manager that runs the project's server on our socket, and yields when the server answers."""
    number, port = listener.fileno(), listener.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "server:app", "--fd", str(number), "--log-level", "warning"]
    with subprocess.Popen(command, cwd=project, pass_fds=[number], start_new_session=True) as server:
        try:
            # The socket takes connections already; the answer comes once the server runs.
            with urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=120) as answer:
                assert answer.status == 200
            yield
        finally:
            server.terminate()


def adapt(job: Path, template: Path) -> None:
    """Set the job's chat template, and limits with which a real model can train on two cores."""
    written = yaml.safe_load(job.read_text(encoding="utf-8"))
    written["model_options"] = {"chat_template": str(template.resolve())}
    del written["test_file"]
    written["method"]["reinforcement"] |= SMALL_STEPS
    written["cluster"] = TURNS
    job.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")


def train_one_step(project: Path) -> None:
    """Start the training, wait for its first step, and stop it as Ctrl-C does, with a checkpoint."""
    metrics = project / "run" / "metrics.jsonl"
    command = [AGENT_RFT, "train", "job.yaml", "--run-folder", "run"]
    with subprocess.Popen(command, cwd=project, start_new_session=True) as training:
        try:
            while training.poll() is None and not (metrics.exists() and metrics.read_text().count("\n")):
                time.sleep(POLL_S)
        finally:
            training.send_signal(signal.SIGINT)
    if not metrics.exists():
        raise SystemExit(f"the training ended with exit code {training.returncode} before its first step")


def main() -> None:
    """Run all steps and print their times."""
    parser = argparse.ArgumentParser(prog="python -m examples.fifteen_minutes", description=__doc__)
    parser.add_argument("folder", nargs="?", type=lambda path: Path(path).resolve(), help="a new one")
    parser.add_argument("--model", help="a folder or name (default: the ledger example's toy)")
    parser.add_argument("--template", type=Path, help="a chat template with tools, for a model whose own has none")
    options = parser.parse_args()
    if (folder := options.folder) is None:
        folder = BUILD
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        parser.error(f"{folder} exists: give a folder that does not exist yet")
    folder.mkdir(parents=True)
    project, questions, steps = folder / "project", folder / "questions.csv", Steps()
    write_questions(questions)
    model = [] if options.model is None else ["--model", options.model]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        init = [AGENT_RFT, "init", str(project), "--from", str(TOOLS), "--from", str(questions), *model, "--port", port]
        steps.run("write the project", init, ROOT)
        if options.template is not None:
            adapt(project / "job.yaml", options.template)
        with served(project, listener):
            steps.run("test the grader", [sys.executable, "-m", "unittest", "-q", "test_grader"], project)
            steps.run("check the job", [AGENT_RFT, "check", "job.yaml"], project)
            with steps.step("train, to the end of the first step"):
                train_one_step(project)
    print(f"\n{steps.table()}")


if __name__ == "__main__":
    main()
