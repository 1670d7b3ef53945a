"""Weights & Biases tracker. A separate process of `wandb` uploads and retries, so that logging never waits."""

from __future__ import annotations

from typing import Any

from agent_rft.cluster.run.sinks.trackers.tracker import MetricsPoint, TrackedRun, TrackerUnavailable
from agent_rft.events import Outcome
from agent_rft.spec.trackers import WandbAccess, WandbSettings

START_S, FINISH_S = 20.0, 20.0
"""Seconds to wait for the server at the start, and for the last uploads at `close` or when the process exits."""


class WandbRun:
    """A run in Weights & Biases. It has the id of our run, so a resumed run continues the same Weights & Biases run."""

    def __init__(self, wandb: Any, run: TrackedRun, settings: WandbSettings, access: WandbAccess | None) -> None:
        """Create or continue the Weights & Biases run. `wandb` is the imported package.

        Raises:
            TrackerUnavailable: The operator has set neither the API key nor offline mode.
        """
        if access is None or (access.api_key is None and not access.offline):
            raise TrackerUnavailable("not_allowed", "set trackers.wandb.api_key in the operator's configuration")
        options = {
            "api_key": None if access.api_key is None else access.api_key.get_secret_value(),
            "base_url": access.base_url,
            "init_timeout": START_S,
            "finish_timeout": FINISH_S,
            "finish_timeout_raises": True,
            "console": "off",
            "disable_code": True,
            "disable_git": True,
            "x_disable_stats": True,
            "x_disable_meta": True,
            "silent": True,
        }
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=settings.name or run.name,
            tags=settings.tags,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
            mode="offline" if access.offline else "online",
            settings=wandb.Settings(**{name: value for name, value in options.items() if value is not None}),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, point: MetricsPoint) -> None:
        self._run.log({"step": point.step, **point.metrics})

    def close(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=1 if outcome == "failed" else 0)
