"""How the ranks find each other: DeepSpeed, imported for the rank's device, over a process group of torch."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from transformers.utils.logging import disable_progress_bar

from agent_rft.actors.runtime.ports import free_port, loopback_socket


def join(on_gpu: bool, timeout_s: float, rank: int, world_size: int, address: str | None) -> Any:
    """Connect to the other ranks; returns the module deepspeed, imported for this device, with its logs silenced."""
    host, port = (address or f"127.0.0.1:{free_port()}").rsplit(":", 1)
    os.environ |= {
        "DS_ACCELERATOR": "cuda" if on_gpu else "cpu",
        "RANK": str(rank),
        "LOCAL_RANK": "0",  # each rank sees only its own GPU, set by Ray
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import set_log_level_from_string

    set_log_level_from_string("error")  # its only warnings are about skipped updates, which StepReport has
    # Under ZeRO-3, DeepSpeed 0.19 calls two collectives in every pass by names that torch 2.13 deprecates.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    disable_progress_bar()
    # On CPUs DeepSpeed would compile a shared-memory all-reduce with g++ at first use (30 s, and an error without a
    # compiler); gloo does not need it. This table lists the ops that it may build: if it is empty, DeepSpeed builds
    # none, and does not search for compilers, which it does to fill the table.
    deepspeed.ops.__compatible_ops__ = {}
    backend, timeout = "nccl" if on_gpu else "gloo", timedelta(seconds=timeout_s)
    if host.startswith("127.") and not dist.is_initialized():
        _meet(backend, timeout, host, int(port), rank, world_size)
    deepspeed.init_distributed(
        dist_backend=backend, auto_mpi_discovery=False, timeout=timeout, rank=rank, world_size=world_size
    )
    return deepspeed


def _meet(backend: str, timeout: timedelta, host: str, port: int, rank: int, world_size: int) -> None:
    """Form the group of all ranks at a socket of ours: torch's own would listen on all addresses."""
    listener = loopback_socket(host, port) if rank == 0 else None
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but torch's stubs do not say so
        host,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=torch.device("cuda", 0) if backend == "nccl" and world_size > 1 else None,  # as DeepSpeed does
    )
