"""The protocol by which a server follows the driver of one of its jobs."""

from __future__ import annotations

from typing import Protocol

from cluster.preflight.prepare import Prepared
from trainer.protocols import Sink


class Watch(Sink, Protocol):
    """A Sink that also receives the resolved job."""

    def prepared(self, prepared: Prepared) -> None:
        """Called when the job has passed its checks, before any event, and again if it gets another layout."""
