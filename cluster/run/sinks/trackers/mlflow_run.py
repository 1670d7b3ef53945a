"""MLflow tracker."""

from __future__ import annotations

import os
import re
from typing import Any

from agent_rft.cluster.run.sinks.trackers.tracker import MetricsPoint, TrackedRun, TrackerUnavailable
from agent_rft.events import Outcome
from agent_rft.spec.trackers import MlflowAccess, MlflowSettings

TAG = "agent_rft.run"
"""Tag by which a resumed run finds its MLflow run."""
REQUESTS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "8", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""Timeout in seconds and number of retries of a request to MLflow. If a request fails, its metrics are sent later.

By default, MLflow waits many minutes for an unreachable server.
"""
STATUS: dict[Outcome, str] = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
MAX_BATCH = {"metrics": 1_000, "params": 100}
"""Maximum number of metrics and of parameters in one MLflow request."""
MAX_PARAM_CHARS = 500
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MlflowRun:
    """MLflow run that records our run. Its tag TAG is the id of our run.

    If our run is resumed, the tag is used to find the MLflow run, and the MLflow run continues.
    """

    def __init__(self, mlflow: Any, run: TrackedRun, settings: MlflowSettings, access: MlflowAccess | None) -> None:
        """Create the MLflow run, or continue it if our run was resumed. `mlflow` is the imported package.

        Raises:
            TrackerUnavailable: The operator has not set the tracking URI.
        """
        if access is None:
            raise TrackerUnavailable("not_allowed", "set trackers.mlflow.tracking_uri in the operator's configuration")
        token = {} if access.token is None else {"MLFLOW_TRACKING_TOKEN": access.token.get_secret_value()}
        os.environ.update(REQUESTS | token)  # MLflow reads them only from the environment
        self._metric, self._param = mlflow.entities.Metric, mlflow.entities.Param
        self._client = client = mlflow.MlflowClient(tracking_uri=access.tracking_uri.get_secret_value())
        experiment = client.get_experiment_by_name(settings.experiment)
        experiment_id = (
            client.create_experiment(settings.experiment) if experiment is None else experiment.experiment_id
        )
        found = client.search_runs([experiment_id], f"tags.`{TAG}` = '{run.id}'", max_results=1)
        if found:
            self._id: str = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return
        made = client.create_run(experiment_id, tags={TAG: run.id}, run_name=settings.name or run.name)
        self._id = made.info.run_id
        params = [self._param(name, str(value)[:MAX_PARAM_CHARS]) for name, value in run.settings.items()]
        for start in range(0, len(params), MAX_BATCH["params"]):
            client.log_batch(self._id, params=params[start : start + MAX_BATCH["params"]])

    def log(self, point: MetricsPoint) -> None:
        metrics = [
            self._metric(_NOT_IN_NAMES.sub("_", name), value, int(point.time * 1000), point.step)
            for name, value in point.metrics.items()
        ]
        for start in range(0, len(metrics), MAX_BATCH["metrics"]):
            self._client.log_batch(self._id, metrics=metrics[start : start + MAX_BATCH["metrics"]])

    def close(self, outcome: Outcome) -> None:
        self._client.set_terminated(self._id, STATUS[outcome])
