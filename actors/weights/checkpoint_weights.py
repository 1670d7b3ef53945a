"""The learner's weights as in their Hugging Face checkpoint: its names, tied weights once, experts unmerged.

Nothing here copies more than one part of the weights at a time; under ZeRO-3 a part is gathered from all ranks, used
and released.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from actors.weights.layout import TensorInfo, num_bytes

ParameterNames = list[str]
"""Names of parameters in the model; for experts they differ from those in the checkpoint."""

SHARD_BYTES = 5 << 30
WEIGHT_FILES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


class CheckpointWeights:
    """Reads the weights of a model; each read runs inside `gather`, called with the parameters to read."""

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        gather: Callable[[list[Tensor]], AbstractContextManager[object]],
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._gather = gather
        first_names = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
        self._tensors = {name: t for name, t in model.state_dict(keep_vars=True).items() if first_names[id(t)] == name}

    def parts(self, max_bytes: int) -> list[ParameterNames]:
        """All weights in order, in parts of at most `max_bytes`; a larger weight is a part by itself."""
        parts: list[ParameterNames] = []
        room = 0
        for name in self._tensors:
            size = num_bytes(self.describe([name]))
            if size > room:
                parts.append([])
                room = max_bytes
            parts[-1].append(name)
            room -= size
        return parts

    def describe(self, part: ParameterNames) -> list[TensorInfo]:
        """Names, dtypes and shapes of what `read` returns, without gathering anything."""
        shapes = {name: torch.empty(_shape(self._tensors[name]), device="meta") for name in part}
        infos: list[TensorInfo] = []
        for name, shape in shapes.items():
            dtype = str(self._dtype_of(self._tensors[name])).removeprefix("torch.")
            infos += [
                (key, dtype, tuple(t.shape)) for key, t in revert_weight_conversion(self._model, {name: shape}).items()
            ]
        return infos

    def read(self, part: ParameterNames, wanted: bool) -> dict[str, Tensor]:
        """The tensors of a part on the CPU, in the order of `describe`; nothing unless `wanted`.

        All ranks must call this together; one of them wants the result.
        """
        tensors = [self._tensors[name] for name in part]
        with self._gather(tensors):
            if not wanted:
                return {}
            read: dict[str, Tensor] = {}
            for name, tensor in zip(part, tensors, strict=True):
                kept = {name: tensor.detach().to(self._dtype_of(tensor))}
                for key, value in revert_weight_conversion(self._model, kept).items():
                    read[key] = value.to("cpu", copy=True, memory_format=torch.contiguous_format)
            return read

    def _dtype_of(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype

    def copies(self, wanted: bool, shard_bytes: int = SHARD_BYTES) -> list[dict[str, Tensor]]:
        """All weights on the CPU, in shards; all ranks must call this together, and the `wanted` one gets them."""
        return [self.read(part, wanted) for part in self.parts(shard_bytes)]


def write_model(shards: Sequence[Mapping[str, Tensor]], folder: Path, source: Path, dtype: torch.dtype) -> None:
    """Write `CheckpointWeights.copies` as a model folder that transformers and vLLM can load.

    Config, tokenizer, chat template and generation config are copied from the folder `source` that the model came from.

    Raises:
        OSError: The disk is full or read-only.
    """
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        save_tensors(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensors in shards for tensor in tensors.values())
        table = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(table, indent=2))
    _copy_companions(source, folder, dtype)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: The disk is full or read-only.
    """
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:  # it has no error number
        full = shutil.disk_usage(path.parent).free < sum(tensor.nbytes for tensor in tensors.values())
        number = errno.ENOSPC if full else errno.EIO
        raise OSError(number, os.strerror(number)) from error
    path.chmod(0o644)  # safetensors makes it 0600; an engine may run as another user


def as_bytes(tensors: Sequence[Tensor]) -> NDArray[np.uint8]:
    """The bytes of CPU tensors back to back, in the order of `describe`."""
    buffer = np.empty(sum(tensor.nbytes for tensor in tensors), dtype=np.uint8)
    start = 0
    for tensor in tensors:
        buffer[start : start + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8).numpy()
        start += tensor.nbytes
    return buffer


def _copy_companions(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Copy all files of a model folder but the weights; the config's dtype becomes that of the written weights."""
    for file in source.iterdir():
        if file.is_file() and not set(file.suffixes) & WEIGHT_FILES:
            shutil.copyfile(file, folder / file.name)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2) + "\n")


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """The full shape of a tensor; under ZeRO-3 a parameter is empty between uses and keeps its shape in `ds_shape`."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))
