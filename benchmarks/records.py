"""Records at scale: what recording a step costs, what reading costs, and how much memory both take.

    python -m benchmarks.records [--rollouts 100000] [--per-step 128] [--tokens 300] [--runs 5] [--folder DIR]

The figures compare a step's record with the index to one without; the training path only hands it over. Before, a run
of many rollouts (of 30 tokens, which do not matter for the index) is written and read, with the most memory so far
after each part: a million should take what a hundred thousand take.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import Order, RolloutIndex
from agent_rft.cluster.records.row_rewards import compute_row_rewards
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.traces import find_traces
from agent_rft.rows.rollout_files import ROLLOUTS_SUFFIX, write_groups
from agent_rft.types import Group, ToolCall, ToolResult, Turn
from benchmarks.common import Figure, in_turn, report, seconds
from benchmarks.write_ahead import SIZE, made

TOOLS = ("search", "cat", "list")
IN_QUEUE = 8
"""Steps that wait to be written: a run's steps take far longer than their records, so none wait there."""


def step(number: int, groups: list[Group]) -> list[Group]:
    """The groups of another step: other trace ids, grades and tools."""
    return [
        replace(
            group,
            rollouts=tuple(
                replace(
                    rollout,
                    trace_id=f"trace_{number:08x}_{group.request.index}_{rollout.sample}",
                    grade=replace(rollout.grade, value=(number * 7 + rollout.sample) % 101 / 100),
                    turns=(_called(rollout.turns[0], TOOLS[(number + rollout.sample) % 3]),),
                )
                for rollout in group.rollouts
            ),
        )
        for group in groups
    ]


def _called(turn: Turn, tool: str) -> Turn:
    return replace(turn, calls=(ToolCall("c", tool, "{}"),), results=(ToolResult("c", "found"),))


def recording(folder: Path, groups: list[Group], runs: int) -> list[Figure]:
    """A step's record with the index against one without, and the time until the caller goes on."""
    (folder / "rollouts").mkdir(parents=True)
    index, run, count = RolloutIndex(folder), RunFolder(folder / "run"), iter(range(10**6))

    def without() -> float:
        path = folder / "rollouts" / f"step-{next(count):06d}{ROLLOUTS_SUFFIX}"
        return seconds(lambda: write_groups(path, groups))

    def indexed() -> float:
        name = f"step-{next(count):06d}"
        path = folder / "rollouts" / (name + ROLLOUTS_SUFFIX)
        return seconds(lambda: index.add_file(name, groups, write_groups(path, groups)))

    both = in_turn(indexed, without, runs + 1)[1:]
    handed_over = in_turn(lambda: seconds(lambda: run.handle_groups(f"step-{next(count):06d}", groups)), without, runs)
    run.close()
    return [Figure("record_with_index", "s", both), Figure("record_handed_over", "s", handed_over)]


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def say(what: str, took_s: float) -> None:
    print(f"{what:44}{took_s:10.3f} s   at most {memory_mb():,.0f} MB", flush=True)


def write(folder: Path, groups: list[Group], rollouts: int) -> str:
    """Write a run; returns a trace id from its middle."""
    steps = rollouts // sum(len(group.rollouts) for group in groups)
    for first in range(0, steps, IN_QUEUE):
        run = RunFolder(folder)
        for number in range(first, min(first + IN_QUEUE, steps)):
            run.handle_groups(f"step-{number:06d}", step(number, groups))
        run.close()
    return f"trace_{steps // 2:08x}_0_0"


def queries(trace: str) -> Iterator[tuple[str, RolloutFilter, Order, int | None]]:
    yield "one rollout by its trace id", RolloutFilter(trace=trace), "oldest", None
    yield "the ten best that called a tool", RolloutFilter(tool="cat", max_grade=0.9), "best", 10
    yield "the first ten of a row with a grade", RolloutFilter(row="3", min_grade=0.5), "oldest", 10
    yield "one step", RolloutFilter(step=1), "oldest", None
    yield "a text that none has", RolloutFilter(text="nowhere"), "best", 1
    yield "all rollouts, one after the other", RolloutFilter(), "oldest", None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--per-step", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    num_groups = options.per_step // SIZE
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = recording(Path(folder) / "one", [made(i, options.tokens) for i in range(num_groups)], options.runs)
        path, small = Path(folder) / "many", [made(i, 30) for i in range(num_groups)]
        say("at the start", 0.0)
        began = time.perf_counter()
        trace = write(path, small, options.rollouts)
        say(f"{options.rollouts:,} rollouts written", time.perf_counter() - began)
        run = RunFolder(path)
        for what, wanted, order, limit in queries(trace):
            began = time.perf_counter()
            count = sum(1 for _ in find_traces(run, wanted, order, limit))
            say(f"{what} ({count:,})", time.perf_counter() - began)
        began = time.perf_counter()
        rows = compute_row_rewards(run.index, RolloutFilter(), "worst")
        say(f"the rewards of each row ({len(rows):,})", time.perf_counter() - began)
        size = sum(file.stat().st_size for file in (path / "rollouts").iterdir())
        print(f"{size / 1e6:,.0f} MB of rollouts, {(path / 'rollouts.sqlite').stat().st_size / 1e6:,.0f} MB of index")
        (path / "rollouts.sqlite").unlink()
        began = time.perf_counter()
        RunFolder(path).index.catch_up()
        say("the index rebuilt from the files", time.perf_counter() - began)
    report(figures)


if __name__ == "__main__":
    main()
