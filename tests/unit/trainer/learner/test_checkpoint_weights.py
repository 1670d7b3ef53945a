"""Weights are written as in the checkpoint: names, ties, experts, shards, a folder that loads."""

from __future__ import annotations

import errno
import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from agent_rft.trainer.learner.checkpoint_weights import (
    CheckpointWeights,
    read_unused_tensors,
    save_tensors,
    write_model,
)
from agent_rft.trainer.learner.host_buffer import HostBuffer
from tests.support.architectures import ARCHITECTURES, with_vision

EMBEDDING_BYTES = 272 * 64 * 4


def random_model(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(ARCHITECTURES[name](), dtype=dtype)
    return randomized(model)


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    """All weights become random: some are 0 or 1 in a new model, and would hide a mistake."""
    torch.manual_seed(0)
    for tensor in model.state_dict().values():
        tensor.normal_()
    return model


def weights_of(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> CheckpointWeights:
    return CheckpointWeights(model, dtype, lambda _: nullcontext())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_are_read_as_transformers_writes_them(name: str, tmp_path: Path) -> None:
    source, theirs, ours = (tmp_path / name for name in ("source", "theirs", "ours"))
    random_model(name, torch.bfloat16).save_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source)
    model.save_pretrained(theirs)
    ours.mkdir()
    weights = weights_of(model, torch.bfloat16)
    shards = weights.copy_all(HostBuffer(), shard_bytes=100_000)
    write_model(shards, ours, source, torch.bfloat16)
    assert in_folder(ours) == in_folder(theirs)
    assert in_folder(ours).keys() == in_folder(source).keys()
    infos = [info for part in weights.split(100_000) for info in weights.describe(part)]
    assert infos == [(key, *described(tensor)[:2]) for shard in shards for key, tensor in shard.items()]


@pytest.mark.parametrize("name", ["qwen3_5", "gemma3", "gemma4"])
def test_a_checkpoint_keeps_what_is_not_trained(name: str, tmp_path: Path) -> None:
    source, ours = tmp_path / "source", tmp_path / "ours"
    whole = AutoModelForImageTextToText.from_config(with_vision(name), dtype=torch.bfloat16)
    randomized(whole).save_pretrained(source)
    save_tensors({"layers.0.wq": torch.zeros(1)}, source / "consolidated.safetensors")
    if name == "qwen3_5":  # only its language model is read
        drafts = {"mtp.norm.weight": torch.ones(64), **load_file(source / "model.safetensors")}
        save_tensors(drafts, source / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(source)
    ours.mkdir()
    shards = [*weights_of(model, torch.bfloat16).copy_all(HostBuffer()), *read_unused_tensors(model, source)]
    write_model(shards, ours, source, torch.bfloat16)
    (source / "consolidated.safetensors").unlink()
    assert in_folder(ours) == in_folder(source)
    write_model(shards, ours, source, torch.float32)
    assert AutoConfig.from_pretrained(ours).get_text_config().dtype == torch.float32


def in_folder(folder: Path) -> dict[str, tuple[str, tuple[int, ...], str]]:
    files = folder.glob("*.safetensors")
    return {name: described(tensor) for file in files for name, tensor in load_file(file).items()}


def described(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], str]:
    """A tensor's dtype, shape and hash."""
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), hashlib.sha256(data).hexdigest()


def test_buckets_keep_to_their_size_and_a_larger_tensor_is_one_by_itself() -> None:
    weights = weights_of(random_model("qwen3"))
    limit = EMBEDDING_BYTES - 1
    parts = weights.split(limit)
    assert parts[0] == ["model.embed_tokens.weight"]
    for part in parts[1:]:
        assert sum(int(np.prod(shape)) * 4 for _, _, shape in weights.describe(part)) <= limit
    assert [name for part in parts for name in part] == [name for [name] in weights.split(1)]


def test_bytes_follow_the_plan_in_the_requested_dtype() -> None:
    model = random_model("qwen3_moe")
    weights = weights_of(model, torch.bfloat16)
    for part in weights.split(20_000):
        data, start = weights.copy_bucket(part, HostBuffer()), 0
        assert data is not None
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

    weights = CheckpointWeights(random_model("qwen3"), torch.float32, gather)
    [part] = weights.split(1 << 30)
    assert weights.copy_bucket(part, None) is None
    assert weights.copy_all(None) == [{}]
    assert gathered == [len(part)] * 2


def test_weights_are_copied_while_they_are_gathered() -> None:
    """ZeRO-3 frees them afterwards."""
    model = random_model("qwen3_moe")
    expected = bytes_of(weights_of(model))
    full = {tensor.data_ptr(): tensor.clone() for tensor in model.state_dict().values()}

    @contextmanager
    def gather(tensors: list[torch.Tensor]) -> Iterator[None]:
        for tensor in tensors:
            tensor.data.copy_(full[tensor.data_ptr()])
        yield
        for tensor in tensors:
            tensor.data.zero_()

    for tensor in model.state_dict().values():
        tensor.zero_()
    weights = CheckpointWeights(model, torch.float32, gather)
    assert bytes_of(weights) == expected
    [shard] = weights.copy_all(HostBuffer())
    assert b"".join(tensor.numpy().tobytes() for tensor in shard.values()) == expected


def bytes_of(weights: CheckpointWeights) -> bytes:
    """The bytes of all buckets, which are gathered into the same memory."""
    memory, found = HostBuffer(), b""
    for part in weights.split(20_000):
        bucket = weights.copy_bucket(part, memory)
        assert bucket is not None
        found += bucket.tobytes()
    return found


def test_shards_have_an_index_and_load(tmp_path: Path) -> None:
    model, source, folder = random_model("qwen3"), tmp_path / "source", tmp_path / "folder"
    model.save_pretrained(source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    folder.mkdir()
    shards = weights_of(model, torch.bfloat16).copy_all(HostBuffer(), shard_bytes=10_000)
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
