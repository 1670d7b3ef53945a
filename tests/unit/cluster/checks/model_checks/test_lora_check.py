"""The check of `lora`, and of a start model that is an adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.planning.model_folder import ModelFolder, read_sizes
from agent_rft.errors import Problem
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import AdapterConfig, write_adapter
from agent_rft.trainer.model.lora import find_linear_shapes, tensor_shapes
from tests.support.paths import BASE


def problems_of(
    lora: dict[str, Any] | None, model: Path = BASE, method: str = "supervised", *, trains: bool = True
) -> list[Problem]:
    settings: dict[str, Any] = {"algorithm": {"lora": lora}}
    if method == "reinforcement":
        settings["grader"] = {"type": "length", "max_chars": 100}
    spec = {"model": str(model), "training_file": "", "method": {"type": method, method: settings}}
    return read_model(JobSpec.model_validate(spec), ModelFolder.find(str(model)), trains=trains)[1]


def adapter_in(folder: Path, base: Path = BASE, rank: int = 4, alpha: float = 32.0, **changed: Any) -> Path:
    """A folder as a job with `lora` leaves it."""
    for file in BASE.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    layers = find_linear_shapes(AutoConfig.from_pretrained(BASE), LoraSpec())
    tensors = {name: torch.zeros(shape) for name, shape in tensor_shapes(layers, rank).items()}
    write_adapter(folder, tensors, AdapterConfig(rank, alpha).to_peft_config(str(base)) | changed)
    return folder


@pytest.mark.parametrize("method", ["supervised", "reinforcement"])
def test_a_job_with_lora_passes(method: str) -> None:
    assert problems_of({}, method=method) == []


@pytest.mark.parametrize(
    ("lora", "code", "field", "message", "fix"),
    [
        ({"targets": ["q_proj", "query"]}, "unknown_target", "targets", "named 'query'", "use q_proj, k_proj, v_proj"),
        ({"targets": ["lm_head"]}, "unknown_target", "targets", "named 'lm_head'", "use q_proj"),
        ({"rank": 400}, "rank_too_large", "rank", "is 400, but .* rank of at most 160", "160 or less"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_problems(
    lora: dict[str, Any], code: str, field: str, message: str, fix: str
) -> None:
    [problem] = problems_of(lora)
    assert (problem.code, problem.field) == (code, f"method.supervised.algorithm.lora.{field}")
    with pytest.raises(AssertionError, match=f"{message}.*{fix}"):
        raise AssertionError(f"{problem.message}; {problem.fix}")


def test_reinforcement_needs_adapters_in_the_engine(tmp_path: Path) -> None:
    for file in BASE.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((BASE / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["KimiLinearForCausalLM"]}))
    [problem] = problems_of({}, tmp_path, "reinforcement")
    assert (problem.code, problem.field) == ("lora_unsupported", "method.reinforcement.algorithm.lora")
    assert problem.message.endswith("does not support LoRA for KimiLinearForCausalLM")
    assert problems_of({}, tmp_path) == []


def test_training_goes_on_with_an_adapter_of_the_same_shape_only(tmp_path: Path) -> None:
    model = adapter_in(tmp_path)
    assert problems_of({"rank": 4}, model) == []
    assert problems_of(None, model, trains=False) == []
    for lora in (None, {"rank": 8}, {"rank": 4, "alpha": 8}):
        [problem] = problems_of(lora, model)
        assert (problem.code, problem.field) == ("adapter_mismatch", "model")
        assert "is an adapter of rank 4 and alpha 32, but" in problem.message
        assert "agent-rft models merge FOLDER OUT" in problem.fix
    [problem] = problems_of({"rank": 4, "targets": ["q_proj"]}, model)
    assert problem.code == "adapter_of_another_model"
    assert problem.message.endswith("down_proj.lora_A.weight has 4 x 320 instead of no weights (and 23 more)")


def test_an_adapter_needs_its_base_and_one_that_fits(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    model, other = adapter_in(tmp_path, base=tmp_path / "gone"), tmp_path_factory.mktemp("other")
    [problem] = problems_of({"rank": 4}, model)
    assert (problem.code, problem.field) == ("missing_model", "model")
    assert "is an adapter, and its base model cannot be used: the folder" in problem.message
    assert "base_model_name_or_path" in problem.fix
    assert read_sizes(ModelFolder.find(str(model))) == (None, [problem])

    for file in BASE.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((BASE / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    [problem] = problems_of({"rank": 4}, adapter_in(tmp_path, base=other))
    assert (problem.code, problem.field) == ("adapter_of_another_model", "model")
    assert f"does not match its base model {other} or the setting `lora`" in problem.message
    assert "base_model_name_or_path" in problem.fix


@pytest.mark.parametrize(
    "changed", [{"peft_type": "LOHA"}, {"use_dora": True}, {"r": 0}, {"target_modules": 3}, {"rank_pattern": {"q": 8}}]
)
def test_an_adapter_of_another_kind_is_refused_with_the_field(tmp_path: Path, changed: dict[str, Any]) -> None:
    [problem] = problems_of({"rank": 4}, adapter_in(tmp_path, **changed))
    assert (problem.code, problem.field) == ("not_a_model", "model")
    assert f"adapter_config.json: {next(iter(changed))}" in problem.message
    assert "merge the adapter" in problem.fix


def test_sizes_of_an_adapter_s_model_are_those_of_its_base(tmp_path: Path) -> None:
    folder = ModelFolder.find(str(adapter_in(tmp_path)))
    sizes = read_sizes(ModelFolder.find(str(BASE)))
    assert sizes[0] is not None
    assert (folder.path, folder.base) == (tmp_path, BASE)
    assert read_sizes(folder) == sizes
    (tmp_path / "config.json").unlink()  # PEFT writes none
    assert read_sizes(ModelFolder.find(str(tmp_path))) == sizes


def test_a_truncated_adapter_is_found_by_its_header(tmp_path: Path) -> None:
    file = adapter_in(tmp_path) / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert [problem.code for problem in problems_of({"rank": 4}, tmp_path)] == ["corrupt_weights"]
