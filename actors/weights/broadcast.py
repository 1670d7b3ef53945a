"""Bytes from one sender, the learner's rank 0, to the workers of all engines at once: NCCL between GPUs, gloo between
CPUs, and nothing else differs between the two.

The group is vLLM's way to meet processes that share nothing else (its weight transfer over NCCL does the same). Between
CPUs all of this runs in tests; **between GPUs it has never been run**.
"""

from __future__ import annotations

from datetime import timedelta

import torch
from torch import Tensor

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
TIMEOUT_S = 120.0
"""For the group to meet, and for one bucket. Who waits longer has lost another member: gloo says so, NCCL ends the
process."""
SENDER = 0


class Broadcast:
    """Member `rank` of a group of `size`; `address` is host:port of a free port at the sender. Returns when all
    have met.
    """

    def __init__(self, address: str, rank: int, size: int, device: torch.device) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        host, port = address.rsplit(":", 1)
        self._device = device
        self._group = stateless_init_torch_distributed_process_group(
            host, int(port), rank, size, BACKENDS[device.type], timeout=timedelta(seconds=TIMEOUT_S)
        )

    def send(self, data: Tensor) -> None:
        """The sender's bytes (uint8, on any device) to all others. Returns when they may be changed.

        Raises:
            RuntimeError: another member is gone.
        """
        self._transfer(data.to(self._device))

    def receive(self, num_bytes: int) -> Tensor:
        """What the sender sends, on this member's device. Raises as `send`."""
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._transfer(data)
        return data

    def _transfer(self, data: Tensor) -> None:
        self._group.broadcast(data, SENDER).wait()
        if self._device.type == "cuda":  # there, waiting only puts the work in order
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """The others see it as gone."""
        self._group.shutdown()
        del self._group  # gloo closes its connections only then
