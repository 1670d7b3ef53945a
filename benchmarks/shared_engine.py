"""Steps an hour of several jobs on one shared engine, against those of one job.

    python -m benchmarks.shared_engine [--jobs 4] [--learn-s 3] [--steps 6] [--times 3] [--model examples/ledger/base]

The engine is real, with one core: each job samples 32 completions of 48 tokens a step with its own adapter, and then
loads the next version of it. THE LEARNER IS FAKE: it waits for `--learn-s` seconds, as if it computed on a device of
its own. A job does one after another, as with `max_staleness: 0`, so the gain is the time that the engine idled before.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import ray

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.shared.shared_engine import SharedConfig
from agent_rft.actors.engine.shared.shared_engine_client import EngineClient
from agent_rft.trainer.learner.adapter import AdapterConfig
from benchmarks.common import Figure, report

COMPLETIONS, LENGTH = 32, 48
RANK = 8
PROMPT = list(b"what was revenue of vorzen in 2015? " * 4)


def tensors_of(model: Path) -> dict[str, Any]:
    """A new adapter of rank RANK of all linear layers."""
    from peft import LoraConfig, get_peft_model
    from peft.utils import get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    from agent_rft.trainer.learner.adapter import ALL_LINEAR

    base = AutoModelForCausalLM.from_pretrained(model)
    peft = get_peft_model(base, LoraConfig(r=RANK, target_modules=ALL_LINEAR, task_type="CAUSAL_LM"))
    return {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(peft).items()}


class Job:
    """One job's steps; `learn_s` is the cost of its fake learner."""

    def __init__(self, shared: SharedConfig, tensors: dict[str, Any], learn_s: float) -> None:
        from agent_rft.trainer.learner.checkpoint_weights import concat_bytes

        self.client = EngineClient(shared)
        self.sampling_s = 0.0
        self._learn_s = learn_s
        self._data: Any = concat_bytes(list(tensors.values()))
        self._layout = [(name, "float32", tuple(tensor.shape)) for name, tensor in tensors.items()]

    async def run(self, steps: int) -> None:
        for step in range(steps):
            started = time.monotonic()
            await asyncio.gather(*(self._sample(step * COMPLETIONS + i) for i in range(COMPLETIONS)))
            self.sampling_s += time.monotonic() - started
            await asyncio.sleep(self._learn_s)
            await asyncio.to_thread(self.client.stage_bucket, self._data, self._layout)
            await self.client.load_staged(step + 1)

    async def _sample(self, seed: int) -> None:
        await self.client.generate(PROMPT, max_tokens=LENGTH, seed=seed, temperature=1.0)


async def steps_per_hour(
    shared: SharedConfig, tensors: dict[str, Any], jobs: int, options: argparse.Namespace
) -> float:
    made = [Job(shared, tensors, options.learn_s) for _ in range(jobs)]
    await asyncio.gather(*(job.client.start() for job in made))
    started = time.monotonic()
    await asyncio.gather(*(job.run(options.steps) for job in made))
    took = time.monotonic() - started
    await asyncio.gather(*(job.client.end_lease() for job in made))
    sampling = fmean(job.sampling_s for job in made) / options.steps
    print(f"{jobs} job(s): {took / options.steps:.2f} s per step of each, {sampling:.2f} of them sampling", flush=True)
    return float(jobs * options.steps / took * 3600)


async def measure(options: argparse.Namespace) -> Figure:
    own = EngineConfig(str(options.model), "float32", context_length=1024, max_num_seqs=64, seed=0)
    shared = SharedConfig.for_job(own, AdapterConfig(RANK, float(RANK)), cores=1, index=0)
    tensors = tensors_of(options.model)
    await steps_per_hour(shared, tensors, 1, argparse.Namespace(learn_s=0.0, steps=1))  # starts the engine
    runs = []
    for _ in range(options.times):
        many = await steps_per_hour(shared, tensors, options.jobs, options)
        runs.append((many, await steps_per_hour(shared, tensors, 1, options)))
    name = f"steps of {options.jobs} jobs on one engine, fake learner of {options.learn_s:g} s, against one job's"
    return Figure(name, "steps/h", tuple(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--learn-s", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--model", type=Path, default=Path("examples/ledger/base"))
    options = parser.parse_args()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        report([asyncio.run(measure(options))])
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
