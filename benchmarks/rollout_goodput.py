"""Sampled tokens per second of complete multi-turn episodes with slow tools, against the same turns back to back.

    python -m benchmarks.rollout_goodput [--runs 3] [--episodes 640] [--admitted 192] [--median-s 0.2 --p99-s 2]
                                         [--layers 16] [--hidden 1024 --intermediate 3072 --heads 16]

We measure the ledger's test rows on one engine with `--slots` slots, with tools and grader, and `--admitted` concurrent
episodes. The baseline sends the recorded turns (prompts and lengths) to the same engine back to back, without agent and
tools. A second baseline is one plain completion per episode with as many tokens as all its turns. Rates are those of
the steady middle, and each side starts with an empty prefix cache. With `--layers` and the other sizes the base model
is enlarged by parts that change nothing: the same agent at the engine cost of a larger model. The engine has a GPU if
the machine has one. With `--model`, a trained model runs the episodes of `job_gpu.yaml`, with turns of hundreds of
tokens: those of the base model have ten, and on a GPU the agents' Python would limit them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from agent_rft.types import Group, GroupRequest, Rollout, Turn
from benchmarks.common import Figure, report
from benchmarks.enlarged import add_size_options, size_of
from benchmarks.worker import LedgerFleet, Request, ledger_fleet


async def episodes_rate(ledger: LedgerFleet, count: int, admitted: int, epoch: int) -> tuple[float, list[Rollout]]:
    """Tokens per second of `count` episodes, `admitted` at a time, and the episodes in the order of their start."""
    tasks = ledger.prepared.test
    slots = asyncio.Semaphore(admitted)
    ended = 0
    marks = []
    started = time.monotonic()

    async def one(index: int) -> Group:
        nonlocal ended
        request = GroupRequest(tasks[index % len(tasks)], epoch * count + index, index, 1, "test", 1.0)
        async with slots:
            if index == count - 1:
                marks.append(await ledger.worker.mark.remote())
            group = await ledger.fleet.sample(request)
            ended += 1
            if ended == count // 8:
                marks.append(await ledger.worker.mark.remote())
            return group

    groups = await asyncio.gather(*(one(index) for index in range(count)))
    lost = [d.message for group in groups for d in group.discarded]
    if lost:
        raise RuntimeError(f"{len(lost)} episodes were lost: {lost[0]}")
    rollouts = [group.rollouts[0] for group in groups]
    tokens, seconds = sum(r.num_sampled for r in rollouts), time.monotonic() - started
    turns, calls = sum(len(r.turns) for r in rollouts), sum(len(r.calls) for r in rollouts)
    (t0, n0), (t1, n1) = sorted(marks)
    print(
        f"{count} episodes, {turns} turns, {calls} calls, {tokens} tokens in {seconds:.1f} s: {tokens / seconds:.0f} "
        f"tokens/s from start to end, {(n1 - n0) / (t1 - t0):.0f} in the middle {t1 - t0:.1f} s",
        flush=True,
    )
    return (n1 - n0) / (t1 - t0), rollouts


def _prompt(rollout: Rollout, turn: Turn) -> list[int]:
    """What the engine saw before a turn."""
    prompt: list[int] = rollout.segments[turn.segment].token_ids[: turn.start].tolist()
    return prompt


def turns_of(rollouts: Sequence[Rollout], lanes: int) -> list[Request]:
    """All turns of the episodes, in the order in which `lanes` agents with one turn each at a time would send them."""
    lanes_of = (rollouts[lane::lanes] for lane in range(lanes))
    queues = [iter([Request(_prompt(r, t), t.stop - t.start) for r in mine for t in r.turns]) for mine in lanes_of]
    requests: list[Request] = []
    while queues:
        asked = [(queue, list(islice(queue, 1))) for queue in queues]
        requests += [turn for _, turns in asked for turn in turns]
        queues = [queue for queue, turns in asked if turns]
    return requests


async def plain_rate(ledger: LedgerFleet, requests: Sequence[Request], slots: int) -> float:
    """Tokens per second of requests sent to the engine back to back."""
    await ledger.worker.forget.remote()
    ends = sorted(await ledger.worker.complete.remote(requests, at_once=2 * slots))[slots:-slots]
    return float(sum(tokens for _, tokens in ends[1:]) / (ends[-1][0] - ends[0][0]))


async def measure(options: argparse.Namespace) -> list[Figure]:
    latency = []
    if options.median_s > 0:
        latency = ["--latency-median-s", str(options.median_s), "--latency-p99-s", str(options.p99_s)]
    turns_runs, plain_runs = [], []
    size, slots = size_of(options), options.slots
    async with ledger_fleet(slots, *latency, size=size, model=options.model) as ledger:
        await episodes_rate(
            ledger, 2 * options.admitted, options.admitted, epoch=0
        )  # warm-up: adaptive limits grow, code is compiled
        for epoch in range(1, options.runs + 1):
            await ledger.worker.forget.remote()
            ours, rollouts = await episodes_rate(ledger, options.episodes, options.admitted, epoch)
            turns = await plain_rate(ledger, turns_of(rollouts, options.admitted), slots)
            whole = [Request(_prompt(r, r.turns[0]), r.num_sampled) for r in rollouts]
            plain = await plain_rate(ledger, whole, slots)
            print(f"turns back to back {turns:.0f}, one completion per episode {plain:.0f} tokens/s", flush=True)
            turns_runs.append((ours, turns))
            plain_runs.append((ours, plain))
    name = f"rollout_goodput_{options.median_s:g}s_tools"
    if options.model is not None:
        name += "_real_model"
    if size.layers is not None:
        name += f"_{size.layers}_layers"
    if size.hidden is not None:
        name += f"_{size.hidden}_wide"
    return [
        Figure(name, "tokens/s", tuple(turns_runs)),
        Figure(f"{name}_vs_plain", "tokens/s", tuple(plain_runs)),
    ]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=640)
    parser.add_argument("--admitted", type=int, default=192, help="concurrent episodes")
    parser.add_argument("--slots", type=int, default=64, help="sequences that the engine samples at a time")
    parser.add_argument("--median-s", type=float, default=0.2, help="median latency of the tools; 0: no added latency")
    parser.add_argument("--p99-s", type=float, default=2.0)
    parser.add_argument("--model", type=Path, help="folder of a trained model that calls tools, such as Qwen3-4B")
    add_size_options(parser)
    return parser


def main() -> None:
    report(asyncio.run(measure(arguments().parse_args())))


if __name__ == "__main__":
    main()
