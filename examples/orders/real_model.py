"""A real model from its first wrong answers to an agent behind the API: `make real-model`.

    python -m examples.orders.real_model FOLDER [--seed N]

FOLDER is the model. Each step is a command that you could type; all files are written below `build/orders`. The last
lines are a table, which `python -m examples.orders.results` puts into RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final

import httpx
import uvicorn
from openai import OpenAI

from examples.ledger.services import run_command
from examples.orders.agent import converse, shown
from examples.orders.questions import grade
from examples.orders.results import BUILD, stage, table
from examples.orders.server import app

HERE: Final = Path(__file__).parent
AGENT_RFT: Final = str(Path(sys.executable).with_name("agent-rft"))
CONFIG: Final = HERE / "agent-rft.yaml"
NUM_SHOWN: Final = 3


@contextmanager
def shop() -> Iterator[str]:
    """Runs tools and grader on a free port of this machine, and yields their URL."""
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
    """The way of one model, with one seed."""

    def __init__(self, folder: Path, model: Path, url: str, seed: int) -> None:
        self.folder = folder
        self.url = url
        self.environment = {
            **os.environ,
            **{
                "ORDERS_MODEL": str(model),
                "ORDERS_URL": url,
                "ORDERS_SEED": str(seed),
                "AGENT_RFT_CONFIG": str(CONFIG),
            },
        }
        self.stages: list[dict[str, Any]] = []

    def untrained(self) -> None:
        minutes = self._run("eval", HERE / "job.yaml", "--runs", self.folder / "untrained")
        (run,) = (self.folder / "untrained").iterdir()
        self._note("untrained", run, "eval-test", minutes)

    def trained(self) -> Path:
        warm, run = self.folder / "warm_start", self.folder / "reinforcement"
        warm_minutes = self._run("train", HERE / "warm_start.yaml", "--run-folder", warm)
        self.environment["ORDERS_MODEL"] = str(_last_checkpoint(warm))
        minutes = self._run("train", HERE / "job.yaml", "--run-folder", run)
        self._note("after the warm start", run, "test-before", warm_minutes)
        self._note("after reinforcement", run, "test-after", minutes)
        return _last_checkpoint(run)

    def _run(self, command: str, job: Path, *options: str | Path) -> float:
        """Run a command of the CLI; returns its minutes."""
        arguments = [command, str(job), *map(str, options)]
        print(f"\n$ agent-rft {' '.join(arguments)}", flush=True)
        started = time.monotonic()
        if code := run_command([AGENT_RFT, *arguments], self.environment):
            raise SystemExit(code)
        return (time.monotonic() - started) / 60

    def _note(self, name: str, run: Path, evaluation: str, minutes: float) -> None:
        lines = map(json.loads, (run / "evaluations.jsonl").read_text().splitlines())
        (found,) = (line for line in lines if line["name"] == evaluation)
        self.stages.append(stage(name, found, minutes))


def _last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


@contextmanager
def served(folder: Path, model: Path) -> Iterator[OpenAI]:
    """Runs a server whose model `support` is the checkpoint, and yields a client of it."""
    folder.mkdir()
    config = folder / "agent-rft.yaml"
    config.write_text(json.dumps({"aliases": {"support": str(model)}}))
    command = ["serve", "--folder", str(folder / "state"), "--port", "0", "--config", str(config)]
    print(f"\n$ agent-rft {' '.join(command)}", flush=True)
    with subprocess.Popen([AGENT_RFT, *command], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            key = ""
            for line in server.stdout:
                if "API key" in line:
                    key = line.split()[-1]
                if line.startswith("serving at"):
                    yield OpenAI(base_url=line.split()[2], api_key=key)
                    return
            raise SystemExit("the server did not start")
        finally:
            server.send_signal(signal.SIGTERM)


def talk(client: OpenAI, url: str, rows: list[dict[str, Any]]) -> float:
    """Lets the tuned model answer customers, prints the conversations, and returns the mean grade."""

    def execute(name: str, arguments: str) -> str:
        answer = httpx.post(f"{url}/tools/{name}", json={"name": name, "arguments": arguments})
        return str(answer.json()["output"]) if answer.is_success else f"error: {answer.text}"

    total = 0.0
    for row in rows:
        question = row["messages"][-1]
        print(f"\n{shown(question)}")
        for message in converse(client, "support", row["messages"], row["tools"], execute):
            print(shown(message), flush=True)
        total += grade(message.get("content") or "", question["content"], row["values"])
    return total / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.orders.real_model")
    parser.add_argument("model", type=Path, help="the model's folder, in Hugging Face's form")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    folder = BUILD / f"seed-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started, load = time.monotonic(), os.getloadavg()[0]
    with shop() as url:
        way = Way(folder, options.model.resolve(), url, options.seed)
        way.untrained()
        tuned = way.trained()
        rows = [json.loads(line) for line in (HERE / "data" / "test.jsonl").read_text().splitlines()]
        with served(folder / "server", tuned) as client:
            talk(client, url, random.Random(options.seed).sample(rows, NUM_SHOWN))
    minutes = (time.monotonic() - started) / 60
    summary = {"seed": options.seed, "minutes": minutes, "load": [load, os.getloadavg()[2]], "stages": way.stages}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\n{table([summary])}")


if __name__ == "__main__":
    main()
