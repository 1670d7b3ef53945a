"""An engine and a learner rank that take turns on one GPU: what each leaves there, and how long a change takes.

    python -m benchmarks.gpu_cluster.one_gpu --model FOLDER [--tokens 256]

Both are in turn asleep. Afterwards the engine must sample the same tokens as before, and the learner compute the same
log-probabilities. Then the engine is asleep twice more, and wakes up for an update: once its weights were kept in host
memory, once they were discarded. On CPUs nothing moves, so only equality is shown there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES
from benchmarks.gpu_cluster.agreement import prompts
from benchmarks.local import dtype_here, gpus_here

SEQUENCES = 8
WEIGHTS = ("kept", "discarded")
"""vLLM's sleep levels 1 and 2."""
SHARE = 0.8
"""The engine's part of the GPU in its turn; the CUDA context of the learner needs the rest."""


class Measured:
    """Prints each figure as a line."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu

    def say(self, name: str, value: float, unit: str) -> None:
        print(json.dumps({"name": f"one GPU: {name}", "value": value, "unit": unit}), flush=True)

    def used_gib(self) -> float:
        """GiB that all processes together use of the GPU."""
        if not self._on_gpu:
            return 0.0
        free, total = torch.cuda.mem_get_info()
        return (total - free) / GIB

    def seconds(self, what: str, started: float) -> None:
        self.say(what, time.monotonic() - started, "s")


def _timed(measured: Measured, what: str, work: Callable[[], None]) -> None:
    started = time.monotonic()
    work()
    measured.seconds(what, started)


async def take_turns(model: Path, tokens: int) -> None:
    on_gpu = gpus_here() > 0
    measured = Measured(on_gpu)
    asked = prompts(model, SEQUENCES)
    ids = np.array(asked[0], np.int32)
    rank = LearnerRank(LearnerConfig(model, steps=1, learning_rate=1e-6, dtype=dtype_here(), on_gpu=on_gpu))
    before = rank.logprobs(ids)
    measured.say("learner awake", measured.used_gib(), "GiB")
    layouts = rank.bucket_plan(MAX_BUCKET_BYTES)
    buckets = []
    for index, layout in enumerate(layouts):
        bucket = rank.gather_bucket(index)
        assert bucket is not None
        buckets.append((bucket.copy(), layout))  # the next one is gathered into the same memory
    _timed(measured, "learner falls asleep", rank.offload)
    measured.say("left by a learner asleep", measured.used_gib(), "GiB")
    context = max(map(len, asked)) + tokens + 8
    engine = Engine(
        EngineConfig(
            str(model), dtype_here(), context, SEQUENCES, 0, gpus=int(on_gpu), gpu_share=SHARE, can_offload=True
        )
    )
    await engine.start()
    await engine.init_transport({})

    async def sample() -> list[list[int]]:
        made = (engine.generate(p, max_tokens=tokens, seed=i, temperature=1.0) for i, p in enumerate(asked))
        return [completion.token_ids for completion in await asyncio.gather(*made)]

    async def update(version: int) -> None:
        for bucket, layout in buckets:
            engine.stage_bucket(bucket, layout)
        await engine.load_staged(version)

    try:
        await update(1)  # as between turns: what is loaded then must be released, too
        sampled = await sample()
        measured.say("engine awake", measured.used_gib(), "GiB")
        started = time.monotonic()
        await engine.offload()
        measured.seconds("engine falls asleep", started)
        measured.say("left by both asleep", measured.used_gib(), "GiB")
        _timed(measured, "learner wakes up", rank.reload)
        measured.say("largest difference after sleep", float(np.abs(rank.logprobs(ids) - before).max()), "nats")
        rank.offload()
        started = time.monotonic()
        await engine.reload()
        measured.seconds("engine wakes up", started)
        same = np.mean([a == b for a, b in zip(sampled, await sample(), strict=True)])
        measured.say("equal samples after sleep", float(same), "share")
        for version, what in enumerate(WEIGHTS, start=2):
            started = time.monotonic()
            await engine.offload(discards=what == "discarded")
            measured.seconds(f"engine falls asleep, weights {what}", started)
            started = time.monotonic()
            await engine.reload()
            await update(version)
            measured.seconds(f"engine wakes up for an update, weights {what}", started)
            same = np.mean([a == b for a, b in zip(sampled, await sample(), strict=True)])
            measured.say(f"equal samples, weights {what}", float(same), "share")
    finally:
        engine.shutdown()


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=256, help="sampled tokens per sequence")
    return parser


def main() -> None:
    options = arguments().parse_args()
    asyncio.run(take_turns(options.model, options.tokens))


if __name__ == "__main__":
    main()
