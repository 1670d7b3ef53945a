from pathlib import Path

import torch
from peft import LoraConfig, PeftConfig
from safetensors.torch import load_file

from agent_rft.trainer.learner.adapter import ALL_LINEAR, AdapterConfig, write_adapter


def test_peft_reads_the_config_that_we_write(tmp_path: Path) -> None:
    tensors = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(4, 8)}
    write_adapter(tmp_path, tensors, AdapterConfig(4, 8.0, ("up_proj",)).to_peft_config("/models/base"))
    read = PeftConfig.from_pretrained(str(tmp_path))
    assert isinstance(read, LoraConfig)
    assert (read.r, read.lora_alpha, read.target_modules) == (4, 8.0, {"up_proj"})
    assert read.base_model_name_or_path == "/models/base"
    assert torch.equal(load_file(tmp_path / "adapter_model.safetensors")[next(iter(tensors))], torch.ones(4, 8))


def test_all_linear_layers_are_written_as_pefts_own_word() -> None:
    assert AdapterConfig(4, 8.0).to_peft_config("base")["target_modules"] == ALL_LINEAR
