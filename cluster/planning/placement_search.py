"""Search for the possible placements of a job on nodes, best first.

The search keeps the values that the job sets and chooses all other values. On CPUs there is one placement: one engine
and one rank, with one core each. On GPUs, engines and ranks get half of the GPUs each, or as close to half as memory
allows.

Two rules have not been measured on GPUs: the even division, and the order of memory savings. They are used until a cost
function is calibrated. Sharding is tried before LoRA, and LoRA before offload, because offload slows down every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TypeVar, get_args

from agent_rft.cluster.planning.memory_estimates import MemoryEstimate, engine_memory, rank_memory, with_time_sharing
from agent_rft.cluster.planning.placement import RECORDED, Placement, PlanRequest, RecordedLayout, micro_batch_sizes
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.offload import Offload
from agent_rft.trainer.learner.rank_memory_sizes import OFFLOAD_SLACK

Value = TypeVar("Value")

OFFLOADS: tuple[Offload, ...] = get_args(Offload)
STAGES = (0, 1, 2, 3)
TENSOR_PARALLEL = (1, 2, 4, 8, 16)
MIN_SEQUENCES_AT_ONCE = 4
"""Full-length sequences that an engine's cache should hold. A smaller cache makes sampling slow."""
CPU_SEQUENCES, MAX_GPU_SEQUENCES, MIN_GPU_SEQUENCES = 64, 256, 8
SHORTER = 4
"""Assumed ratio of the context length to the length of a typical sequence."""
MAX_ENGINE_CORES, MAX_RANK_CORES = 4, 16
"""Maximum number of cores per GPU that the planner gives to an engine and to a learner rank.

Engines need cores for tokenizing and tool calls. Ranks need cores for an offloaded optimizer.
"""
MAX_AUTO_GPUS = 256
"""Maximum number of GPUs for a job that does not set a number."""


def search_placements(request: PlanRequest, *, fewest_gpus: bool = False) -> Iterator[Placement]:
    """Yield the placements to try for a job, best first; some of them do not fit.

    The layout with which a resumed run began comes first. With `fewest_gpus`, the rest is sorted by GPU count.
    """
    search = _PlacementSearch(request)
    if (recorded := _recorded_placement(request, search)) is not None:
        yield recorded
    if search.on_gpus:
        yield from search.iterate_by_gpu_count() if fewest_gpus else search.iterate_balanced()
    else:
        yield search.base


def _recorded_placement(request: PlanRequest, search: _PlacementSearch) -> Placement | None:
    """Return the layout that the run began with. The job's own settings take precedence over the recorded layout.

    Return None if the run is new, if it runs on CPUs, or if it only grades.
    """
    recorded: RecordedLayout = request.recorded_layout
    if recorded.engines is None or not search.on_gpus or not request.trains:
        return None
    given, names = request.job.cluster, [name for name in RECORDED if name != "micro_batch_tokens"]
    values = {name: getattr(recorded, name) for name in names if getattr(given, name) == "auto"}
    return replace(search.base, **{name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True)
class _GpuDivision:
    """Division of the GPUs between engines and ranks."""

    engines: int
    engine_gpus: int
    ranks: int
    colocated: bool = False

    @property
    def num_gpus(self) -> int:
        return max(self.engines, self.ranks) if self.colocated else self.engines * self.engine_gpus + self.ranks


class _PlacementSearch:
    """Search for the placements of one request."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._cluster = request.job.cluster
        self._nodes = [node for node in request.nodes if node.gpus >= 1]
        self._num_gpus = min(MAX_AUTO_GPUS, sum(int(node.gpus) for node in self._nodes))
        if request.max_gpus is not None:
            self._num_gpus = min(self._num_gpus, request.max_gpus)
        self._largest_gpu = _largest_known([node.usable_gpu_bytes for node in self._nodes])
        self._samples = request.job.method.type == "reinforcement"
        given = self._cluster.engine_gpus
        has_gpus = any(node.gpus or node.held_gpus for node in request.nodes) or bool(
            request.recorded_layout.engine_gpus
        )
        self.on_gpus = has_gpus if given == "auto" else given > 0
        self.base = self._base()

    # -- on CPUs -------------------------------------------------------------------------------------------------------

    def _base(self) -> Placement:
        """Return the placement on CPUs, which is also the template for placements on GPUs."""
        request, cluster = self._request, self._cluster
        gpus = int(self.on_gpus) if cluster.engine_gpus == "auto" else cluster.engine_gpus
        share = self._cores_per_gpu()
        optimizer = request.job.optimizer_settings
        colocated = self._colocated(gpus)
        return Placement(
            engines=_resolve_auto(cluster.engines, 1) if self._samples else 0,
            engine_cores=_resolve_auto(
                cluster.engine_cores, min(MAX_ENGINE_CORES, share) if self._can_tune_engines else 1
            ),
            engine_gpus=gpus,
            learner_ranks=_resolve_auto(cluster.learner_ranks, 1) if request.trains else 0,
            rank_cores=_resolve_auto(cluster.rank_cores, min(MAX_RANK_CORES, share)),
            rank_gpus=int(gpus > 0),
            dtype=("bfloat16" if gpus else "float32") if cluster.dtype == "auto" else cluster.dtype,
            max_num_seqs=_resolve_auto(cluster.max_num_seqs, CPU_SEQUENCES),
            zero_stage=_resolve_auto(cluster.zero_stage, 0),
            offload=_resolve_auto(cluster.offload, "none"),
            micro_batch_tokens=micro_batch_sizes(request)[0],
            lora=self._possible_adapters()[0] if optimizer.lora == "auto" else optimizer.adapter,
            colocated=colocated,
            takes_turns=colocated,
            has_shared_engines=cluster.share_engines and request.trains,
        )

    @property
    def _can_tune_engines(self) -> bool:
        """Whether the planner may choose engine settings. A shared engine's settings must be equal for all its jobs."""
        return self.on_gpus and not self._cluster.share_engines

    def _colocated(self, engine_gpus: int) -> bool:
        given = self._cluster.colocated
        if given == "auto":
            given = self._samples and not self._cluster.share_engines and engine_gpus > 0 and self._num_gpus == 1
        return given and self._request.trains

    def _cores_per_gpu(self) -> int:
        """Return the lowest number of cores per GPU of all nodes, so that no GPU is left without cores."""
        if not self.on_gpus or not self._nodes:
            return 1
        return max(1, min(int(node.cores // node.gpus) for node in self._nodes))

    # -- on GPUs -------------------------------------------------------------------------------------------------------

    def iterate_balanced(self) -> Iterator[Placement]:
        """Yield placements on GPUs, best first.

        The placements are sorted by these keys:

        1. Memory savings, smallest first.
        2. Numbers of GPUs for engines and for ranks, best division first.
        3. ZeRO stage, lowest first.
        """
        for lora, offload in self._memory_savings():
            for division, stage in product(self._divisions(), self._possible_stages()):
                placement = self._placement(division, lora, offload, stage)
                if self._may_fit(placement):
                    yield placement
        yield from self._fallback()

    def iterate_by_gpu_count(self) -> Iterator[Placement]:
        """Yield placements on GPUs, sorted by number of GPUs (smallest first)."""
        divisions = sorted(self._divisions(try_colocated=True), key=lambda division: division.num_gpus)
        for division, (lora, offload), stage in product(divisions, self._memory_savings(), self._possible_stages()):
            placement = self._placement(division, lora, offload, stage)
            if self._may_fit(placement):
                yield placement
        yield from self._fallback()

    def _fallback(self) -> Iterator[Placement]:
        """Yield the placement to report if no placement fits.

        This placement divides the GPUs evenly between engines and ranks, and uses all options that save memory.
        """
        lora, offload = self._memory_savings()[-1]
        yield self._placement(next(self._divisions()), lora, offload, self._possible_stages()[-1])

    def _memory_savings(self) -> list[tuple[LoraSpec | None, Offload]]:
        """Return the combinations of adapter and offload to try, smallest memory savings first."""
        optimizer, offload = self._request.job.optimizer_settings, self._cluster.offload
        offloads = OFFLOADS if offload == "auto" else (offload,)
        if not self._request.trains:
            return [(self.base.lora, self.base.offload)]
        loras = self._possible_adapters() if optimizer.lora == "auto" else [optimizer.adapter]
        plain = [(lora, each) for each in offloads[:1] for lora in loras]
        return [*plain, *((lora, each) for lora in reversed(loras) for each in offloads[1:])]

    def _possible_adapters(self) -> list[LoraSpec | None]:
        """Return the possible values of `lora: auto`. The value None means training without LoRA.

        If the model is already an adapter, the only value is this adapter's settings. With shared engines, None is
        returned only if the job cannot use LoRA.
        """
        request = self._request
        if request.adapter is not None:
            return [request.adapter]
        if self._cluster.share_engines and request.can_use_lora:
            return [LoraSpec()]
        return [None, LoraSpec()] if self.on_gpus and request.can_use_lora else [None]

    def _possible_stages(self) -> Sequence[int]:
        if self._cluster.zero_stage != "auto":
            return (self._cluster.zero_stage,)
        if not self._request.trains:
            return (0,)
        model = self._request.model
        return STAGES[:3] if model is not None and model.cache_shape.state_bytes else STAGES

    def _placement(self, division: _GpuDivision, lora: LoraSpec | None, offload: Offload, stage: int) -> Placement:
        base, cluster = self.base, self._cluster
        cores = base.engine_cores
        if cluster.engine_cores == "auto" and self._can_tune_engines:
            cores *= max(1, division.engine_gpus)
        sequences = base.max_num_seqs
        if cluster.max_num_seqs == "auto" and self._can_tune_engines and division.engines:
            sequences = self._choose_max_num_seqs(division.engine_gpus)
        return replace(
            base,
            engines=division.engines,
            engine_cores=cores,
            engine_gpus=division.engine_gpus,
            learner_ranks=division.ranks,
            zero_stage=stage,
            offload=offload,
            max_num_seqs=sequences,
            lora=lora,
            colocated=division.colocated,
            takes_turns=division.colocated,
        )

    # -- divisions of GPUs ---------------------------------------------------------------------------------------------

    def _divisions(self, *, try_colocated: bool = False) -> Iterator[_GpuDivision]:
        """Yield the possible divisions of the GPUs, best first. With `try_colocated`, include colocated divisions."""
        cluster, base, total = self._cluster, self.base, self._num_gpus
        found = False
        if base.colocated or (try_colocated and self._can_colocate):
            for number in range(max(1, total), 0, -1):
                if (
                    _is_allowed(cluster.engines, number)
                    and _is_allowed(cluster.learner_ranks, number)
                    and base.engine_gpus == 1
                ):
                    found = True
                    yield _GpuDivision(number, 1, number, colocated=True)
        if not base.colocated:
            for gpus in self._engine_gpus():
                for division in self._iterate_disjoint_divisions(gpus):
                    found = True
                    yield division
        if not found:
            yield _GpuDivision(base.engines, base.engine_gpus, base.learner_ranks, base.colocated)

    @property
    def _can_colocate(self) -> bool:
        return (
            self._cluster.colocated == "auto"
            and self._samples
            and self._request.trains
            and not self._cluster.share_engines
            and self._cluster.engine_gpus in ("auto", 1)
        )

    def _iterate_disjoint_divisions(self, gpus: int) -> Iterator[_GpuDivision]:
        """Yield divisions in which engines (with `gpus` GPUs each) and ranks use different GPUs, best first.

        Divisions that use the most GPUs come first. Among these, the most even divisions between engines and ranks come
        first, and then the divisions with the fewest ranks.
        """
        cluster, total = self._cluster, self._num_gpus
        engines = range(1, total // gpus + 1) if self._samples else range(1)
        ranks = range(1, total + 1) if self._request.trains else range(1)
        if cluster.share_engines and cluster.engines == "auto":
            engines = range(1, 2)
        if cluster.share_engines and cluster.learner_ranks == "auto" and self._request.trains:
            ranks = range(1, 2)
        pairs = [
            (engine_count, rank_count)
            for engine_count in _possible_values(cluster.engines if self._samples else "auto", engines)
            for rank_count in _possible_values(cluster.learner_ranks if self._request.trains else "auto", ranks)
            if engine_count * gpus + rank_count <= total
        ]

        def sort_key(pair: tuple[int, int]) -> tuple[int, int, int]:
            used = pair[0] * gpus
            return total - used - pair[1], abs(used - pair[1]), pair[1]

        for engine_count, rank_count in sorted(pairs, key=sort_key):
            yield _GpuDivision(engine_count, gpus, rank_count)

    def _engine_gpus(self) -> list[int]:
        """Return the possible numbers of GPUs per engine, best first.

        For `auto`, a number is possible only if the engine's cache can hold a full-length sequence.
        """
        cluster = self._cluster
        if cluster.engine_gpus != "auto":
            return [cluster.engine_gpus]
        if not self._samples or cluster.share_engines or not self._nodes:
            return [self.base.engine_gpus]
        per_node, model = int(max(node.gpus for node in self._nodes)), self._request.model
        numbers = [number for number in TENSOR_PARALLEL if number <= per_node]
        gpu_bytes = self._largest_gpu
        if model is None or gpu_bytes is None:
            return numbers[:1]
        numbers = [number for number in numbers if model.heads % number == 0]
        cached = {number: self._num_cached_sequences(number, MIN_GPU_SEQUENCES, gpu_bytes) for number in numbers}
        many = [number for number in numbers if cached[number] >= MIN_SEQUENCES_AT_ONCE]
        return [*many, *(number for number in numbers if 1.0 <= cached[number] < MIN_SEQUENCES_AT_ONCE)]

    def _num_cached_sequences(self, gpus: int, max_num_seqs: int, gpu_bytes: int) -> float:
        """Return the number of full-length sequences that an engine's cache holds."""
        placement = replace(self.base, engine_gpus=gpus, max_num_seqs=max_num_seqs, colocated=False)
        memory = estimate_engine_memory(self._request, placement, gpu_bytes)
        return 0.0 if memory is None else memory.num_sequences or 0.0

    @cache  # noqa: B019 - a search lives as long as one call
    def _choose_max_num_seqs(self, engine_gpus: int) -> int:
        """Return `max_num_seqs`: the largest power of two at which all sequences fit in the engine's cache.

        Each sequence is assumed to fill a quarter of the context.
        """
        smallest = min((node.usable_gpu_bytes for node in self._nodes if node.usable_gpu_bytes), default=None)
        if smallest is None or self._request.model is None:
            return CPU_SEQUENCES
        number = MAX_GPU_SEQUENCES
        while (
            number > MIN_GPU_SEQUENCES and SHORTER * self._num_cached_sequences(engine_gpus, number, smallest) < number
        ):
            number //= 2
        return number

    def _may_fit(self, placement: Placement) -> bool:
        """Return whether a single rank fits on the largest GPU; a fast check before the exact check."""
        if not placement.learner_ranks or self._largest_gpu is None:
            return True
        return self._rank_fits(placement.learner_ranks, placement.zero_stage, placement.offload, placement.lora)

    @cache  # noqa: B019 - a search lives as long as one call
    def _rank_fits(self, ranks: int, stage: int, offload: Offload, lora: LoraSpec | None) -> bool:
        smallest = replace(
            self.base,
            learner_ranks=ranks,
            zero_stage=stage,
            offload=offload,
            lora=lora,
            micro_batch_tokens=micro_batch_sizes(self._request)[-1],
        )
        memory = estimate_rank_memory(self._request, smallest, 0)
        return memory is None or self._largest_gpu is None or memory.gpu_bytes <= self._largest_gpu


def _resolve_auto(value: Value | str, auto: Value) -> Value:
    """Return the value of a setting. If the value is the string "auto", return the argument `auto` instead."""
    return auto if value == "auto" else value  # type: ignore[return-value]


def _is_allowed(given: int | str, value: int) -> bool:
    return given in ("auto", value)


def _possible_values(given: int | str, possible: Sequence[int]) -> Sequence[int]:
    return possible if isinstance(given, str) else (given,)


def _largest_known(sizes: Sequence[int | None]) -> int | None:
    """Return the largest size; None if a size is unknown."""
    known = [size for size in sizes if size is not None]
    return max(known, default=None) if len(known) == len(sizes) else None


# -- memory of a placement ---------------------------------------------------------------------------------------------


def estimate_engine_memory(request: PlanRequest, placement: Placement, gpu_bytes: int | None) -> MemoryEstimate | None:
    """Return the memory of an engine on GPUs with `gpu_bytes` of memory each; None if the model is unknown."""
    if request.model is None:
        return None
    memory = engine_memory(
        request.model,
        placement,
        gpus=placement.engine_gpus,
        itemsize=placement.bytes_per_weight,
        context_length=request.context_length,
        gpu_bytes=gpu_bytes,
        gpu_share=placement.gpu_share,
        lora=placement.lora,
    )
    return with_time_sharing(memory) if placement.shares_gpus and placement.takes_turns else memory


def estimate_rank_memory(request: PlanRequest, placement: Placement, rank: int) -> MemoryEstimate | None:
    """Return the memory of the learner rank with index `rank`; None if the model is unknown."""
    if request.model is None:
        return None
    job = request.job
    memory = rank_memory(
        request.model,
        placement,
        on_gpu=placement.rank_gpus > 0,
        itemsize=placement.bytes_per_weight,
        max_length=request.context_length,
        keeps_reference=job.method.type == "reinforcement" and job.reinforcement.algorithm.kl_coef > 0,
        lora=placement.lora,
        rank=rank,
    )
    return with_time_sharing(memory, OFFLOAD_SLACK) if placement.shares_gpus and placement.takes_turns else memory
