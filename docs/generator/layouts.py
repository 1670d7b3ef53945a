"""The page of the layouts that `auto` chooses, for models and clusters of several sizes. All of it is calculated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_rft.cluster.planning.layout import ClusterPlan, lay_out
from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import Placement, PlanRequest
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.spec.job import JobSpec
from docs.generator.markdown import table

CONTEXT = 16_384
GPU_GIB = (24, 80)
CLUSTERS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8))
"""Nodes, and GPUs of each."""
CORES_PER_GPU, HOST_GIB_PER_GPU = 16, 128
MIN_HOST_GIB = 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's sizes, from its config.json; a mixture has `experts`, of which a token uses 8."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = 151_936
    tied: bool = False
    experts: int = 0

    def shape(self) -> ModelShape:
        """The shape that the memory is calculated from. Norms and biases are left out."""
        attention = 2 * 128 * self.hidden * (self.heads + self.kv_heads)
        expert = 3 * self.hidden * self.intermediate
        feed_forward = self.experts * (expert + self.hidden) or expert
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return ModelShape(
            num_parameters=embeddings + self.layers * (attention + feed_forward),
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=128,
            intermediate=(8 if self.experts else 1) * self.intermediate,
            vocabulary=self.vocabulary,
            idle_parameters=self.layers * max(0, self.experts - 8) * expert,
        )


MODELS = (
    Sizes("Qwen3-0.6B", 1024, 28, 16, 8, 3072, tied=True),
    Sizes("Qwen3-1.7B", 2048, 28, 16, 8, 6144, tied=True),
    Sizes("Qwen3-4B", 2560, 36, 32, 8, 9728, tied=True),
    Sizes("Qwen2.5-7B", 3584, 28, 28, 4, 18_944, 152_064),
    Sizes("Qwen3-8B", 4096, 36, 32, 8, 12_288),
    Sizes("Qwen3-14B", 5120, 40, 40, 8, 17_408),
    Sizes("Qwen3-32B", 5120, 64, 64, 8, 25_600),
    Sizes("Qwen3-30B-A3B", 2048, 48, 32, 4, 768, experts=128),
    Sizes("Qwen2.5-72B", 8192, 80, 64, 8, 29_568, 152_064),
    Sizes("Qwen3-235B-A22B", 4096, 94, 64, 4, 1536, experts=128),
)
JOB = JobSpec.model_validate(
    {
        "model": "model",
        "training_file": "train.jsonl",
        "method": {
            "type": "reinforcement",
            "reinforcement": {"grader": {"type": "endpoint", "url": "https://tools.example.com/grade"}},
        },
    }
)
INTRO = f"""# Layouts

**Calculated, not measured:** none of these layouts has run on GPUs. Each cell is the layout that `agent-rft plan`
chooses for a reinforcement job without `lora` and without settings in `cluster`, with a context of {CONTEXT:,} tokens.
Each node has {CORES_PER_GPU} cores and {HOST_GIB_PER_GPU} GiB of memory for each GPU, and at least {MIN_HOST_GIB} GiB.
8 % of all memory stays free.

`2 x 2 + 4, ZeRO 3, LoRA` means two engines of two GPUs each and four learner ranks of one GPU each, with ZeRO stage 3
and an adapter of rank 32. Without `LoRA` all weights are trained. `shared` means that engine and rank share the GPU,
`offload` that the optimizer is in the node's memory, and `offload all` that activations are there too. An empty cell
means that the model does not fit; `plan` prints what would fit.
"""


def pages() -> dict[str, str]:
    """The page below docs/reference."""
    layouts = {gib: layouts_on(gib) for gib in GPU_GIB}
    cells = [cell for rows in layouts.values() for row in rows.values() for cell in row.values()]
    parts = [INTRO, f"{sum(plan.fits for plan in cells)} of {len(cells)} combinations fit."]
    for gib, rows in layouts.items():
        lines = [[model, *map(_cell, plans.values())] for model, plans in rows.items()]
        parts += [f"## GPUs of {gib} GiB", table(["model", *map(_name, CLUSTERS)], lines)]
    return {"layouts.md": "\n\n".join(part.strip("\n") for part in parts)}


def layouts_on(gpu_gib: int) -> dict[str, dict[str, ClusterPlan]]:
    """The plan of each model on each cluster with GPUs of this size, by their names."""
    return {
        model.name: {_name(size): lay_out(_request(model, gpu_gib, *size)) for size in CLUSTERS} for model in MODELS
    }


def _name(size: tuple[int, int]) -> str:
    count, gpus = size
    return f"{count} x {gpus}" if count > 1 else f"{gpus}"


def _request(model: Sizes, gpu_gib: int, count: int, gpus: int) -> PlanRequest:
    host = max(MIN_HOST_GIB, HOST_GIB_PER_GPU * gpus) * GIB
    nodes = [Node(f"node-{i}", CORES_PER_GPU * gpus, gpus, host, gpu_gib * GIB) for i in range(count)]
    return PlanRequest(JOB, tuple(nodes), model.shape(), CONTEXT)


def _cell(plan: ClusterPlan) -> str:
    return ", ".join(_parts(plan.placement)) if plan.fits else ""


def _parts(placement: Placement) -> Sequence[str]:
    if placement.colocated:
        parts = ["shared"]
    else:
        parts = [f"{placement.engines} x {placement.engine_gpus} + {placement.learner_ranks}"]
    if placement.zero_stage:
        parts.append(f"ZeRO {placement.zero_stage}")
    if placement.lora is not None:
        parts.append("LoRA")
    if placement.offload != "none":
        parts.append("offload" if placement.offload == "optimizer" else "offload all")
    return parts
