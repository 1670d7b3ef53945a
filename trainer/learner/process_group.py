"""Process groups: DeepSpeed's group of ranks, and the group that broadcasts weights from rank 0 to all engines."""

from __future__ import annotations

import os
import socket
import warnings
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from transformers.utils.logging import disable_progress_bar

from agent_rft.trainer.learner.deepspeed_internals import disable_operation_builds, log_errors_only


def join_rank_group(on_gpu: bool, timeout_s: float, rank: int, world_size: int, address: str | None) -> Any:
    """Import DeepSpeed for this rank's device, connect to the other ranks, and return the deepspeed module."""
    host, port = (address or f"127.0.0.1:{find_free_port()}").rsplit(":", 1)
    os.environ |= {
        "DS_ACCELERATOR": "cuda" if on_gpu else "cpu",
        "RANK": str(rank),
        "LOCAL_RANK": "0",  # each rank sees only its own GPU, set by Ray
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    import deepspeed

    log_errors_only(deepspeed)
    # Under ZeRO-3, DeepSpeed 0.19 calls two collectives in every pass by names that torch 2.13 deprecates.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    disable_progress_bar()
    disable_operation_builds(deepspeed)
    backend, timeout = "nccl" if on_gpu else "gloo", timedelta(seconds=timeout_s)
    if host.startswith("127.") and not dist.is_initialized():
        _init_loopback_group(backend, timeout, host, int(port), rank, world_size)
    deepspeed.init_distributed(
        dist_backend=backend, auto_mpi_discovery=False, timeout=timeout, rank=rank, world_size=world_size
    )
    return deepspeed


def _init_loopback_group(backend: str, timeout: timedelta, host: str, port: int, rank: int, world_size: int) -> None:
    dist.init_process_group(
        backend,
        store=create_rendezvous_store(host, port, rank, world_size, timeout),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=torch.device("cuda", 0) if backend == "nccl" and world_size > 1 else None,  # as DeepSpeed does
    )


def create_rendezvous_store(host: str, port: int, rank: int, world_size: int, timeout: timedelta) -> Any:
    """Return the rendezvous store of a process group; rank 0 runs the store's server.

    On a loopback address, the server listens on our own socket, because torch's socket would listen on all addresses.
    """
    listener = create_loopback_socket(host, port) if rank == 0 else None
    return dist.TCPStore(  # type: ignore[attr-defined]  # public, but missing in torch's stubs
        host,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=None if listener is None else listener.detach(),
    )


# -- ports -------------------------------------------------------------------------------------------------------------


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def create_loopback_socket(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens only on `host` if `host` is a loopback address, else None.

    For other hosts, a server has to listen on all addresses, because the address that Ray uses for a node may not
    belong to one of the node's network interfaces.
    """
    return socket.create_server((host, port)) if host.startswith("127.") else None


# -- broadcast ---------------------------------------------------------------------------------------------------------


BROADCAST_TIMEOUT_S = 120.0
"""Timeout for joining the group, and for sending one bucket. On a timeout, gloo raises an error, but NCCL ends the
process."""
SENDER = 0


class BroadcastGroup:
    """Member `rank` of a group of `size` processes. The member SENDER broadcasts weights to all others."""

    def __init__(self, address: str, rank: int, size: int, device: torch.device) -> None:
        """Join the group, and wait until all members have joined.

        `address` is a host:port on the sender's node; the port must be free.
        """
        host, port = address.rsplit(":", 1)
        self._device = device
        timeout = timedelta(seconds=BROADCAST_TIMEOUT_S)
        store = create_rendezvous_store(host, int(port), rank, size, timeout)
        self._group: Any
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()  # type: ignore[attr-defined]  # as in `create_rendezvous_store`
            options._timeout = timeout
            self._group = dist.ProcessGroupNCCL(store, rank, size, options)  # type: ignore[attr-defined]
        else:
            self._group = dist.ProcessGroupGloo(store, rank, size, timeout)  # type: ignore[attr-defined]
        self._from_sender = dist.BroadcastOptions()  # type: ignore[attr-defined]
        self._from_sender.rootRank = SENDER

    def send(self, data: Tensor) -> None:
        """Send bytes (uint8, on any device) to all other members. Afterwards, the tensor may be changed.

        Raises:
            RuntimeError: A member is lost.
        """
        self._transfer(data.to(self._device))

    def receive(self, num_bytes: int) -> Tensor:
        """Receive bytes from the sender and return them, on this member's device. Raises the same errors as `send`."""
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._transfer(data)
        return data

    def _transfer(self, data: Tensor) -> None:
        self._group.broadcast([data], self._from_sender).wait()
        if self._device.type == "cuda":  # there, `wait` only orders the work in the stream
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Leave the group. The other members treat this member as lost."""
        self._group.shutdown()
        del self._group  # gloo closes its connections only then
