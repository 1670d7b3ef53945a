"""Under ZeRO 3 each weight is partitioned as it is read, with a fake of DeepSpeed; `tests/ray` has the real one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from agent_rft.trainer.learner.training_model import partition_on_read
from tests.support.architectures import ARCHITECTURES

CPU = torch.device("cpu")


class FakeInit:
    """DeepSpeed's, for a single rank: a partition is a copy, and the parameter becomes empty."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.partitioned: list[Any] = []

    def _convert_to_deepspeed_param(self, parameter: Any) -> None:
        parameter.ds_id, parameter.ds_shape = len(self.partitioned), parameter.shape
        parameter.partition = lambda: self._partition(parameter)

    def _partition(self, parameter: Any) -> None:
        parameter.ds_tensor = parameter.detach().clone()
        parameter.data = torch.empty(0)
        self.partitioned.append(parameter)


def deepspeed(inits: list[FakeInit]) -> Any:
    def init(dtype: torch.dtype) -> FakeInit:
        inits.append(FakeInit(dtype))
        return inits[-1]

    return SimpleNamespace(zero=SimpleNamespace(Init=init))


def test_each_weight_is_partitioned_once_with_its_value(tmp_path: Path) -> None:
    """Experts are merged as they are read, and tied embeddings are registered twice."""
    for name in ("qwen3_moe", "gemma3"):
        AutoModelForCausalLM.from_config(ARCHITECTURES[name]()).save_pretrained(tmp_path / name)
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        inits: list[FakeInit] = []
        with partition_on_read(deepspeed(inits), torch.float32, CPU):
            model = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        [init] = inits
        assert len(init.partitioned) == len(list(model.parameters()))
        for (key, expected), parameter in zip(plain.named_parameters(), model.parameters(), strict=True):
            assert torch.equal(parameter.ds_tensor, expected) and parameter.numel() == 0, key
        for (key, expected), buffer in zip(plain.named_buffers(), model.buffers(), strict=True):
            assert torch.equal(buffer, expected), key


def test_what_is_not_read_from_files_stays_whole() -> None:
    inits: list[FakeInit] = []
    with partition_on_read(deepspeed(inits), torch.float32, CPU):
        assert nn.Linear(2, 3).weight.numel() == 6
    assert inits[0].partitioned == []
    after = nn.Parameter(torch.ones(2))
    after._is_hf_initialized = True  # type: ignore[attr-defined]
    nn.Module().register_parameter("after", after)
    assert inits[0].partitioned == []
