"""The process of one learner rank: a Ray actor that also answers while the rank computes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch

from agent_rft.actors.runtime.in_flight import Doing
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, start_telemetry
from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.actors.weights.bucket import checksum
from agent_rft.errors import RftError
from agent_rft.trainer.learner.process_group import free_port
from agent_rft.trainer.learner.rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig

PULSE = "pulse"
"""The concurrency group, with its own thread, in which a rank answers while it computes."""
WRITE = "write"
"""The concurrency group in which a rank writes a snapshot while it computes."""


class RankProcess:
    """The Ray actor of one rank; expected errors are returned as values, see `agent_rft.actors.runtime.calls`."""

    _rank: LearnerRank

    def __init__(self, metrics: MetricsAddress | None) -> None:
        self._metrics = metrics
        self._doing: dict[str, float] = {}
        self._recorder: Recorder | None = None

    def address(self) -> str:
        """A free host:port on this node: the ranks' rendezvous, if this is rank 0."""
        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def build(self, config: LearnerConfig, rank: int, world_size: int, address: str) -> RftError | None:
        if self._recorder is None:
            self._recorder = start_telemetry(self._metrics, f"learner-rank-{rank}")
        try:
            self._rank = LearnerRank(config, rank, world_size, address)
        except RftError as error:
            return error
        return None

    def call(self, method: str, *arguments: Any) -> Any:
        with self._at(method):
            try:
                return getattr(self._rank, method)(*arguments)
            except RftError as error:
                return error

    def put_bucket(self, index: int) -> list[Any]:
        """The reference to a copy of the bucket, and its checksum.

        Ray does not resolve a reference in a list: bytes go only to nodes that load them.
        """
        with self._at("gather_bucket"):
            data = self._rank.gather_bucket(index)
            return [] if data is None else [ray.put(data), checksum(torch.from_numpy(data))]

    @ray.method(concurrency_group=WRITE)  # type: ignore[untyped-decorator]
    def write(self, folder: Path) -> OSError | None:
        """Write the snapshot in another thread; the rank outlives a disk that fails."""
        try:
            with self._at("write"):
                self._rank.write(folder)
        except OSError as error:
            return error
        return None

    @ray.method(concurrency_group=PULSE)  # type: ignore[untyped-decorator]
    def pulse(self) -> list[Doing]:
        """What this rank is doing; runs in another thread while it computes."""
        now = time.monotonic()
        return [Doing("", method, now - since) for method, since in self._doing.copy().items()]

    @contextlib.contextmanager
    def _at(self, method: str) -> Iterator[None]:
        """Report `method` to `pulse` while it runs, and record its duration if it succeeds."""
        assert self._recorder is not None  # build() was called before
        self._doing[method] = time.monotonic()
        try:
            yield
            self._recorder.record(f"rank_s/{method}", time.monotonic() - self._doing[method])
        finally:
            del self._doing[method]
