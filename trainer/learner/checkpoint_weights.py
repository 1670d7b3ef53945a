"""Copies of the learner's weights in Hugging Face's checkpoint format.

The tensors have the names of the original checkpoint: each expert is a separate tensor, and tied weights occur once.
Only one part of the weights is copied at a time. Under ZeRO-3, each part is gathered from all ranks, used and released.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    rename_source_key,
    revert_weight_conversion,
)

from agent_rft.trainer.learner.deepspeed_internals import full_shape
from agent_rft.trainer.learner.host_buffer import HostBuffer, copy_bytes
from agent_rft.trainer.learner.weight_buckets import TensorInfo, num_bytes

ParameterNames = list[str]
"""Names of parameters in the loaded model. Experts have other names in the checkpoint."""

SHARD_BYTES = 5 << 30
INDEX = "model.safetensors.index.json"
WEIGHT_FILES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


class CheckpointWeights:
    """Reader of a model's weights or, with `adapter`, of the adapter's tensors only.

    The tensors of `adapter` are keyed by their names in PEFT's files. `gather` takes parameters, and returns a context
    manager that makes their full content available.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        gather: Callable[[list[Tensor]], AbstractContextManager[object]],
        adapter: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._gather = gather
        self._convert: Callable[[dict[str, Tensor]], dict[str, Tensor]]
        if adapter is not None:
            self._tensors, self._convert = dict(adapter), dict
            return
        self._convert = partial(revert_weight_conversion, model)
        first_names = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
        self._tensors = {name: t for name, t in model.state_dict(keep_vars=True).items() if first_names[id(t)] == name}

    def split(self, max_bytes: int) -> list[ParameterNames]:
        """Split all weights, in order, into parts of at most `max_bytes`. A larger weight gets a part of its own."""
        parts: list[ParameterNames] = []
        free = 0
        for name in self._tensors:
            size = num_bytes(self.describe([name]))
            if size > free:
                parts.append([])
                free = max_bytes
            parts[-1].append(name)
            free -= size
        return parts

    def describe(self, part: ParameterNames) -> list[TensorInfo]:
        """Return name, dtype and shape of each tensor that `copy_bucket` copies, without gathering the parameters."""
        shapes = {name: torch.empty(full_shape(self._tensors[name]), device="meta") for name in part}
        infos: list[TensorInfo] = []
        for name, shape in shapes.items():
            dtype = str(self._saved_dtype(self._tensors[name])).removeprefix("torch.")
            infos += [(key, dtype, tuple(t.shape)) for key, t in self._convert({name: shape}).items()]
        return infos

    def copy_bucket(self, part: ParameterNames, memory: HostBuffer | None) -> NDArray[np.uint8] | None:
        """Copy a part's tensors to `memory`, and return their concatenated bytes, in the order of `describe`.

        The bytes are valid until `memory` is used again. All ranks must call this together. Ranks that do not need the
        bytes pass None as `memory`, and get None.
        """
        if memory is None:
            self._copy(part, None)
            return None
        sizes = _sizes(self.describe(part))
        [bucket] = memory.allocate_slices([sum(sizes)])
        self._copy(part, torch.split(bucket, sizes))
        return bucket.numpy()

    def copy_all(self, memory: HostBuffer | None, shard_bytes: int = SHARD_BYTES) -> list[dict[str, Tensor]]:
        """Copy all weights to host memory, in shards of at most `shard_bytes`; `memory` is used as in `copy_bucket`."""
        parts = self.split(shard_bytes)
        layouts = [[] if memory is None else self.describe(part) for part in parts]
        slices = [] if memory is None else memory.allocate_slices(_sizes(chain(*layouts)))
        shards: list[dict[str, Tensor]] = []
        for part, layout in zip(parts, layouts, strict=True):
            targets, slices = slices[: len(layout)], slices[len(layout) :]
            self._copy(part, None if memory is None else targets)
            named = zip(layout, targets, strict=True)
            shards.append(
                {name: target.view(getattr(torch, dtype)).view(shape) for (name, dtype, shape), target in named}
            )
        return shards

    def _copy(self, part: ParameterNames, targets: Sequence[Tensor] | None) -> None:
        """Copy the bytes of a part's tensors into `targets`, in the order in which `describe` lists the tensors.

        If `targets` is None, this rank copies nothing, but still takes part in gathering the tensors.
        """
        tensors = [self._tensors[name] for name in part]
        with self._gather(tensors):
            if targets is not None:
                values = (
                    value
                    for name, tensor in zip(part, tensors, strict=True)
                    for value in self._convert({name: tensor.detach().to(self._saved_dtype(tensor))}).values()
                )
                copy_bytes(zip(values, targets, strict=True))

    def _saved_dtype(self, tensor: Tensor) -> torch.dtype:
        """Return the dtype in which a tensor is saved. A few tensors, such as a router's correction, stay in float32.

        Engines also hold these tensors in float32.
        """
        return self._dtype if tensor.dtype == self._model.dtype else tensor.dtype


def map_to_model_names(model: PreTrainedModel) -> Callable[[str], str]:
    """Return a function that maps the name of a tensor in the model's files to its name in the loaded model.

    Files from older versions of transformers may use other names.
    """
    names = dict.fromkeys(model.state_dict(keep_vars=True), True)
    transforms: list[WeightTransform] = getattr(model, "_weight_conversions", None) or get_model_conversion_mapping(
        model
    )
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    prefix = model.base_model_prefix
    return lambda key: str(rename_source_key(key, renamings, converters, prefix, names)[0])


def read_unused_tensors(model: PreTrainedModel, source: Path) -> list[dict[str, Tensor]]:
    """Return the tensors in the model folder `source` that `model` does not use, as one dictionary per file.

    For example, the vision tower is unused if only the language model is trained. Engines load the full folder, so they
    need these tensors. The tensors are views of the files.
    """
    names, name_of = model.state_dict(keep_vars=True).keys(), map_to_model_names(model)
    others = []
    for path in list_weight_files(source):
        with safe_open(path, "pt") as file:
            others.append({key: file.get_tensor(key) for key in file.keys() if name_of(key) not in names})  # noqa: SIM118
    return [tensors for tensors in others if tensors]


def list_weight_files(folder: Path) -> list[Path]:
    """Return the files from which transformers reads the weights of a model folder.

    The folder may contain the same weights in formats of other libraries; those files are not returned.
    """
    if (index := folder / INDEX).exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return [path for path in [folder / "model.safetensors"] if path.exists()]


def write_model(shards: Sequence[Mapping[str, Tensor]], folder: Path, source: Path, dtype: torch.dtype) -> None:
    """Write `shards` as a model folder for transformers and vLLM.

    `shards` are the results of `CheckpointWeights.copy_all` and `read_unused_tensors`. Config, tokenizer, chat template
    and generation config are copied from `source`, the folder of the base model.

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
        (folder / INDEX).write_text(json.dumps(table, indent=2))
    copy_non_weight_files(source, folder, dtype)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: The disk is full or read-only.
    """
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:  # it has no errno
        full = shutil.disk_usage(path.parent).free < sum(tensor.nbytes for tensor in tensors.values())
        number = errno.ENOSPC if full else errno.EIO
        raise OSError(number, os.strerror(number)) from error
    path.chmod(0o644)  # safetensors sets 0600, but an engine may run as another user


def concat_bytes(tensors: Sequence[Tensor]) -> NDArray[np.uint8]:
    """Return the bytes of CPU tensors, concatenated in the given order."""
    buffer = np.empty(sum(tensor.nbytes for tensor in tensors), dtype=np.uint8)
    start = 0
    for tensor in tensors:
        buffer[start : start + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8).numpy()
        start += tensor.nbytes
    return buffer


def copy_non_weight_files(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Copy all files of a model folder except the weights, and set `dtype` in the config."""
    for file in source.iterdir():
        if file.is_file() and not set(file.suffixes) & WEIGHT_FILES:
            shutil.copyfile(file, folder / file.name)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for part in (config, config.get("text_config") or {}):
        part.pop("torch_dtype", None)
        part["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2) + "\n")


def _sizes(layout: Iterable[TensorInfo]) -> list[int]:
    return [num_bytes([info]) for info in layout]
