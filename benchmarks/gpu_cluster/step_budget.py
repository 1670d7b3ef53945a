"""Long prompts between sampling sequences on one engine, by the token budget of an engine step.

    python -m benchmarks.gpu_cluster.step_budget --model FOLDER [--context 16384] [--prompts 16] [--sequences 64]

The budget is the one of our engines on GPUs, then the full context, with which a prompt is never divided. Memory that
activations do not need becomes cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.engine_memory import max_batched_tokens
from agent_rft.actors.engine.vllm_engine import Engine
from benchmarks.local import dtype_here, gpus_here

SAMPLED = 256
"""Most sampled tokens per sequence."""
SHORT_PROMPT = 32
NAMES = ("8192 tokens", "the context")


async def measure(config: EngineConfig, prompts: int, sequences: int) -> dict[str, tuple[float, str]]:
    """Value and unit of each figure, with all requests in flight together."""
    engine = Engine(config)
    await engine.start()
    sampled = min(SAMPLED, config.context_length // 4)
    ids = np.random.default_rng(0).integers(3, 1000, (prompts + sequences, config.context_length - sampled)).tolist()

    async def ask(index: int, length: int, max_tokens: int) -> tuple[int, float]:
        started = time.monotonic()
        answer = await engine.generate(ids[index][:length], max_tokens=max_tokens, seed=index, temperature=1.0)
        return length + len(answer.token_ids), time.monotonic() - started

    try:
        cache = engine.async_llm_client.vllm_config.cache_config
        started = time.monotonic()
        short = [asyncio.create_task(ask(prompts + i, SHORT_PROMPT, sampled)) for i in range(sequences)]
        long = [asyncio.create_task(ask(i, len(ids[i]), 1)) for i in range(prompts)]
        done, others = await asyncio.gather(*short), await asyncio.gather(*long)
        elapsed = time.monotonic() - started
        return {
            "prompt and sampled tokens": (sum(tokens for tokens, _ in (*done, *others)) / elapsed, "tokens/s"),
            "time of a sampling sequence": (float(np.mean([seconds for _, seconds in done])), "s"),
            "cache": (float(cache.num_gpu_blocks * cache.block_size), "tokens"),
        }
    finally:
        engine.shutdown()


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--context", type=int, default=16_384)
    parser.add_argument("--prompts", type=int, default=16, help="long prompts, which fill the context")
    parser.add_argument("--sequences", type=int, default=64, help="short prompts, which sample")
    return parser


def main() -> None:
    options = arguments().parse_args()
    slots, gpus = options.prompts + options.sequences, min(1, gpus_here())
    config = EngineConfig(str(options.model), dtype_here(), options.context, slots, 0, gpus=gpus)
    budgets = (max_batched_tokens(options.context, slots, on_gpu=gpus > 0), max(options.context, slots))
    for name, budget in zip(NAMES, budgets, strict=True):
        found = asyncio.run(measure(replace(config, batched_tokens=budget), options.prompts, options.sequences))
        for what, (value, unit) in found.items():
            line = {"name": f"step of {name}: {what}", "value": value, "unit": unit, "budget": budget}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
