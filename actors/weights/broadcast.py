"""Broadcasts bytes from the learner's rank 0 to the workers of all engines: NCCL between GPUs, gloo between CPUs.

The process group is made as in vLLM's own NCCL weight transfer: stateless, between otherwise unrelated processes.
Between CPUs all of this runs in tests; **between GPUs it has never been run**.
"""

from __future__ import annotations

from datetime import timedelta

import torch
from torch import Tensor

from agent_rft.actors.runtime.ports import loopback_socket

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
TIMEOUT_S = 120.0
"""Timeout to form the group, and of one bucket. Exceeding it means that a member is lost: gloo raises an error, NCCL
ends the process."""
SENDER = 0


class Broadcast:
    """Member `rank` of a group of `size` processes."""

    def __init__(self, address: str, rank: int, size: int, device: torch.device) -> None:
        """Join the group; returns when all members have joined.

        `address` is the host:port of a free port at the sender.
        """
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        host, port = address.rsplit(":", 1)
        self._device = device
        self._group = stateless_init_torch_distributed_process_group(
            host,
            int(port),
            rank,
            size,
            BACKENDS[device.type],
            listen_socket=loopback_socket(host, int(port)) if rank == SENDER else None,
            timeout=timedelta(seconds=TIMEOUT_S),
        )

    def send(self, data: Tensor) -> None:
        """Send bytes (uint8, on any device) to all other members; returns when the tensor may be changed.

        Raises:
            RuntimeError: a member is lost.
        """
        self._transfer(data.to(self._device))

    def receive(self, num_bytes: int) -> Tensor:
        """The bytes that the sender sends, on this member's device; raises like `send`."""
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._transfer(data)
        return data

    def _transfer(self, data: Tensor) -> None:
        self._group.broadcast(data, SENDER).wait()
        if self._device.type == "cuda":  # there, `wait` only orders the work in the stream
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Leave the group; the other members see this one as lost."""
        self._group.shutdown()
        del self._group  # gloo closes its connections only then
