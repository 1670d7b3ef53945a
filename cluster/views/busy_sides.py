"""The busy shares of engines and learner ranks in a run, and the numbers of both with which neither waits much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from agent_rft.cluster.planning.placement import Placement
from agent_rft.events import SidesCompared

MIN_GAIN = 0.15
"""Share of the time of a step that other numbers must save to be suggested; shares differ by some percent anyway."""


def compare_sides(
    steps: Sequence[Mapping[str, float]], placement: Placement, *, overlaps: bool
) -> SidesCompared | None:
    """Compare how busy both sides were.

    Args:
        steps: Metrics of the steps.
        placement: The run's layout.
        overlaps: Whether engines sample while ranks learn.

    Returns:
        None if no step has the busy share of engines. Other numbers are suggested only for engines and ranks that
        have devices of their own.
    """
    measured = [step for step in steps if "engine_busy_share" in step and "time_learn_s" in step]
    total_s = sum(step["time_step_s"] for step in measured)
    if not total_s:
        return None
    engines = sum(step["engine_busy_share"] * step["time_step_s"] for step in measured) / total_s
    ranks = sum(step["time_learn_s"] for step in measured) / total_s
    better = None if placement.colocated else _better(engines, ranks, placement, overlaps)
    return SidesCompared(
        engines=placement.engines,
        learner_ranks=placement.learner_ranks,
        engine_share=engines,
        rank_share=ranks,
        better_engines=None if better is None else better[0],
        better_learner_ranks=None if better is None else better[1],
    )


def _better(engine_share: float, rank_share: float, placement: Placement, overlaps: bool) -> tuple[int, int] | None:
    """The numbers of engines and ranks on the same devices with which a step is shortest, if that saves enough.

    The work of each side is divided evenly by its number.
    """
    now = placement.engines, placement.learner_ranks
    engine, rank = placement.engine_gpus or placement.engine_cores, placement.rank_gpus or placement.rank_cores
    devices = now[0] * engine + now[1] * rank

    def duration(numbers: tuple[int, int]) -> float:
        sampling, learning = engine_share * now[0] / numbers[0], rank_share * now[1] / numbers[1]
        return max(sampling, learning) if overlaps else sampling + learning

    possible = [
        numbers
        for numbers in product(range(1, devices // engine + 1), range(1, devices // rank + 1))
        if numbers[0] * engine + numbers[1] * rank <= devices
    ]
    best = min(possible, key=lambda numbers: (duration(numbers), abs(numbers[0] - now[0])))
    return best if duration(best) <= (1 - MIN_GAIN) * duration(now) else None
