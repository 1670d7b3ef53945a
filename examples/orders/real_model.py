"""Trains a real model from wrong first answers to an agent behind the API: `make real-model`.

    python -m examples.orders.real_model FOLDER [--seed N]

FOLDER is the model. Each step is a command that you could type. All files are written below `build/orders`. The last
lines are a table, which `python -m examples.common.results orders` writes to RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from openai import OpenAI

from examples.common.agent import converse, shown
from examples.common.results import BUILD, table
from examples.common.way import AGENT_RFT, Way, listening
from examples.orders.questions import grade
from examples.orders.server import app

HERE: Final = Path(__file__).parent
NUM_SHOWN: Final = 3


@contextmanager
def served(folder: Path, model: Path) -> Iterator[OpenAI]:
    """Context manager that runs a server whose model `support` is the checkpoint, and yields a client."""
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
    """Let the tuned model answer customers, print the conversations, and return the mean grade."""

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
    folder = BUILD / "orders" / f"seed-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with listening(app) as url:
        variables = {"ORDERS_URL": url, "ORDERS_SEED": str(options.seed)}
        way = Way(HERE / "job.yaml", HERE, folder, options.model.resolve(), variables)
        way.untrained()
        tuned = way.trained()
        rows = [json.loads(line) for line in (HERE / "data" / "test.jsonl").read_text().splitlines()]
        with served(folder / "server", tuned) as client:
            talk(client, url, random.Random(options.seed).sample(rows, NUM_SHOWN))
    summary = json.loads(way.write_summary(options.seed).read_text())
    print(f"\n{table([summary])}")


if __name__ == "__main__":
    main()
