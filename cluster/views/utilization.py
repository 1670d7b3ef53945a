"""Utilization of a run's engines and learner ranks, and a suggestion for how many of each to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from agent_rft.cluster.planning.placement import Placement
from agent_rft.events import UtilizationMeasured

MIN_GAIN = 0.15
"""Minimum share of the step time that a suggestion must save. Smaller savings are within the measurement error."""


def measure_utilization(
    steps: Sequence[Mapping[str, float]], placement: Placement, *, overlaps: bool
) -> UtilizationMeasured | None:
    """Measure how busy engines and learner ranks were, and suggest how many of each to use.

    Args:
        steps: Metrics of the steps.
        placement: Placement of the run.
        overlaps: Whether engines sample while ranks learn.

    Returns:
        The busy shares and the suggestion; None if no step has recorded how busy the engines were. If engines and ranks
        share devices, nothing is suggested.
    """
    measured = [step for step in steps if "engine_busy_share" in step and "time_learn_s" in step]
    total_s = sum(step["time_step_s"] for step in measured)
    if not total_s:
        return None
    engines = sum(step["engine_busy_share"] * step["time_step_s"] for step in measured) / total_s
    ranks = sum(step["time_learn_s"] for step in measured) / total_s
    better = None if placement.colocated else _suggest_numbers(engines, ranks, placement, overlaps)
    return UtilizationMeasured(
        engines=placement.engines,
        learner_ranks=placement.learner_ranks,
        engine_share=engines,
        rank_share=ranks,
        better_engines=None if better is None else better[0],
        better_learner_ranks=None if better is None else better[1],
    )


def _suggest_numbers(
    engine_share: float, rank_share: float, placement: Placement, overlaps: bool
) -> tuple[int, int] | None:
    """Suggest numbers of engines and ranks for the same devices; return None if the gain is small."""
    current = placement.engines, placement.learner_ranks
    engine, rank = placement.engine_gpus or placement.engine_cores, placement.rank_gpus or placement.rank_cores
    devices = current[0] * engine + current[1] * rank

    def step_share(numbers: tuple[int, int]) -> float:
        sampling, learning = engine_share * current[0] / numbers[0], rank_share * current[1] / numbers[1]
        return max(sampling, learning) if overlaps else sampling + learning

    possible = [
        numbers
        for numbers in product(range(1, devices // engine + 1), range(1, devices // rank + 1))
        if numbers[0] * engine + numbers[1] * rank <= devices
    ]
    best = min(possible, key=lambda numbers: (step_share(numbers), abs(numbers[0] - current[0])))
    return best if step_share(best) <= (1 - MIN_GAIN) * step_share(current) else None
