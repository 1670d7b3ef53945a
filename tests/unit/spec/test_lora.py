"""The settings of LoRA, and the learning rate that follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.step_plan import resolve_plan
from tests.support.builders import job

B = 10**9


def test_the_automatic_learning_rate_of_lora_is_ten_times_that_of_full_training() -> None:
    full, lora = (resolve_plan(job({"algorithm": {"lora": it}}), 240, 8 * B) for it in (None, {}))
    assert (full[0].learning_rate, lora[0].learning_rate) == (1e-6, 1e-5)
    assert [choice.reason for choice in lora[1] if choice.setting == "algorithm.learning_rate"] == [
        "1e-06 x sqrt(8e+09 / 8,000,000,000 parameters) x 10 for LoRA"
    ]
    given = resolve_plan(job({"algorithm": {"lora": {}, "learning_rate": 3e-4}}), 240, 8 * B)
    assert given[0].learning_rate == 3e-4


def test_an_empty_mapping_has_the_usual_values() -> None:
    spec = LoraSpec()
    assert (spec.rank, spec.alpha, spec.targets) == (32, 32.0, "all-linear")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 513}, "rank"),
        ({"alpha": 0}, "alpha"),
        ({"alpha": float("inf")}, "alpha"),
        ({"targets": []}, "targets"),
        ({"targets": ["q_proj|v_proj.*"]}, "targets"),
        ({"targets": ["x" * 201]}, "targets"),
        ({"targets": "q_proj"}, "targets"),
        ({"r": 8}, "r"),
    ],
)
def test_values_that_mean_nothing_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        LoraSpec.model_validate(settings)
    assert {error["loc"][0] for error in raised.value.errors()} == {field}
