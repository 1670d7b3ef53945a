"""Does the verdict before training foretell the gain? Ten variations of the ledger: `agent-rft ready`, then training.

    python -m benchmarks.readiness [--tasks ledger noise] [--seed 7]

The gain is that of the held-out grader, the ledger's own, on 120 test rows; its 95 % interval is paired by row. A
verdict is right if it is `train` and the interval lies above 0, or another one and it does not. A training that is
halted, for example without any signal, gains nothing. Aim: nine of ten, with three on each side.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.metrics.confidence_intervals import Interval, paired_interval
from agent_rft.types import Group
from benchmarks.common import print_figure
from benchmarks.ledger_seeds import job_of
from examples.ledger.questions import grade
from examples.ledger.services import services

Row = dict[str, Any]
TRAIN_ROWS, TEST_ROWS = 160, 120
"""Ten steps of a training; 120 rows show a gain of 0.1."""
NEW_NAME = "_v2"
WANTED, EACH_SIDE = 0.9, 3


# -- graders: the answer and the row -> a grade ------------------------------------------------------------------------


def true(answer: str, row: Row) -> float:
    return grade(answer, row["reference_answer"])


def slightly_noisy(answer: str, row: Row) -> float:
    return true(answer, row) + random.gauss(0.0, 0.1)


def noise(answer: str, row: Row) -> float:
    return random.random()


def first_digit(answer: str, row: Row) -> float:
    """Rewards what has nothing to do with the question, and is easily made."""
    return int(answer[0]) / 9 if answer[:1].isdigit() else 0.0


def any_number(answer: str, row: Row) -> float:
    return float(any(character.isdigit() for character in answer))


def never(answer: str, row: Row) -> float:
    """What the model cannot do: the answer in other words than its vocabulary has."""
    return float(answer == f"EUR {row['reference_answer']}")


def both_ways(answer: str, row: Row) -> float:
    return 1.0 - true(answer, row) if row.get("negated") else true(answer, row)


GRADERS: dict[str, Callable[[str, Row], float]] = {
    made.__name__: made for made in (true, slightly_noisy, noise, first_digit, any_number, never, both_ways)
}


# -- tasks -------------------------------------------------------------------------------------------------------------


def unknown_tools(rows: Sequence[Row]) -> list[Row]:
    """The tools under names that the model has never seen; its prompt does not show them."""

    def renamed(tool: dict[str, Any]) -> dict[str, Any]:
        function = tool["function"]
        return tool | {"function": function | {"name": f"{function['name']}{NEW_NAME}"}}

    return [row | {"tools": list(map(renamed, row["tools"]))} for row in rows]


def negated(rows: Sequence[Row]) -> list[Row]:
    """Each of half of the rows twice: once what is right is right, once what is wrong."""
    half = rows[: len(rows) // 2]
    return [changed for row in half for changed in (row, row | {"negated": True})]


@dataclass(frozen=True, slots=True)
class Variation:
    """One task: what differs from the ledger."""

    name: str
    grader: str = "true"
    rows: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows
    settings: dict[str, Any] = field(default_factory=dict)
    tool_suffix: str = ""


TASKS = (
    Variation("ledger"),
    Variation("noise", "slightly_noisy"),
    Variation("few rows", rows=lambda rows: rows[:10], settings={"hyperparameters.n_epochs": 16}),
    Variation(
        "two values",
        rows=lambda rows: [row for row in rows if row["kind"] == "two"],
        settings={"hyperparameters.n_epochs": 2},
    ),
    Variation("too easy", "any_number"),
    Variation("too hard", "never"),
    Variation("all noise", "noise"),
    Variation("hackable", "first_digit"),
    Variation("contradictory", "both_ways", negated),
    Variation("unknown tools", rows=unknown_tools, tool_suffix=NEW_NAME),
)


# -- one task ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict, and what the training came to; `gain` is None if it was halted."""

    task: str
    verdict: str
    codes: tuple[str, ...]
    gain: Interval | None
    ready_s: float
    train_s: float

    @property
    def gained(self) -> bool:
        return self.gain is not None and self.gain.low > 0

    @property
    def right(self) -> bool:
        return (self.verdict == "train") == self.gained


def write_job(task: Variation, seed: int, grader_url: str, folder: Path) -> Path:
    """The job of a task in a folder, with its rows."""
    headers = {"Authorization": "Bearer ${LEDGER_TOKEN}"}
    held_out = {"type": "endpoint", "url": "${LEDGER_GRADER_URL}/grade", "headers": headers}
    settings = {
        "grader": {"type": "endpoint", "url": f"{grader_url}/{task.grader}"},
        "held_out_grader": held_out,
        "hyperparameters.n_epochs": 1,
        "reward": {},  # the grade alone, so that its gain is what is trained for
    }
    job = job_of(seed, "data/train.jsonl", settings | task.settings)
    for tool in job["method"]["reinforcement"]["tools"]:
        tool["name"] += task.tool_suffix
    job["validation_file"] = None
    for name, count in (("training_file", TRAIN_ROWS), ("test_file", TEST_ROWS)):
        rows = [json.loads(line) for line in Path(job[name]).read_text().splitlines()]
        chosen = (task.rows(rows) if name == "training_file" else task_of_test(task, rows))[:count]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
        job[name] = f"{name}.jsonl"
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def task_of_test(task: Variation, rows: Sequence[Row]) -> Sequence[Row]:
    """The test rows offer the task's tools, and are otherwise the ledger's."""
    return task.rows(rows) if task.tool_suffix else rows


def measure(task: Variation, seed: int, environment: dict[str, str], grader_url: str) -> Result:
    """Ask for the verdict, then train. Everything stays in the system's temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="agent-rft-ready-"))
    job = write_job(task, seed, grader_url, folder)
    program = str(Path(sys.executable).with_name("agent-rft"))

    def run(command: str, *options: str) -> tuple[subprocess.CompletedProcess[str], float]:
        started = time.monotonic()
        words = [program, command, str(job), "--runs", str(folder / command), *options]
        ended = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True)
        return ended, time.monotonic() - started

    ready, ready_s = run("ready", "--json")
    if ready.returncode not in (0, 4):
        raise SystemExit(f"{task.name}: agent-rft ready ended with {ready.returncode}; see {folder}")
    found = json.loads(ready.stdout)
    _, train_s = run("train")
    (path,) = (folder / "train").iterdir()
    codes = tuple(reason["code"] for reason in found["reasons"] if reason["decides"])
    return Result(task.name, found["verdict"], codes, gain_of(RunFolder(path)), ready_s, train_s)


def gain_of(run: RunFolder) -> Interval | None:
    """The change of the held-out grade over test rows; None if the test file was not graded twice."""
    if not {"test-before", "test-after"} <= set(run.rollout_names()):
        return None
    before, after = (_held_out(run.read_groups(name)) for name in ("test-before", "test-after"))
    rows = sorted(before.keys() & after.keys())
    return paired_interval([before[row] for row in rows], [after[row] for row in rows])


def _held_out(groups: Sequence[Group]) -> dict[str, float]:
    """Row -> mean held-out grade of its rollouts that have one."""
    graded = {g.request.task.row_id: [r.grade.held_out for r in g.rollouts] for g in groups}
    known = {row: [grade for grade in grades if grade is not None] for row, grades in graded.items()}
    return {row: fmean(grades) for row, grades in known.items() if grades}


@contextmanager
def graders() -> Iterator[str]:
    """Serves GRADERS on this machine, each at its name; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            score = GRADERS[self.path.strip("/")](body["sample"]["output_text"], body["item"])
            answer = json.dumps({"score": score}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in TASKS], default=None)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    chosen = [task for task in TASKS if options.tasks is None or task.name in options.tasks]
    results = []
    print("| task | verdict | reasons | gain of the held-out grade | right | ready s | training s |")
    print("|---|---|---|---|---|---|---|")
    with services() as environment, graders() as url:
        for task in chosen:
            found = measure(task, options.seed, environment, url)
            results.append(found)
            gain = "halted" if found.gain is None else found.gain.format("{:+.3f}")
            print(
                f"| {found.task} | {found.verdict} | {', '.join(found.codes)} | {gain} "
                f"| {'yes' if found.right else 'no'} | {found.ready_s:.0f} | {found.train_s:.0f} |",
                flush=True,
            )
    right, gained = sum(r.right for r in results), sum(r.gained for r in results)
    print_figure("verdicts that were right", right, "tasks", of=len(results))
    print(f"{right} of {len(results)} right; {gained} gained; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    enough = right >= WANTED * len(results)
    if len(results) == len(TASKS):
        enough &= min(gained, len(results) - gained) >= EACH_SIDE
    sys.exit(0 if enough else 1)


if __name__ == "__main__":
    main()
