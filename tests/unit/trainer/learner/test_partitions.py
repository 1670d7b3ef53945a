"""Which models a rank partitions."""

from __future__ import annotations

import pytest

from agent_rft.errors import UserError
from agent_rft.trainer.learner.rank_config import check_zero3_support
from agent_rft.trainer.model.policy import Policy
from tests.support.shapes import tiny_shape


def test_zero_3_is_refused_for_layers_that_run_per_sequence() -> None:
    check_zero3_support(Policy(tiny_shape("qwen3"), 1.0))
    with pytest.raises(UserError, match=r"Lfm2ShortConv.*; set cluster\.zero_stage to 2"):
        check_zero3_support(Policy(tiny_shape("lfm2"), 1.0))
