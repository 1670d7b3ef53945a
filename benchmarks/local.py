"""What this machine allows benchmarks: servers on it, GPUs, the type of numbers."""

from __future__ import annotations

import os
from typing import Literal

from agent_rft.cluster.planning.plan_nodes import read_gpu_memory
from agent_rft.spec.operator.operator_config import OperatorConfig

LOCAL = OperatorConfig(allowed_networks=["127.0.0.0/8"])
"""Allows servers on this machine."""
ONE_GPU = "what is gained by sampling while the learner learns needs two GPUs, one for each; there is one"


def gpus_here() -> int:
    """GPUs that a local Ray offers: those in CUDA_VISIBLE_DEVICES, or all."""
    present, visible = len(read_gpu_memory()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, sum(device.strip() not in ("", "-1", "NoDevFiles") for device in visible.split(",")))


def dtype_here() -> Literal["float32", "bfloat16"]:
    """The dtype of jobs on this machine."""
    return "bfloat16" if gpus_here() else "float32"
