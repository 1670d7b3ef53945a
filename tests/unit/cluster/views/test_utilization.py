"""How busy both sides of a run were, and which numbers of them would fit the work better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_rft.cluster.planning.placement import Placement
from agent_rft.cluster.views.utilization import measure_utilization

EIGHT = Placement(
    4, 4, 1, 4, 16, 1, "bfloat16", max_num_seqs=256, zero_stage=2, offload="none", micro_batch_tokens=8192
)


def steps(engine_share: float, learn_s: float, step_s: float = 100.0) -> list[dict[str, float]]:
    first = {"time_step_s": 900.0, "time_learn_s": 900.0}  # nothing is known of its engines
    return [first, *[{"engine_busy_share": engine_share, "time_learn_s": learn_s, "time_step_s": step_s}] * 3]


@pytest.mark.parametrize(
    ("engine_share", "rank_share", "better"),
    [
        (1.0, 0.3, (6, 2)),
        (0.25, 0.95, (2, 6)),
        (0.9, 0.8, None),
        (1.0, 0.85, None),
    ],
)
def test_the_side_that_waits_less_gets_more_gpus(
    engine_share: float, rank_share: float, better: tuple[int, int] | None
) -> None:
    found = measure_utilization(steps(engine_share, 100 * rank_share), EIGHT, overlaps=True)
    assert found is not None
    assert (found.engine_share, found.rank_share) == pytest.approx((engine_share, rank_share))
    assert (found.better_engines, found.better_learner_ranks) == (better or (None, None))


def test_the_mean_counts_long_steps_more() -> None:
    found = measure_utilization([*steps(1.0, 10.0, 100.0)[1:2], *steps(0.5, 90.0, 300.0)[1:2]], EIGHT, overlaps=True)
    assert found is not None
    assert (found.engine_share, found.rank_share) == pytest.approx((0.625, 0.25))


def test_sides_that_work_one_after_the_other_share_a_step() -> None:
    """Nobody waits less than the other side takes, so equal halves are best for equal work."""
    even = measure_utilization(steps(0.5, 50.0), EIGHT, overlaps=False)
    assert even is not None and even.better_engines is None
    uneven = measure_utilization(steps(0.95, 5.0), EIGHT, overlaps=False)
    assert uneven is not None and uneven.better_engines == 6


@pytest.mark.parametrize(
    "changes", [{"colocated": True}, {"engine_gpus": 0, "rank_gpus": 0, "engines": 1, "learner_ranks": 1}]
)
def test_nothing_is_suggested_where_there_is_no_choice(changes: dict[str, Any]) -> None:
    placement = replace(EIGHT, **({"engine_cores": 1, "rank_cores": 1} | changes))
    found = measure_utilization(steps(1.0, 10.0), placement, overlaps=True)
    assert found is not None and found.better_engines is None
    assert str(found) == "engines were busy 100% of the time, learner ranks 10%"


def test_the_suggestion_is_printed() -> None:
    found = measure_utilization(steps(1.0, 30.0), EIGHT, overlaps=True)
    assert found is not None
    wanted = "steps would be shorter with 6 engines and 2 learner ranks (this run has 4 and 4)"
    assert str(found) == f"engines were busy 100% of the time, learner ranks 30%; {wanted}"


def test_without_a_measurement_there_is_no_comparison() -> None:
    assert measure_utilization([{"time_step_s": 1.0, "time_learn_s": 0.5}], EIGHT, overlaps=True) is None
    assert measure_utilization([], EIGHT, overlaps=True) is None
