"""How a rank reads the start model: tensor by tensor onto its device, or under ZeRO 3 its own part of each tensor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"
"""Transformers' variable: without it, its threads hold tensors of another dtype or layout before they are wanted."""


@contextmanager
def sharded(deepspeed: Any, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """While it is open, weights that transformers reads are partitioned for ZeRO 3, each before the next is read.

    Transformers gives a model each weight as it has to be: renamed, converted and merged, and of those that are saved
    as they are only views of the file. So the pages that are read are those of this rank's part. DeepSpeed's own way
    would copy each weight to the device and broadcast it, though all ranks have the same files.
    """
    init = deepspeed.zero.Init(dtype=dtype)

    def partition(module: nn.Module, name: str, parameter: Any) -> None:
        # Transformers' mark of a weight that was read. A tied one is registered twice, the second time partitioned.
        if getattr(parameter, "_is_hf_initialized", False) and not hasattr(parameter, "ds_id"):
            init._convert_to_deepspeed_param(parameter)
            parameter.partition()
            parameter.data = parameter.data.to(device)  # empty now, and where DeepSpeed will gather it

    hook = register_module_parameter_registration_hook(partition)
    os.environ[ONE_BY_ONE] = "1"
    try:
        yield
    finally:
        del os.environ[ONE_BY_ONE]
        hook.remove()
