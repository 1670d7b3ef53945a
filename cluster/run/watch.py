"""What a server adds to the driver of one of its jobs."""

from __future__ import annotations

from typing import Protocol

from cluster.preflight.prepare import Prepared
from trainer.protocols import Sink


class Watch(Sink, Protocol):
    """A sink that also hears what the job was resolved to."""

    def prepared(self, prepared: Prepared) -> None:
        """The job passed its checks; comes before every event."""
