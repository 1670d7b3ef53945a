"""TensorBoard tracker, with event files in the run folder."""

from __future__ import annotations

from typing import Any

from agent_rft.cluster.run.sinks.trackers.tracker import MetricsPoint, TrackedRun
from agent_rft.events import Outcome

FOLDER = "tensorboard"


class TensorboardFiles:
    """Folder with event files for `tensorboard --logdir`. A resumed run adds a file to the same folder."""

    def __init__(self, summary: Any, run: TrackedRun) -> None:
        """Open a new event file. `summary` is the imported module `tensorboard.summary`."""
        self._writer = summary.Writer(str(run.folder / FOLDER))

    def log(self, point: MetricsPoint) -> None:
        for name, value in point.metrics.items():
            self._writer.add_scalar(name, value, point.step, wall_time=point.time)
        self._writer.flush()

    def close(self, outcome: Outcome) -> None:
        self._writer.close()
