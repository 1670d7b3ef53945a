"""What a plan reads of config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.planning.model_folder import (
    MAX_AUTO_CONTEXT,
    ModelFolder,
    context_problems,
    read_sizes,
    resolve_context,
)
from agent_rft.cluster.planning.model_shape import get_text_config, read_config, read_max_context, read_shape
from tests.support.builders import job
from tests.support.paths import BASE

SIZES = {"num_attention_heads": 8, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 50}


def test_a_plan_and_the_full_check_read_the_same_sizes() -> None:
    folder = ModelFolder.find(str(BASE))
    planned, _ = read_sizes(folder)
    checked, problems = read_model(job(), folder)
    assert planned is not None and checked is not None, problems
    assert (planned.shape, planned.max_context) == (checked.shape, checked.max_context)


def test_sizes_that_old_configs_leave_out_follow_from_the_others() -> None:
    shape = read_shape(SIZES, 1000)
    assert (shape.kv_heads, shape.head_dim, shape.intermediate) == (8, 8, 96)
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
    assert read_shape(SIZES | experts, 1000).intermediate == 32


def test_a_config_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="missing or not an integer: hidden_size, vocab_size"):
        read_shape(SIZES | {"hidden_size": None, "vocab_size": "50"}, 1000)


def test_the_language_model_of_several_parts_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}, "text_config": SIZES}))
    assert get_text_config(read_config(tmp_path)) == SIZES
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 16_384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 131_072, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 131_072),
    ],
)
def test_the_longest_context_includes_rotary_scaling(config: dict[str, Any], limit: int | None) -> None:
    assert read_max_context(config) == limit


def test_an_automatic_context_is_the_models_up_to_a_limit() -> None:
    assert resolve_context(job(), 2048) == 2048
    assert resolve_context(job(), None) == resolve_context(job(), 1 << 20) == MAX_AUTO_CONTEXT
    assert resolve_context(job(cluster={"context_length": 512}), 2048) == 512
    assert context_problems(2048, 2048) == context_problems(4096, None) == []
    assert [problem.code for problem in context_problems(4096, 2048)] == ["context_too_long"]
