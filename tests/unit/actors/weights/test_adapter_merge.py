"""Merging an adapter into its base, also by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from typer.testing import CliRunner

from agent_rft.actors.engine.vllm_internals import supports_adapters
from agent_rft.actors.weights.adapter_merge import merge_adapter
from agent_rft.cli.main import app
from agent_rft.errors import UserError
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.learner.adapter import AdapterConfig, AdapterFolder, write_adapter
from agent_rft.trainer.model.lora import (
    add_adapter,
    expand_targets,
    find_linear_shapes,
    get_adapter_tensors,
    tensor_shapes,
)
from agent_rft.trainer.model.policy import load_policy
from docs.generator.architectures import FOUND
from tests.support.shapes import SHAPES, shape_config, write_shape
from tests.unit.trainer.model.test_policy import save_model, tokens
from tests.unit.trainer.model.test_shapes import batch_of

LORA = LoraSpec(rank=4)
FEW, nightly = ("gpt_oss", "nemotron_h"), pytest.mark.nightly
"""Experts in one tensor, and layers whose names in the files are older ones."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model of several files."""
    whole = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "whole"))
    whole.save_pretrained(tmp_path / "base", max_shard_size="20KB")
    return tmp_path / "base"


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """An adapter that changes something, in a folder as a checkpoint's."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    layers = find_linear_shapes(
        AutoModelForCausalLM.from_pretrained(base).config, LoraSpec(targets=("q_proj", "up_proj"))
    )
    random = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=random) / 4 for name, shape in tensor_shapes(layers, 4).items()}
    write_adapter(folder, tensors, AdapterConfig(4, 2.0, ("q_proj", "up_proj")).to_peft_config(str(base)))
    for name, text in (("config.json", (base / "config.json").read_text()), ("chat_template.jinja", "mine")):
        (folder / name).write_text(text)
    (folder / "learner.json").write_text("{}")
    return folder


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.tensor(tokens(14), dtype=torch.int64)[None]).logits
    return found


def test_the_merged_model_computes_what_base_and_adapter_do(base: Path, adapter: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["models", "merge", str(adapter), str(tmp_path / "out")])
    assert (shown.exit_code, shown.exception) == (0, None)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(base)
    before = logits(plain)
    wanted = logits(PeftModel.from_pretrained(plain, str(adapter)))
    torch.testing.assert_close(logits(merged), wanted, atol=1e-5, rtol=1e-5)
    assert (wanted - before).abs().max() > 0.1
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == len(list(base.glob("*.safetensors"))) > 1
    left = {path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".safetensors"}
    assert left == {"config.json", "chat_template.jinja", "model.safetensors.index.json"}


@pytest.mark.filterwarnings("ignore:.*is falling back to its reference")
@pytest.mark.parametrize("shape", [pytest.param(shape, marks=() if shape in FEW else nightly) for shape in SHAPES])
def test_each_architecture_computes_with_a_merged_adapter_as_with_the_adapter(shape: str, tmp_path: Path) -> None:
    base, batch = write_shape(shape, tmp_path / "base"), batch_of(9, 4)
    policy = load_policy(base, torch.float32, 1.0)
    before = policy(batch)[0].detach()
    add_adapter(policy, LORA, 1)
    random = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(t.shape, generator=random) / 8 for name, t in get_adapter_tensors(policy).items()}
    for name, tensor in get_adapter_tensors(policy).items():
        tensor.data.copy_(tensors[name])
    wanted = policy(batch)[0].detach()
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "config.json").write_text((base / "config.json").read_text())
    write_adapter(folder, tensors, AdapterConfig(4, LORA.alpha, expand_targets(policy, LORA)).to_peft_config(str(base)))
    found = AdapterFolder.read(folder)
    assert found is not None
    merge_adapter(found, base, tmp_path / "out")
    merged = load_policy(tmp_path / "out", torch.float32, 1.0)
    torch.testing.assert_close(merged(batch)[0].detach(), wanted, atol=5e-5, rtol=1e-5)
    assert (wanted - before).abs().max() > 0.1


@pytest.mark.nightly
def test_the_manual_says_which_architectures_have_adapters_in_the_engine() -> None:
    for shape, row in json.loads(FOUND.read_text()).items():
        name = MODEL_FOR_CAUSAL_LM_MAPPING[type(shape_config(shape))].__name__
        assert row["lora"] == ("yes" if supports_adapters(name) else "supervised only"), name


def test_an_adapter_of_another_model_is_not_merged(adapter: Path, tmp_path: Path) -> None:
    found = AdapterFolder.read(adapter)
    assert found is not None
    shallow = save_model(tmp_path / "shallow", num_hidden_layers=1)
    with pytest.raises(
        UserError, match=r"changes model.layers.1.mlp.up_proj.weight, which .* do not contain. Merge with PEFT"
    ):
        merge_adapter(found, shallow, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_whole_model_a_lost_base_and_an_existing_folder_are_refused(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    def error_of(*arguments: Path) -> str:
        return str(CliRunner().invoke(app, ["models", "merge", *map(str, arguments)]).exception)

    assert "has no adapter_config.json" in error_of(base, tmp_path / "out")
    assert f"{tmp_path} already exists" in error_of(adapter, tmp_path)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "/gone"}))
    assert "its base model cannot be used: the folder /gone does not exist" in error_of(adapter, tmp_path / "out")
