"""An adapter of another base is found by the shapes in its file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from agent_rft.actors.weights.adapter_fit import find_adapter_problem

MODULE = "model.layers.0.mlp.up_proj"


def folders(at: Path, shape: tuple[int, int], *, name: str = MODULE) -> tuple[Path, Path]:
    """An adapter of rank 2 for a weight of [6, 4], and a base whose weight has this shape."""
    adapter, base = at / "adapter", at / "base"
    adapter.mkdir()
    base.mkdir()
    tensors = {
        f"base_model.model.{MODULE}.lora_A.weight": torch.zeros(2, 4),
        f"base_model.model.{MODULE}.lora_B.weight": torch.zeros(6, 2),
    }
    save_file(tensors, adapter / "adapter_model.safetensors")
    save_file({f"{name}.weight": torch.zeros(shape), "model.norm.weight": torch.zeros(4)}, base / "model.safetensors")
    return adapter, base


def test_an_adapter_of_this_base_fits(tmp_path: Path) -> None:
    assert find_adapter_problem(*folders(tmp_path, (6, 4))) is None


def test_an_adapter_of_a_narrower_base_does_not(tmp_path: Path) -> None:
    assert (
        find_adapter_problem(*folders(tmp_path, (6, 8)))
        == f"{MODULE} has size 4 in the adapter, but 8 in the base model"
    )


def test_one_with_fewer_outputs_does_not_either(tmp_path: Path) -> None:
    assert (
        find_adapter_problem(*folders(tmp_path, (12, 4)))
        == f"{MODULE} has size 6 in the adapter, but 12 in the base model"
    )


def test_what_the_base_names_otherwise_is_left_to_the_engine(tmp_path: Path) -> None:
    assert find_adapter_problem(*folders(tmp_path, (12, 4), name="model.layers.0.mlp.experts.gate_up_proj")) is None


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    adapter, base = folders(tmp_path, (6, 4))
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert "adapter_model.safetensors cannot be read" in str(find_adapter_problem(adapter, base))
