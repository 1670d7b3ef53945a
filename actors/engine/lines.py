"""What a job has of an engine: jobs that share one have a line each, and know nothing of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.adapters import Adapter
from agent_rft.actors.weights.adapter import AdapterConfig
from agent_rft.actors.weights.layout import Layout
from agent_rft.actors.weights.shared_memory import SharedFile
from agent_rft.errors import EngineFailed


@dataclass(slots=True, eq=False)
class Line:
    """The version with which a job's requests begin, its adapter, and the buckets of the next one.

    `lora` is the shape of its adapters; None: each version has all weights. Each of `staged` is in shared memory, with
    its layout and the checksum of what is there.
    """

    job: str
    lora: AdapterConfig | None = None
    version: int = 0
    adapter: Adapter | None = None
    staged: list[tuple[SharedFile, Layout, int]] = field(default_factory=list)
    sampled_tokens: int = 0

    @property
    def salt(self) -> str:
        """Requests reuse the cache blocks of others with the same salt only."""
        return f"{self.job}:{self.version}"

    def stage(self, shm: Path, data: NDArray[np.uint8], layout: Layout) -> None:
        """Put one bucket into shared memory, and take the checksum of what is there.

        Raises:
            EngineFailed: shared memory is full or missing.
        """
        from agent_rft.actors.weights.checksum import checksum
        from agent_rft.actors.weights.transport import bytes_of

        try:
            file = SharedFile(shm, data)
        except OSError as error:
            what = f"cannot put {data.nbytes} bytes of weights into"
            raise EngineFailed(f"{what} {shm}: {error}", public=f"{what} shared memory") from error
        self.staged.append((file, layout, checksum(bytes_of(file.path, data.nbytes))))

    def unstage(self) -> None:
        """Discard the staged buckets."""
        for file, *_ in self.staged:
            file.remove()
        self.staged = []
