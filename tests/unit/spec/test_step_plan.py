"""How `auto` is resolved."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.spec.job import JobSpec
from agent_rft.spec.step_plan import MethodType, StepPlan, auto_learning_rate, resolve_plan
from tests.support.builders import job

B = 10**9


def hyper(algorithm: dict[str, Any] | None = None, **hyperparameters: Any) -> JobSpec:
    return job({"hyperparameters": hyperparameters, "algorithm": algorithm or {}})


def plan_of(spec: JobSpec, num_rows: int = 240) -> StepPlan:
    return resolve_plan(spec, num_rows, 8 * B)[0]


def test_batches_epochs_and_groups_follow_the_number_of_rows() -> None:
    plan = plan_of(hyper(), 10)
    assert (plan.batch_size, plan.n_epochs, plan.steps, plan.group_size, plan.rollouts_per_step) == (
        10,
        32,
        32,
        13,
        130,
    )
    plan = plan_of(hyper(), 240)
    assert (plan.batch_size, plan.n_epochs, plan.steps, plan.group_size, plan.eval_interval) == (16, 1, 15, 8, 3)
    plan = plan_of(hyper(), 1000)
    assert (plan.batch_size, plan.n_epochs, plan.steps, plan.group_size, plan.eval_interval) == (16, 1, 63, 8, 15)
    assert plan_of(hyper(), 1).group_size == 16


def test_given_numbers_are_kept_and_are_no_choices() -> None:
    assert plan_of(hyper(compute_multiplier=0.1)).group_size == 2
    assert plan_of(hyper(compute_multiplier=2)).group_size == 16
    assert plan_of(hyper(reasoning_effort="low")).max_reasoning_tokens == 512
    assert plan_of(hyper(batch_size=64, n_epochs=3), 10).steps == 1
    given = {"batch_size": 4, "n_epochs": 2, "compute_multiplier": 1, "eval_interval": 5}
    plan, choices = resolve_plan(hyper({"learning_rate": 3e-5}, **given), 240, B)
    assert (plan.learning_rate, choices) == (3e-5, ())


@pytest.mark.parametrize(
    ("method", "num_parameters", "rate"),
    [
        ("reinforcement", 560_000, 1.2e-4),
        ("reinforcement", 134_515_008, 7.7e-6),
        ("reinforcement", 600_000_000, 3.7e-6),
        ("reinforcement", 4 * B, 1.4e-6),
        ("reinforcement", 8 * B, 1e-6),
        ("reinforcement", 32 * B, 5e-7),
        ("supervised", 134_515_008, 7.7e-5),
        ("supervised", 8 * B, 1e-5),
    ],
)
def test_the_learning_rate_follows_the_number_of_parameters(
    method: MethodType, num_parameters: int, rate: float
) -> None:
    assert auto_learning_rate(method, num_parameters) == pytest.approx(rate)


def test_the_multiplier_scales_an_automatic_and_a_given_rate() -> None:
    assert plan_of(hyper(learning_rate_multiplier=3)).learning_rate == pytest.approx(3e-6)
    scaled = plan_of(hyper({"learning_rate": 1e-5}, learning_rate_multiplier=3))
    assert scaled.learning_rate == pytest.approx(3e-5)


def test_each_choice_says_what_it_follows_from() -> None:
    choices = {choice.setting: choice for choice in resolve_plan(hyper(), 240, 560_000)[1]}
    assert {name: choice.value for name, choice in choices.items()} == {
        "hyperparameters.batch_size": 16,
        "hyperparameters.n_epochs": 1,
        "hyperparameters.compute_multiplier": 1,
        "hyperparameters.eval_interval": 3,
        "algorithm.learning_rate": 1.2e-4,
    }
    assert "560,000 parameters" in choices["algorithm.learning_rate"].reason
    assert "240 rows" in choices["hyperparameters.n_epochs"].reason
    for num_rows, rollouts in ((240, 8), (12, 11), (3, 16)):
        compute = next(
            c for c in resolve_plan(hyper(), num_rows, 560_000)[1] if c.setting.endswith("compute_multiplier")
        )
        assert compute.reason == f"{num_rows} rows, {rollouts} rollouts of each"
