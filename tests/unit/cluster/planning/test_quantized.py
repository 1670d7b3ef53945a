"""Quantized weights are counted by their logical shape and refused; fused experts are in the memory plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.planning.cluster_plan import estimate_token_s
from agent_rft.cluster.planning.memory_estimates import GIB, LIVE_PARAMETERS, MemoryEstimate, rank_memory
from agent_rft.cluster.planning.model_folder import ModelFolder, read_sizes
from agent_rft.cluster.planning.model_shape import (
    ModelShape,
    count_parameters,
    get_text_config,
    read_config,
    read_shape,
)
from agent_rft.cluster.planning.placement import Placement
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.planning.plan_view import read_request
from agent_rft.errors import InvalidJob
from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES
from tests.support.builders import job, raw_job
from tests.support.headers import GPT_OSS_20B, MXFP4, gpt_oss_20b, write_folder
from tests.support.plans import plan_placement

EIGHT = Node("box", cores=64, gpus=8, memory_bytes=2048 * GIB, gpu_memory_bytes=80 * GIB)


def shape(folder: Path) -> ModelShape:
    config = read_config(folder)
    return read_shape(get_text_config(config), count_parameters(folder, config))


def test_gpt_oss_has_the_same_size_as_downloaded_and_in_bfloat16(tmp_path: Path) -> None:
    downloaded = shape(gpt_oss_20b(tmp_path / "mxfp4", quantized=True))
    assert downloaded == shape(gpt_oss_20b(tmp_path / "bfloat16", quantized=False))
    assert downloaded.num_parameters == pytest.approx(20.9e9, rel=0.01)
    assert 3.6e9 < downloaded.active_parameters < 4.3e9


def test_a_plan_refuses_quantized_weights_as_the_check_does(tmp_path: Path) -> None:
    model = gpt_oss_20b(tmp_path / "model", quantized=True)
    folder = ModelFolder.find(str(model))
    _, problems = read_model(job(model=str(model)), folder)
    (refused,) = [problem for problem in problems if problem.message.startswith("the weights are quantized (mxfp4)")]
    assert refused.code == "unsupported_model" and "Mxfp4Config(dequantize=True)" in refused.fix
    assert read_sizes(folder) == (None, [refused])
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(raw_job() | {"model": str(model)}))
    with pytest.raises(InvalidJob) as raised:
        read_request(path, [EIGHT])
    assert raised.value.problems == [refused]


@pytest.mark.parametrize(
    ("quantization", "tensors"),
    [
        (MXFP4, {"a_blocks": ("U8", (8, 64, 1, 16)), "a_scales": ("U8", (8, 64, 1))}),
        (
            {"quant_method": "gptq", "bits": 4},
            {
                "a.qweight": ("I32", (16, 128)),
                "a.qzeros": ("I32", (1, 16)),
                "a.scales": ("F16", (1, 128)),
                "a.g_idx": ("I32", (128,)),
            },
        ),
        ({"quant_method": "awq", "bits": 8}, {"a.qweight": ("I32", (128, 32)), "a.qzeros": ("I32", (1, 32))}),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
            {
                "a.weight_packed": ("I32", (128, 16)),
                "a.weight_scale": ("BF16", (128, 1)),
                "a.weight_shape": ("I64", (2,)),
            },
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            {
                "a.weight": ("U8", (8192, 1)),
                "a.weight.absmax": ("U8", (256,)),
                "a.weight.quant_state.bitsandbytes__nf4": ("U8", (90,)),
            },
        ),
        (
            {"quant_method": "fp8"},
            {"a.weight": ("F8_E4M3", (128, 128)), "a.weight_scale_inv": ("F32", (1, 1))},
        ),
    ],
    ids=["mxfp4", "gptq", "awq", "compressed-tensors", "bitsandbytes", "fp8"],
)
def test_packed_weights_count_as_the_weights_that_they_stand_for(
    tmp_path: Path, quantization: dict[str, Any], tensors: dict[str, Any]
) -> None:
    whole = tensors | {"norm.weight": ("BF16", (128,))}
    made = shape(write_folder(tmp_path / "model", GPT_OSS_20B | {"quantization_config": quantization}, whole))
    assert made.num_parameters == 128 * 128 + 128


def test_names_like_those_of_scales_count_in_a_model_that_is_not_quantized(tmp_path: Path) -> None:
    tensors = {"a.layer_scale": ("F32", (7,)), "b.scales": ("F32", (5,))}
    assert shape(write_folder(tmp_path / "model", GPT_OSS_20B, tensors)).num_parameters == 12


# -- fused experts -----------------------------------------------------------------------------------------------------


def of_rank(model: ModelShape) -> MemoryEstimate:
    placement = plan_placement(job(), [EIGHT], None, 4096).placement
    sharded = replace(placement, learner_ranks=8, zero_stage=3)
    return rank_memory(model, sharded, on_gpu=True, itemsize=2, max_length=4096, keeps_reference=False)


def test_all_experts_of_a_layer_are_gathered_and_sent_as_one(tmp_path: Path) -> None:
    model = shape(gpt_oss_20b(tmp_path / "model", quantized=False))
    assert model.largest_parameter == 201_088 * 2880, "the embedding is larger than 32 x 5760 x 2880"
    fused = 3 * 128 * 2048 * 2880
    many = replace(model, expert_parameters=fused)
    assert many.largest_parameter == 2 * 128 * 2048 * 2880 > 201_088 * 2880
    few, more = of_rank(model), of_rank(many)
    assert few.host["outgoing weights"] == 201_088 * 2880 * 2 > MAX_BUCKET_BYTES
    assert more.host["outgoing weights"] == many.largest_parameter * 2
    assert more.gpu["weights"] - few.gpu["weights"] == (fused - LIVE_PARAMETERS) * 2


@pytest.mark.parametrize("quantized", [True, False])
def test_no_time_is_negative(tmp_path: Path, quantized: bool) -> None:
    model = shape(gpt_oss_20b(tmp_path / "model", quantized=quantized))
    placement: Placement = plan_placement(job(), [EIGHT], model, 4096).placement
    assert estimate_token_s(job(), model, placement) > 0
