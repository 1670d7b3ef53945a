"""How far a mixture of experts is from its engine, with the learner's own choice of experts and with the engine's.

    python -m benchmarks.router_replay [--layers 8] [--experts 64] [--chosen 8]

A random model with the layers of Qwen3's mixtures, in bfloat16 in both, as on GPUs: engine and learner then round
differently. Each sampled token has its log-probability by the engine and by the learner.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.trainer.model.policy import load_policy
from benchmarks.common import print_figure
from tests.support.experts import Sampled, gaps
from tests.support.shapes import tiny_shape
from tests.support.tiny_model import write_tiny_model

NUM_PROMPT, NUM_SAMPLED, NUM_SEQUENCES = 64, 192, 16


async def sample(folder: Path) -> list[Sampled]:
    """Prompts and their completions by an engine in bfloat16."""
    engine = Engine(EngineConfig(str(folder), "bfloat16", 1024, max_num_seqs=16, seed=0, reports_experts=True))
    random = np.random.default_rng(1)

    async def one(seed: int, prompt: list[int]) -> Sampled:
        return prompt, await engine.generate(prompt, max_tokens=NUM_SAMPLED, seed=seed, temperature=1.0)

    try:
        await engine.start()
        prompts = [random.integers(0, 256, NUM_PROMPT).tolist() for _ in range(NUM_SEQUENCES)]
        return await asyncio.gather(*(one(*numbered) for numbered in enumerate(prompts)))
    finally:
        engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--chosen", type=int, default=8)
    options = parser.parse_args()
    sizes: dict[str, Any] = {
        "num_hidden_layers": options.layers,
        "layer_types": None,
        "num_experts": options.experts,
        "num_experts_per_tok": options.chosen,
        "hidden_size": 256,
        "moe_intermediate_size": 64,
    }
    print("| experts | tokens | mean gap | 95th percentile | largest |")
    print("|---|---|---|---|---|")
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_shape("qwen3_moe", **sizes).to(torch.bfloat16).save_pretrained(write_tiny_model(folder))
        found, policy = asyncio.run(sample(folder)), load_policy(folder, torch.bfloat16, 1.0)
        for replayed in (False, True):
            gap = gaps(policy, found, replayed=replayed)
            chosen_by = "the engine's" if replayed else "the learner's"
            high = float(np.quantile(gap, 0.95))
            print(f"| {chosen_by} | {len(gap)} | {gap.mean():.4f} | {high:.4f} | {gap.max():.3f} |")
            figures.append((chosen_by, {"p95": high, "largest": float(gap.max()), "tokens": len(gap)}, gap.mean()))
    for chosen_by, details, mean in figures:
        print_figure(f"gap with {chosen_by} experts: mean", float(mean), "nats", **details)


if __name__ == "__main__":
    main()
