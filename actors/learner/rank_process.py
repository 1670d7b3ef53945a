"""The process of one learner rank: a Ray actor that answers health checks while the rank computes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch

from agent_rft.actors.runtime.rollout_stages import WorkInProgress
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, start_telemetry
from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.actors.weights.weight_bucket import compute_checksum
from agent_rft.errors import RftError
from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.process_group import find_free_port
from agent_rft.trainer.learner.rank_config import LearnerConfig

HEARTBEAT = "heartbeat"
"""Ray concurrency group for heartbeats, with a separate thread."""
WRITE = "write"
"""Ray concurrency group for writing snapshots, with a separate thread."""


class RankProcess:
    """Ray actor of one learner rank. Returns expected errors as values; see `agent_rft.actors.runtime.actor_calls`."""

    _rank: LearnerRank

    def __init__(self, metrics: MetricsAddress | None) -> None:
        self._metrics = metrics
        self._started_at: dict[str, float] = {}
        self._recorder: Recorder | None = None

    def find_free_address(self) -> str:
        """Return a free address (host:port) on this node. All ranks use rank 0's address as their rendezvous."""
        return f"{ray.util.get_node_ip_address()}:{find_free_port()}"

    def build(self, config: LearnerConfig, rank: int, world_size: int, address: str) -> RftError | None:
        if self._recorder is None:
            self._recorder = start_telemetry(self._metrics, f"learner-rank-{rank}")
        try:
            self._rank = LearnerRank(config, rank, world_size, address)
        except RftError as error:
            return error
        return None

    def call(self, method: str, *arguments: Any) -> Any:
        with self._report_running(method):
            try:
                return getattr(self._rank, method)(*arguments)
            except RftError as error:
                return error

    def put_bucket(self, index: int) -> list[Any]:
        """Store a copy of a bucket in the object store. Return [reference, checksum], or [] in ranks other than 0.

        Ray does not resolve a reference in a list, so only nodes that load the bucket fetch its bytes.
        """
        with self._report_running("gather_bucket"):
            data = self._rank.gather_bucket(index)
            return [] if data is None else [ray.put(data), compute_checksum(torch.from_numpy(data))]

    @ray.method(concurrency_group=WRITE)  # type: ignore[untyped-decorator]
    def write_snapshot(self, folder: Path) -> OSError | None:
        """Write the snapshot in a separate thread. Return a disk error as a value, so that the rank stays alive."""
        try:
            with self._report_running("write"):
                self._rank.write_snapshot(folder)
        except OSError as error:
            return error
        return None

    @ray.method(concurrency_group=HEARTBEAT)  # type: ignore[untyped-decorator]
    def heartbeat(self) -> list[WorkInProgress]:
        """Return the methods that this rank is running, and their durations so far. Called in a separate thread."""
        now = time.monotonic()
        return [WorkInProgress("", method, now - since) for method, since in self._started_at.copy().items()]

    @contextlib.contextmanager
    def _report_running(self, method: str) -> Iterator[None]:
        """Report `method` to `heartbeat` while it runs, and record its duration if it succeeds."""
        assert self._recorder is not None  # set by build()
        self._started_at[method] = time.monotonic()
        try:
            yield
            self._recorder.record(f"rank_s/{method}", time.monotonic() - self._started_at[method])
        finally:
            del self._started_at[method]
