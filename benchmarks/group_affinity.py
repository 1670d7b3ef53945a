"""Prompt tokens that two engines compute per step, with rollouts kept at the engine of their group and without.

    python -m benchmarks.group_affinity [--runs 3] [--steps 1] [--groups 8] [--size 8] [--prompt-tokens 1000]

Both engines are real, with one core each. A step samples `--groups` groups of `--size` rollouts of the ledger's agent,
all at once as after a weight update, with tools and grader. Each row's question follows a text of its own with about
`--prompt-tokens` tokens (0: no text). The baseline starts one group after the other, and gives each rollout to the
engine with the fewest in flight. Both sides get the same rows and begin with empty prefix caches.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace

from agent_rft.actors.rollout.engine_assignment import EngineLoad, GroupAffinity, GroupKey, find_idlest
from agent_rft.types import Group, GroupRequest, Task
from benchmarks.common import Figure, report
from benchmarks.worker import LedgerFleet, ledger_fleets

SLOTS = 64
ENGINES = 2
LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Chooser:
    """Assigns rollouts by the group of each or, while `by_load` is set, by load only."""

    def __init__(self) -> None:
        self.by_load = False
        self._by_group = GroupAffinity(SLOTS)

    def __call__(self, loads: Sequence[EngineLoad], group: GroupKey) -> int:
        return (find_idlest if self.by_load else self._by_group)(loads, group)


def with_prompt(task: Task, tokens: int) -> Task:
    """Put a text before the question of a row; the base model's tokenizer has about one token per letter."""
    text = "".join(random.Random(task.row_id).choices(LETTERS, k=tokens))
    first, *rest = task.messages
    return replace(task, messages=({**first, "content": f"{text} {first['content']}"}, *rest)) if tokens else task


async def sample(ledger: LedgerFleet, requests: Sequence[GroupRequest], one_by_one: bool) -> list[Group]:
    """Sample the groups of a step; `one_by_one` assigns all rollouts of a group before the next group starts."""
    sampling: list[asyncio.Task[Group]] = []
    for request in requests:
        sampling.append(asyncio.create_task(ledger.fleet.sample(request)))
        for _ in range(2 * request.size * one_by_one):  # turns of the event loop: a group starts a rollout in each
            await asyncio.sleep(0)
    return await asyncio.gather(*sampling)


async def side(ledger: LedgerFleet, chooser: Chooser, options: argparse.Namespace, by_load: bool, run: int) -> float:
    """Prompt tokens computed per step."""
    chooser.by_load = by_load
    for worker in ledger.workers:
        await worker.forget.remote()
    before = await computed(ledger)
    started = time.monotonic()
    rows = ledger.prepared.tasks
    for step in range(options.steps):
        indexes = [step * options.groups + i for i in range(options.groups)]
        tasks = [with_prompt(rows[index % len(rows)], options.prompt_tokens) for index in indexes]
        epoch = run * options.steps + step
        requests = [
            GroupRequest(task, epoch, i, options.size, "train", 1.0) for i, task in zip(indexes, tasks, strict=True)
        ]
        groups = await sample(ledger, requests, one_by_one=by_load)
        if lost := [lost.message for group in groups for lost in group.discarded]:
            raise RuntimeError(f"{len(lost)} rollouts were lost: {lost[0]}")
    seconds = (time.monotonic() - started) / options.steps
    each = [(a - b) / options.steps for a, b in zip(await computed(ledger), before, strict=True)]
    how = "by load" if by_load else "by group"
    print(f"{how}: {sum(each):,.0f} prompt tokens computed per step ({each}), {seconds:.2f} s per step", flush=True)
    return float(sum(each))


async def computed(ledger: LedgerFleet) -> list[int]:
    """The prompt tokens that each engine has computed."""
    return [await worker.computed_prompt_tokens.remote() for worker in ledger.workers]


async def measure(options: argparse.Namespace) -> Figure:
    chooser = Chooser()
    runs: list[tuple[float, float]] = []
    async with ledger_fleets(SLOTS, [None], engines=ENGINES, assign=chooser) as (ledger,):
        for run in range(options.runs):
            ours = await side(ledger, chooser, options, by_load=False, run=run)
            runs.append((ours, await side(ledger, chooser, options, by_load=True, run=run)))
    return Figure(f"prompt_tokens_computed_{options.prompt_tokens}", "tokens/step", tuple(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1, help="steps of each run")
    parser.add_argument("--groups", type=int, default=8, help="groups of a step")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group")
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="tokens before the row's question")
    report([asyncio.run(measure(parser.parse_args()))])


if __name__ == "__main__":
    main()
