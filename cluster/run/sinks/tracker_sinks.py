"""Sinks for the experiment trackers that a job names in `integrations`, each on a separate thread.

A tracker cannot slow down a run or make it fail. If a tracker's package, key or server is missing, or if the tracker
hangs or falls behind, this is reported once, and the tracker receives no more metrics.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, assert_never

from agent_rft.actors.endpoints.network.endpoint_url_checks import list_secrets
from agent_rft.cluster.records.redaction import REDACTED, replace_substrings
from agent_rft.cluster.run.sinks.plugin_sinks import PluginSink, RunInfo
from agent_rft.cluster.run.sinks.trackers.mlflow_run import MlflowRun
from agent_rft.cluster.run.sinks.trackers.tensorboard_files import TensorboardFiles
from agent_rft.cluster.run.sinks.trackers.tracker import (
    TrackedRun,
    Tracker,
    TrackerSink,
    TrackerUnavailable,
    extract_settings,
)
from agent_rft.cluster.run.sinks.trackers.wandb_run import FINISH_S, WandbRun
from agent_rft.events import Event, TrackerFailed
from agent_rft.loop_protocols import Sink
from agent_rft.spec.trackers import (
    Integration,
    MlflowTrackerSpec,
    TensorboardTrackerSpec,
    TrackerAccess,
    WandbTrackerSpec,
)

CLOSE_S = FINISH_S + 5.0
"""Seconds that a run waits at its end for the last uploads."""
ImportModule = Callable[[str], Any]
"""Function that imports a module by its name."""


class TrackerPluginSink(PluginSink):
    """Sink of one tracker. `secrets` are redacted in the failure message."""

    def __init__(
        self, name: str, make: Callable[[], Sink], secrets: Iterable[str] = (), close_timeout_s: float = CLOSE_S
    ) -> None:
        self._secrets = dict.fromkeys(filter(None, secrets), REDACTED)
        super().__init__(name, make, close_timeout_s=close_timeout_s)

    def make_cut_off_event(self) -> Event:
        cause = self.error.cause if isinstance(self.error, TrackerUnavailable) else "failed"
        reason = str(self.error) if isinstance(self.error, TrackerUnavailable) else str(self.failure)
        return TrackerFailed(tracker=self.name, cause=cause, reason=replace_substrings(reason, self._secrets))


def load_trackers(
    named: Iterable[Integration],
    access: TrackerAccess,
    run: RunInfo,
    load: ImportModule = import_module,
    close_timeout_s: float = CLOSE_S,
) -> list[TrackerPluginSink]:
    """Return a sink for each tracker that the job names. The tracker's package is imported on the sink's thread."""
    tracked = TrackedRun(run.tracker_id, run.name, run.folder, extract_settings(run.job))

    def make_factory(integration: Integration) -> Callable[[], Sink]:
        return lambda: TrackerSink(_make_tracker(integration, access, tracked, load))

    keys = [access.wandb and access.wandb.api_key, access.mlflow and access.mlflow.token]
    address = "" if access.mlflow is None else access.mlflow.tracking_uri.get_secret_value()
    secrets = list_secrets(address, [key.get_secret_value() for key in keys if key])
    return [
        TrackerPluginSink(integration.type, make_factory(integration), secrets, close_timeout_s)
        for integration in named
    ]


def _make_tracker(integration: Integration, access: TrackerAccess, run: TrackedRun, load: ImportModule) -> Tracker:
    """Create the tracker of an integration.

    Raises:
        TrackerUnavailable: The tracker's package is not installed, or the operator has not set it up.
    """
    match integration:
        case WandbTrackerSpec():
            return WandbRun(_import_package(load, "wandb", "wandb"), run, integration.wandb, access.wandb)
        case MlflowTrackerSpec():
            return MlflowRun(_import_package(load, "mlflow", "mlflow"), run, integration.mlflow, access.mlflow)
        case TensorboardTrackerSpec():
            return TensorboardFiles(_import_package(load, "tensorboard.summary", "tensorboard"), run)
    assert_never(integration)


NO_REPORTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "WANDB_ERROR_REPORTING": "false",
}
"""Environment variables that turn off telemetry, error reports and console output of MLflow and Weights & Biases."""


def _import_package(load: ImportModule, module: str, extra: str) -> Any:
    os.environ.update(NO_REPORTS)  # the packages read it on import
    try:
        return load(module)
    except ImportError as error:
        raise TrackerUnavailable("not_installed", f"run `pip install 'agent-rft[{extra}]'` ({error})") from None
