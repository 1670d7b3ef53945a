"""Estimates of the memory of an engine and of a learner rank, computed from the model's sizes.

Measured peaks in GiB, with the estimates in parentheses:

- rank on a CPU in float32, 0.56M parameters: 0.69 (0.62)
- rank on a CPU in float32, 37M parameters, 1,024 tokens per micro-batch: 1.91 (1.70); with ZeRO 1: 2.19 (1.96). The two
  measured peaks include a copy of the weights that ranks no longer make.
- engine on a CPU in float32, 37M parameters: 2.97 (3.06)
- tensors of a rank on an H100 in bfloat16, ZeRO 1, 16k tokens: 0.6B parameters 12.6 (15.5), 1.7B 34.3 (38.9)

All other sizes on GPUs, and the constants for GPUs below, are calculated or assumed. `make gpu-rank` prints the
measured memory of a rank next to its estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from agent_rft.actors.engine.engine_memory import GPU_MEMORY_SHARE, cpu_cache_bytes, kv_bytes, max_batched_tokens
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.spec.offload import Offload
from agent_rft.trainer.learner.rank_memory_sizes import BUCKET_ELEMENTS, effective_zero_stage, snapshot_bytes
from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES
from agent_rft.trainer.model.head_memory_sizes import CHUNK_BYTES

if TYPE_CHECKING:  # pydantic may be missing where this runs
    from agent_rft.spec.model_options import LoraSpec

GIB = 2**30
ENGINE_PROCESSES_BYTES = {"cpu": round(1.4 * GIB), "cuda": round(3.0 * GIB)}
"""Memory of the engine actor and vLLM's core process: Python, torch and vLLM, without weights."""
RANK_PROCESS_BYTES = {"cpu": round(0.6 * GIB), "cuda": round(2.5 * GIB)}
"""Memory of a rank's process: Python, torch, transformers and DeepSpeed, and on a GPU the CUDA libraries."""
CUDA_CONTEXT_BYTES = round(1.5 * GIB)
"""Memory on each GPU for the CUDA context, NCCL's buffers and an engine's CUDA graphs."""
LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's `stage3_max_live_parameters`: the maximum number of parameters that ZeRO-3 gathers at a time."""


class MemorySettings(Protocol):
    """Settings of `Placement` that determine memory. Unlike `Placement`, this protocol does not need pydantic."""

    @property
    def max_num_seqs(self) -> int: ...

    @property
    def learner_ranks(self) -> int: ...

    @property
    def zero_stage(self) -> int: ...

    @property
    def micro_batch_tokens(self) -> int: ...

    @property
    def offload(self) -> Offload: ...


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of one engine or rank. `gpu` and `host` map each part of the memory, such as "weights", to bytes.

    `gpu` is the memory on each GPU of the engine or rank; empty on CPUs. `host` is the memory on the node.
    `num_sequences` is the number of full-length sequences that an engine's cache holds; None for a rank.
    """

    gpu: Mapping[str, int] = field(default_factory=dict)
    host: Mapping[str, int] = field(default_factory=dict)
    num_sequences: float | None = None

    @property
    def gpu_bytes(self) -> int:
        return sum(self.gpu.values())

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())


def kv_bytes_per_token(model: ModelShape, itemsize: int, gpus: int = 1) -> int:
    """Return the bytes of the key-value cache per token on each of an engine's GPUs.

    Tensor parallelism divides the key-value heads between the GPUs, and each GPU has at least one head (Kwon et al.
    2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention").
    """
    return kv_bytes(model.layers, max(1, model.kv_heads // gpus), model.head_dim, itemsize)


def engine_memory(
    model: ModelShape,
    cluster: MemorySettings,
    *,
    gpus: int,
    itemsize: int,
    context_length: int,
    gpu_bytes: int | None,
    lora: LoraSpec | None = None,
    gpu_share: float = GPU_MEMORY_SHARE,
) -> MemoryEstimate:
    """Return the memory of an engine.

    vLLM always takes the share `gpu_share` of a GPU's memory. Memory that weights, activations and logits do not need
    becomes cache. If the GPU's memory is unknown, the cache is assumed to hold one full-length sequence.

    Activations are needed for one layer at a time and at most `max_num_batched_tokens` tokens. Logits are needed for
    one token per sequence, in three float32 tensors over the vocabulary: raw, scaled and normalized logits.

    Args:
        model: Sizes of the model.
        cluster: Settings of the placement.
        gpus: Number of GPUs; 0 for an engine on a CPU.
        itemsize: Bytes per weight.
        context_length: Maximum length of a sequence in tokens.
        gpu_bytes: Memory of each GPU; None if unknown.
        lora: The adapter to train; None for all weights.
        gpu_share: Share of each GPU's memory that vLLM takes.
    """
    weights = model.num_parameters * itemsize
    tokens = max_batched_tokens(context_length, cluster.max_num_seqs, on_gpu=gpus > 0)
    layer = tokens * (4 * model.hidden + 3 * model.intermediate) * itemsize
    logits = 3 * cluster.max_num_seqs * model.vocabulary * 4
    sequence = model.cache_shape.sequence_bytes(context_length, itemsize, max(1, gpus))
    incoming = {"incoming weights": model.count_trained(lora) * itemsize}  # a new version in shared memory
    if not gpus:
        cache = cpu_cache_bytes(cluster.max_num_seqs, context_length, kv_bytes_per_token(model, itemsize))
        work = {"processes": ENGINE_PROCESSES_BYTES["cpu"], "weights": weights, "cache": cache}
        return MemoryEstimate(
            host=work | {"activations": layer, "logits": logits} | incoming, num_sequences=cache / sequence
        )
    on_gpu = {"weights": weights // gpus, "activations": layer // gpus, "logits": logits, "context": CUDA_CONTEXT_BYTES}
    left = None if gpu_bytes is None else round(gpu_bytes * gpu_share) - sum(on_gpu.values())
    cache = sequence if left is None else max(0, left)
    return MemoryEstimate(
        gpu=on_gpu | {"cache": cache},
        host={"processes": ENGINE_PROCESSES_BYTES["cuda"] * gpus} | incoming,
        num_sequences=cache / sequence,
    )


def with_time_sharing(memory: MemoryEstimate, slack: float = 0.0) -> MemoryEstimate:
    """Return `memory` plus the memory that an engine or rank needs to time-share its GPU.

    Host memory grows by the size of weights, gradients and optimizer, plus `slack` times this size. GPU memory grows by
    a second CUDA context.
    """
    needed = sum(memory.gpu.get(part, 0) for part in ("weights", "gradients", "optimizer"))
    gpu, offloaded = {**memory.gpu, "other CUDA context": CUDA_CONTEXT_BYTES}, round(needed * (1 + slack))
    return replace(memory, gpu=gpu, host={**memory.host, "offloaded": offloaded})


def rank_memory(
    model: ModelShape,
    cluster: MemorySettings,
    *,
    on_gpu: bool,
    itemsize: int,
    max_length: int,
    keeps_reference: bool,
    lora: LoraSpec | None = None,
    rank: int = 0,
) -> MemoryEstimate:
    """Return the memory of a learner rank. Rank 0 needs the most, because it copies weights into checkpoints.

    Weights, gradients and optimizer follow ZeRO's stages (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward
    Training Trillion Parameter Models", section 5), as implemented by DeepSpeed 0.19 with our settings:

    - Adam's two moments are float32.
    - bfloat16 weights have float32 master weights; from stage 1 on, float32 weights have master weights too.
    - Gradients are summed in float32; below stage 2, each rank holds the sums for all parameters.

    Args:
        model: Sizes of the model.
        cluster: Settings of the placement.
        on_gpu: Whether the rank has a GPU.
        itemsize: Bytes per weight.
        max_length: Maximum length of a sequence in tokens.
        keeps_reference: Whether the rank also holds the reference model. Its weights take as much memory as the
            policy's; under ZeRO stage 3, each rank holds its part of both. With `lora`, it needs no extra memory.
        lora: The adapter to train; None for all weights.
        rank: Index of the rank.
    """
    parameters, ranks = model.num_parameters, cluster.learner_ranks
    stage = effective_zero_stage(itemsize == 2, cluster.zero_stage, cluster.offload != "none")
    shards = ranks if stage >= 1 else 1
    num_tokens = max(cluster.micro_batch_tokens, max_length)
    weights = parameters * itemsize // (ranks if stage == 3 else 1)
    live = max(LIVE_PARAMETERS, model.expert_parameters)  # all experts of a layer are gathered together
    gathered = min(parameters, live) * itemsize if stage == 3 and ranks > 1 else 0
    trained = model.count_trained(lora)
    gradients = trained * 4 // (ranks if stage >= 2 else 1)
    if itemsize == 2 and stage < 2:
        gradients += trained * itemsize  # as the backward pass leaves them, before they are summed
    optimizer = trained * (8 + (4 if stage >= 1 else 0)) // shards
    buckets = min(BUCKET_ELEMENTS, trained) * 4 if ranks > 1 or stage >= 1 else 0
    work = {
        "weights": weights
        + gathered
        + (0 if lora is None else trained * itemsize)
        + (weights if keeps_reference and lora is None else 0),
        "gradients": gradients + buckets,
        "optimizer": optimizer,
        "activations": activation_bytes(model, num_tokens, itemsize, recomputed=on_gpu),
        "logits": 2 * min(CHUNK_BYTES["cuda" if on_gpu else "cpu"], num_tokens * model.vocabulary * 4)
        + (model.vocabulary * model.hidden * 4 if lora is None else 0),  # the gradient of the head
    }
    moved = _offloaded(cluster.offload, work, model, num_tokens, itemsize, stage, trained // shards) if on_gpu else {}
    # Rank 0 gathers the weights that it sends into one bucket, which holds the largest of them.
    largest = max(MAX_BUCKET_BYTES, model.largest_parameter * itemsize)
    outgoing = {"outgoing weights": min(largest, trained * itemsize)}
    # A checkpoint is copied into the node's memory and written from there while training continues. The memory is
    # reused for the next checkpoint.
    snapshot = snapshot_bytes(trained, rank=rank, ranks=ranks, stage=stage, in_bfloat16=itemsize == 2)
    if not on_gpu:
        return MemoryEstimate(host={"processes": RANK_PROCESS_BYTES["cpu"]} | work | outgoing | {"snapshot": snapshot})
    # A rank reads the model tensor by tensor from mapped files, so the full model is never in its node's memory. With a
    # model of 320 MB under ZeRO 3, each of two ranks on CPUs held at most its part of 160 MB (before, up to 460 MB).
    host = {"processes": RANK_PROCESS_BYTES["cuda"], "snapshot": snapshot} | outgoing | moved
    return MemoryEstimate(gpu=work | {"context": CUDA_CONTEXT_BYTES}, host=host)


def _offloaded(
    offload: Offload, work: dict[str, int], model: ModelShape, num_tokens: int, itemsize: int, stage: int, updated: int
) -> dict[str, int]:
    """Subtract the offloaded bytes from `work`, and return the host memory that offloading needs, in bytes by part.

    `work` is the GPU memory of a rank by part. `updated` is the number of parameters that this rank updates.

    The optimizer state and the gradients are always offloaded. In stage 3, the host holds two float32 copies of the
    gradients. In other stages, the host holds one copy of the gradients and one copy of the weights. If `offload`
    includes activations, the inputs of every layer except two are offloaded too.
    """
    if offload == "none":
        return {}
    moved = {"optimizer": work.pop("optimizer"), "gradients": updated * (8 if stage == 3 else 4 + itemsize)}
    work["gradients"] -= 4 * updated
    if offload == "optimizer_and_activations":
        moved["activations"] = max(0, model.layers - 2) * num_tokens * model.hidden * itemsize
        work["activations"] -= moved["activations"]
    return moved


def activation_bytes(model: ModelShape, num_tokens: int, itemsize: int, *, recomputed: bool) -> int:
    """Return the bytes that the forward pass of `num_tokens` packed tokens stores for the backward pass.

    The method is from Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models"). It is
    applied to layers with RMSNorm, gated feed-forward, grouped-query attention, and an attention kernel that stores no
    scores. For each token, a layer stores `a * hidden + b * query + c * key + d * intermediate` values, where `hidden`,
    `query`, `key` and `intermediate` are the layer's widths.

    With float32 weights, (a, b, c, d) is (6, 5, 4, 4). With bfloat16 weights, it is (8, 6, 5, 4), because norms are
    still computed in float32. These factors were counted tensor by tensor in Qwen3. Models that do not normalize
    queries and keys store less.

    The backward pass of one layer adds about half of what the layer stores. With activation checkpointing
    (`recomputed`), all layers store only their inputs, except that one layer at a time stores everything.
    """
    norms, queries, keys = (6, 5, 4) if itemsize == 4 else (8, 6, 5)
    width = norms * model.hidden + queries * model.query_width + keys * model.key_width + 4 * model.intermediate
    layer = num_tokens * width * itemsize
    if recomputed:
        return model.layers * num_tokens * model.hidden * itemsize + round(1.5 * layer)
    return round((model.layers + 0.5) * layer)
