"""A weight update from the learner's memory to a sampling engine: pause of generation and bytes per second.

    python -m benchmarks.weight_sync [--layers 15] [--runs 5]

The model is a random Qwen3 with about 14M parameters per layer in float32 (15 layers: 205M, 0.8 GB). One process acts
as the learner and puts the buckets into Ray's object store; the engine samples 16 sequences during each update. The
baseline is a copy of the same bytes in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from actors.engine.vllm_engine import EngineConfig
from actors.rollout.episode import EpisodeSpec
from actors.rollout.worker import WorkerConfig
from actors.weights.checkpoint_weights import as_bytes
from actors.weights.layout import MAX_BUCKET_BYTES, Layout
from actors.weights.sync import WeightSync
from benchmarks.common import Figure, report
from benchmarks.worker import JOB, MeasuredWorker, Request
from cluster.ray_cluster.session import ray_session
from trainer.spec.job import RewardSpec, RolloutLimits

SEQUENCES = 16


def write_model(folder: Path, layers: int) -> None:
    """Save a random model with the ledger's tokenizer."""
    base = JOB.parent / "base"
    config = AutoConfig.from_pretrained(base)
    config.update({"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers, "head_dim": 64})
    config.update({"num_attention_heads": 16, "num_key_value_heads": 16, "layer_types": ["full_attention"] * layers})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)


class Source:
    """The learner's side: the model's weights in buckets."""

    def __init__(self, folder: str) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._tensors = [(name, p.detach()) for name, p in model.named_parameters()]
        self._buckets: list[list[tuple[str, torch.Tensor]]] = [[]]

    def plan(self, max_bytes: int) -> list[Layout]:
        size = 0
        for name, tensor in self._tensors:
            if size and size + tensor.nbytes > max_bytes:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append((name, tensor))
            size += tensor.nbytes
        return [[(n, "float32", tuple(t.shape)) for n, t in bucket] for bucket in self._buckets]

    def put(self, index: int) -> list[Any]:
        return [ray.put(as_bytes([tensor for _, tensor in self._buckets[index]]))]


class SourceClient:
    """Implements `actors.weights.sync.WeightSource`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def bucket_plan(self, max_bytes: int) -> list[Layout]:
        plan: list[Layout] = await self._actor.plan.remote(max_bytes)
        return plan

    async def gather_bucket(self, index: int) -> Any:
        return (await self._actor.put.remote(index))[0]


async def measure(folder: Path, runs: int) -> list[Figure]:
    spec = EpisodeSpec("0", RolloutLimits(), RewardSpec(), 8, 1024)
    engine = EngineConfig(str(folder), "float32", context_length=1024, max_num_seqs=SEQUENCES, seed=0)
    worker = ray.remote(MeasuredWorker).options(num_cpus=1, max_concurrency=1000)
    worker = worker.remote(WorkerConfig(engine, spec, "hermes", {}, dispatchers=[], graders=None))
    await worker.start.remote()
    await worker.init_transport.remote({})
    sync = WeightSync(SourceClient(ray.remote(Source).options(num_cpus=1).remote(str(folder))), MAX_BUCKET_BYTES)
    pauses, totals = [], []
    for version in range(runs + 1):
        busy = worker.complete.remote([Request([1] * 8, 1000)] * SEQUENCES, SEQUENCES)
        await asyncio.sleep(1.0)
        started = time.perf_counter()
        published = await sync.collect(version + 1)
        (pause,) = await sync.deliver(published, [worker])
        total = time.perf_counter() - started
        if not isinstance(pause, float):
            raise pause
        copy = _copy_s(published.num_bytes)
        if version:  # the first run maps memory that later runs reuse
            pauses.append((pause, 0.1 + 3 * copy))
            totals.append((published.num_bytes / total / 1e6, published.num_bytes / copy / 1e6))
        ray.cancel(busy)
    await worker.shutdown.remote()
    print(f"{published.num_bytes / 1e6:,.0f} MB in {len(published.buckets)} buckets, {SEQUENCES} sequences in flight")
    return [
        Figure("weight sync: pause (against its limit)", "s", tuple(pauses)),
        Figure("weight sync: end to end (against a copy)", "MB/s", tuple(totals)),
    ]


def _copy_s(num_bytes: int) -> float:
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    started = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ray_session(None):
        write_model(Path(folder), options.layers)
        report(asyncio.run(measure(Path(folder), options.runs)))
    print(f"{os.cpu_count()} cores; a pause under its limit (100 ms + 3 copies) has a ratio below 1")


if __name__ == "__main__":
    main()
