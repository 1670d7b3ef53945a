"""Weights are written as in the checkpoint: names, ties, experts, shards, a folder that loads."""

from __future__ import annotations

import errno
import json
import resource
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig
from transformers.models.qwen3_moe import Qwen3MoeForCausalLM

from actors.weights.checkpoint_weights import CheckpointWeights, as_bytes, save_tensors, write_model

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EMBEDDING_BYTES = 50 * 32 * 4


def dense(tied: bool = True) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=tied))


def mixture() -> PreTrainedModel:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16))


def weights_of(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> CheckpointWeights:
    return CheckpointWeights(model, dtype, lambda _: nullcontext())


@pytest.mark.parametrize("model", [dense(), dense(tied=False), mixture()], ids=["tied", "untied", "experts"])
def test_names_and_values_equal_those_that_transformers_saves(model: PreTrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "theirs")
    weights = weights_of(model)
    (tmp_path / "ours").mkdir()
    write_model(weights.copies(wanted=True), tmp_path / "ours", tmp_path / "theirs", torch.float32)
    theirs, ours = (saved_weights(tmp_path / name) for name in ("theirs", "ours"))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    [described] = [weights.describe(part) for part in weights.parts(1 << 30)]
    assert {name: shape for name, _, shape in described} == {name: tuple(t.shape) for name, t in theirs.items()}


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_buckets_keep_to_their_size_and_a_larger_tensor_is_one_by_itself() -> None:
    weights = weights_of(dense())
    limit = EMBEDDING_BYTES - 1
    parts = weights.parts(limit)
    assert parts[0] == ["model.embed_tokens.weight"]
    for part in parts[1:]:
        assert sum(int(np.prod(shape)) * 4 for _, _, shape in weights.describe(part)) <= limit
    assert [name for part in parts for name in part] == [name for [name] in weights.parts(1)]


def test_bytes_follow_the_plan_in_the_requested_dtype() -> None:
    model = mixture()
    weights = weights_of(model, torch.bfloat16)
    for part in weights.parts(20_000):
        data, start = as_bytes(list(weights.read(part, wanted=True).values())), 0
        for name, dtype, shape in weights.describe(part):
            size = 2 * int(np.prod(shape))
            tensor = torch.from_numpy(data[start : start + size]).view(getattr(torch, dtype)).reshape(shape)
            start += size
            if name in (state := model.state_dict()):
                assert torch.equal(tensor, state[name].bfloat16()), name
        assert start == len(data)


def test_ranks_that_do_not_want_a_part_only_take_part_in_gathering_it() -> None:
    gathered: list[int] = []

    def gather(tensors: list[torch.Tensor]) -> nullcontext[None]:
        gathered.append(len(tensors))
        return nullcontext()

    weights = CheckpointWeights(dense(), torch.float32, gather)
    [part] = weights.parts(1 << 30)
    assert weights.read(part, wanted=False) == {}
    assert gathered == [len(part)]


def test_shards_have_an_index_and_load(tmp_path: Path) -> None:
    model, source, folder = dense(), tmp_path / "source", tmp_path / "folder"
    model.save_pretrained(source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    folder.mkdir()
    shards = weights_of(model, torch.bfloat16).copies(wanted=True, shard_bytes=10_000)
    write_model(shards, folder, source, torch.bfloat16)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert (folder / "chat_template.jinja").exists()
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16()), name


def test_a_disk_that_takes_no_more_is_an_os_error_and_leaves_no_part(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            save_tensors({"weight": torch.zeros(10_000)}, tmp_path / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EIO
    assert list(tmp_path.iterdir()) == []
