"""A weight update from the learner's memory to a sampling engine: pause of generation and seconds per GB.

    python -m benchmarks.weight_sync [--transport object_store] [--layers 15 | --model FOLDER] [--runs 5] [--rank 32]

Without `--model` it is a random Qwen3 with about 14M parameters per layer (15 layers: 205M; 0.8 GB in float32). One
process acts as the learner and reads its weights with the learner's own code; the engine samples 16 sequences during
each update. Both are on GPUs, in bfloat16, if there are any. The baseline is a copy of the same bytes in memory. With
`--rank` an adapter of all linear layers is measured, too, against all weights of the same model.

Transports: `object_store` and `broadcast` are ours (a broadcast is NCCL between two GPUs, gloo on CPUs); `vllm_nccl`
(two GPUs) and `vllm_ipc` (both on one GPU) are vLLM's own. With one GPU, learner and engine share it. Nothing of this
has run on a GPU yet.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_plugin import TRANSPORT
from agent_rft.actors.rollout.canary import CANARY_LIMITS
from agent_rft.actors.rollout.episode import EpisodeSpec
from agent_rft.actors.rollout.rollout_worker import WorkerConfig
from agent_rft.actors.weights.broadcast_sync import BroadcastSync
from agent_rft.actors.weights.weight_bucket import compute_checksum
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.cluster.ray_cluster.ray_session import ray_session
from agent_rft.errors import RftError
from agent_rft.spec.job import RewardSpec, RolloutLimits
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import AdapterConfig
from agent_rft.trainer.learner.checkpoint_weights import CheckpointWeights
from agent_rft.trainer.learner.host_buffer import HostBuffer, lock_pages_for_cuda
from agent_rft.trainer.learner.process_group import SENDER, BroadcastGroup, find_free_port
from agent_rft.trainer.learner.weight_buckets import BucketLayout
from agent_rft.trainer.model.lora import add_adapter, get_adapter_tensors
from agent_rft.trainer.model.policy import load_policy
from benchmarks.common import Figure, NotPossible, impossible, report
from benchmarks.local import dtype_here, gpus_here
from benchmarks.worker import JOB, MeasuredWorker, Request, as_actor

SEQUENCES = 16
VLLMS = {"vllm_nccl": "nccl", "vllm_ipc": "ipc"}
"""Transports of vLLM -> its names for them."""
TRANSPORTS = ("object_store", "broadcast", *VLLMS)
ENGINE_SHARE, LEARNER_SHARE = 0.9, 0.1
"""Ray's shares of one GPU for both. vLLM takes 0.85 of its memory, whatever the share, and starts first; the learner's
copy of the weights has to fit into the rest."""
CANARY_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Seating:
    """The GPUs of engine and learner, in Ray's units."""

    engine: float
    learner: float


def seating(transport: str, gpus: int) -> Seating:
    """Who gets which part of the machine's GPUs.

    Raises:
        NotPossible: The transport needs other GPUs than there are.
    """
    if transport == "vllm_nccl" and gpus < 2:
        raise NotPossible(f"vLLM's transfer by NCCL needs two GPUs; there are {gpus}")
    if transport == "vllm_ipc" and gpus < 1:
        raise NotPossible("vLLM's transfer by CUDA IPC needs a GPU; there is none")
    if transport == "broadcast" and gpus == 1:
        raise NotPossible("NCCL refuses two members on one GPU: a broadcast needs two GPUs; there is one")
    if gpus == 0:
        return Seating(0.0, 0.0)
    return Seating(ENGINE_SHARE, LEARNER_SHARE) if gpus == 1 or transport == "vllm_ipc" else Seating(1.0, 1.0)


def write_model(folder: Path, layers: int, dtype: str = "float32", **changes: Any) -> None:
    """Save a random model with the ledger's tokenizer; `changes` are settings of its config."""
    base = JOB.parent / "base"
    config = AutoConfig.from_pretrained(base)
    config.update({"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers, "head_dim": 64})
    config.update({"num_attention_heads": 16, "num_key_value_heads": 16, "layer_types": ["full_attention"] * layers})
    config.update(changes)
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)


class Source:
    """The learner's side: the model's weights, on this actor's GPU if it has one."""

    def __init__(self, folder: str, dtype: str, lora: LoraSpec | None = None) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        policy = load_policy(Path(folder), getattr(torch, dtype), 1.0).to(self._device)
        if lora is not None:
            add_adapter(policy, lora, seed=0)
        adapter = None if lora is None else get_adapter_tensors(policy)
        self._model = policy.model
        self._weights = CheckpointWeights(self._model, getattr(torch, dtype), lambda _: nullcontext(), adapter)
        self._bucket = HostBuffer(lock_pages_for_cuda if self._device.type == "cuda" else None)
        self._broadcast: BroadcastGroup | None = None
        self._vllms: Any = None

    def plan(self, max_bytes: int) -> list[BucketLayout]:
        self._parts = self._weights.split(max_bytes)
        return [self._weights.describe(part) for part in self._parts]

    def put(self, index: int) -> list[Any]:
        data = self._weights.copy_bucket(self._parts[index], self._bucket)
        assert data is not None
        return [ray.put(data), compute_checksum(torch.from_numpy(data))]

    # -- our broadcast -------------------------------------------------------------------------------------------------

    def address(self) -> str:
        return f"{ray.util.get_node_ip_address()}:{find_free_port()}"

    def open_broadcast(self, address: str, size: int) -> None:
        self._broadcast = BroadcastGroup(address, SENDER, size, self._device)

    def send(self, bucket: Any) -> None:
        assert self._broadcast is not None
        self._broadcast.send(torch.tensor(bucket))

    # -- vLLM's own transports -----------------------------------------------------------------------------------------

    def open_vllms(self, transport: str, worker: Any) -> None:
        """Connect vLLM's trainer side to the engine in `worker`."""
        from vllm.distributed.weight_transfer.base import ModuleSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        torch.cuda.set_device(0)
        client = VllmsClient(worker)
        info = vllms_init_info(transport, ray.util.get_node_ip_address())
        self._vllms = WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(self._model))

    def send_vllms(self) -> None:
        """Send all weights and load them in the engine."""
        self._vllms.send_weights()

    def num_bytes(self) -> int:
        return sum(p.nbytes for p in self._model.parameters())


def vllms_init_info(transport: str, host: str) -> Any:
    """The settings of vLLM's trainer side: packed into buffers, from rank 0 to one engine with one GPU."""
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    if transport == "vllm_ipc":
        return IPCTrainerInitInfo(packed=True, rank=0)
    return NCCLTrainerInitInfo(host, find_free_port(), 2, packed=True, rank=0)


class VllmsClient:
    """Implements vLLM's `VLLMWeightSyncClient` over a measured worker; each call waits for the engine."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        _checked(ray.get(self._worker.init_transport.remote(init_info)))

    def start_weight_update(self) -> None:
        _checked(ray.get(self._worker.begin_update.remote()))

    def update_weights(self, update_info: Any) -> None:
        _checked(ray.get(self._worker.load.remote(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        _checked(ray.get(self._worker.finish_update.remote()))


class SourceClient:
    """Implements `agent_rft.actors.weights.broadcast_sync.BroadcastSource`."""

    incarnation = 1

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def bucket_layouts(self, max_bytes: int) -> list[BucketLayout]:
        plan: list[BucketLayout] = await self._actor.plan.remote(max_bytes)
        return plan

    async def publish_bucket(self, index: int) -> tuple[Any, int]:
        reference, number = await self._actor.put.remote(index)
        return reference, number

    async def choose_address(self) -> str:
        address: str = await self._actor.address.remote()
        return address

    async def open_broadcast(self, address: str, size: int) -> None:
        await self._actor.open_broadcast.remote(address, size)

    async def broadcast_bucket(self, bucket: Any) -> None:
        await self._actor.send.remote(bucket)


def _checked(outcome: Any) -> None:
    if isinstance(outcome, RftError):
        raise outcome


class OurSync:
    """One of our transports: from the learner's weights to the engine, as a training run does it."""

    def __init__(self, sync: WeightSync, worker: Any) -> None:
        self._sync = sync
        self._worker = worker

    async def update(self, version: int) -> tuple[float, int]:
        """Seconds of pause, and bytes."""
        published = await self._sync.collect(version)
        (pause,) = await self._sync.deliver(published, [self._worker])
        if not isinstance(pause, float):
            raise pause
        return pause, published.num_bytes


class VllmsSync:
    """One of vLLM's transports."""

    def __init__(self, source: Any, worker: Any) -> None:
        self._source = source
        self._worker = worker

    async def update(self, version: int) -> tuple[float, int]:
        await self._source.send_vllms.remote()
        return await self._worker.last_pause_s.remote(), await self._source.num_bytes.remote()


async def connect(transport: str, source: Any, worker: Any) -> OurSync | VllmsSync:
    """Make the connection that all updates use."""
    if transport in VLLMS:
        await source.open_vllms.remote(transport, worker)
        return VllmsSync(source, worker)
    _checked(await worker.init_transport.remote({}))
    client = SourceClient(source)
    return OurSync(WeightSync(client) if transport == "object_store" else BroadcastSync(client, 1), worker)


@dataclass(slots=True)
class Updates:
    """Each update's seconds of pause and in all, and those of a copy of its bytes."""

    num_bytes: int = 0
    pauses: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)

    def figures(self, transport: str) -> list[Figure]:
        suffix, size = "" if transport == "object_store" else f", {transport}", self.num_bytes
        limits = [(pause, 0.1 + 3 * copy) for pause, copy in zip(self.pauses, self.copies, strict=True)]
        pairs = list(zip(self.totals, self.copies, strict=True))
        speeds = [(size / total / 1e6, size / copy / 1e6) for total, copy in pairs]
        per_gb = [(total / size * 1e9, copy / size * 1e9) for total, copy in pairs]
        return [
            Figure(f"weight sync: pause (against its limit){suffix}", "s", tuple(limits)),
            Figure(f"weight sync: end to end (against a copy){suffix}", "MB/s", tuple(speeds)),
            Figure(f"weight sync: seconds per GB{suffix}", "s/GB", tuple(per_gb)),
        ]

    def against(self, whole: Updates, rank: int) -> list[Figure]:
        """Figures of an adapter against all weights."""
        sizes = ((self.num_bytes / 1e6, whole.num_bytes / 1e6),)
        totals, pauses = zip(self.totals, whole.totals, strict=True), zip(self.pauses, whole.pauses, strict=True)
        return [
            Figure(f"adapter sync: bytes at rank {rank} (against all weights)", "MB", sizes),
            Figure("adapter sync: end to end (against all weights)", "s", tuple(totals)),
            Figure("adapter sync: pause (against all weights)", "s", tuple(pauses)),
        ]


async def measure(
    folder: Path, runs: int, transport: str, dtype: str, seats: Seating, lora: LoraSpec | None = None
) -> Updates:
    spec = EpisodeSpec("0", RolloutLimits(), RewardSpec(), 8, 1024)
    gpus = int(seats.engine > 0)
    own = VLLMS.get(transport, TRANSPORT)
    adapter = None if lora is None else AdapterConfig(lora.rank, lora.alpha, lora.names)
    engine = EngineConfig(
        str(folder), dtype, 1024, max_num_seqs=SEQUENCES, seed=0, gpus=gpus, transport=own, lora=adapter
    )
    worker = as_actor(MeasuredWorker, num_cpus=1, num_gpus=seats.engine, max_concurrency=1000)
    worker = worker.remote(WorkerConfig(engine, spec, DEFAULT_DIALECT, dispatchers=[], graders=None))
    _checked(await worker.start.remote())
    source = as_actor(Source, num_cpus=1, num_gpus=seats.learner).remote(str(folder), dtype, lora)
    sync = await connect(transport, source, worker)
    canary = [1 + i % 200 for i in range(CANARY_TOKENS)]
    before = (await worker.score_prompt.remote(canary)).logprobs
    updates = Updates()
    for version in range(runs + 1):
        busy = worker.complete.remote([Request([1] * 8, 1000)] * SEQUENCES, SEQUENCES)
        await asyncio.sleep(1.0)
        started = time.perf_counter()
        pause, num_bytes = await sync.update(version + 1)
        total = time.perf_counter() - started
        copy = _copy_s(num_bytes)
        if version:  # the first run maps memory that later runs reuse
            updates.num_bytes = num_bytes
            updates.pauses.append(pause)
            updates.totals.append(total)
            updates.copies.append(copy)
        ray.cancel(busy)
    gap = float(np.abs((await worker.score_prompt.remote(canary)).logprobs - before).mean())
    if not gap < CANARY_LIMITS[dtype]:
        raise RuntimeError(f"after {runs + 1} updates with equal weights the engine differs by {gap} nats per token")
    await worker.shutdown.remote()
    for actor in (worker, source):
        ray.kill(actor)
    print(f"{num_bytes / 1e6:,.1f} MB in {dtype} by {transport}, {SEQUENCES} sequences in flight")
    return updates


def _copy_s(num_bytes: int) -> float:
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    started = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - started


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--model", type=Path, help="a model folder, instead of a random model of --layers")
    parser.add_argument("--transport", choices=TRANSPORTS, default="object_store")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rank", type=int, help="measure an adapter of this rank, too")
    return parser


def main() -> None:
    options = arguments().parse_args()
    gpus = gpus_here()
    try:
        seats = seating(options.transport, gpus)
    except NotPossible as error:
        impossible(str(error))
        return
    dtype = dtype_here()
    if options.transport in VLLMS:  # the handles of CUDA memory are pickled
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    with tempfile.TemporaryDirectory() as folder, ray_session(None):
        model = Path(folder) if options.model is None else options.model.absolute()
        if options.model is None:
            write_model(model, options.layers, dtype)
        whole = asyncio.run(measure(model, options.runs, options.transport, dtype, seats))
        figures = whole.figures(options.transport)
        if options.rank is not None:
            lora = LoraSpec(rank=options.rank)
            adapter = asyncio.run(measure(model, options.runs, "object_store", dtype, seats, lora))
            figures += adapter.against(whole, options.rank)
        report(figures)
    print(f"{os.cpu_count()} cores; a pause under its limit (100 ms + 3 copies) has a ratio below 1")


if __name__ == "__main__":
    main()
