"""The driver's Prometheus metrics: each step's metrics, its rollouts, and the disk space of the run folder.

Other processes record their own metrics (`live` ones); the sums of those per step go to metrics.jsonl only.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from actors.runtime.exporter import MetricsAddress, Telemetry
from actors.runtime.recorder import Recorder
from trainer.events import StepDone
from trainer.metrics import METRICS, metric_of
from trainer.run_events import RunEvent
from trainer.types import Group, Rollout


class MetricsSink:
    """A Sink. Serves nothing if `address` is None. Call `close` at the end."""

    def __init__(self, address: MetricsAddress | None, folder: Path) -> None:
        """`folder` is the run's."""
        self.address = address
        self._telemetry = None if address is None else Telemetry(address, "driver")
        self.recorder = Recorder() if self._telemetry is None else self._telemetry.recorder
        self._folder = folder
        # Exported as 0 from the start, so that Prometheus sees the first one as an increase.
        steps = (name for name, metric in METRICS.items() if not metric.live and "<" not in name)
        self.recorder.begin(*(name for name in steps if METRICS[name].kind in ("counter", "histogram")))
        for level in ("info", "warn", "error"):
            self.recorder.record(f"events/{level}", 0.0)
        self.recorder.add(self._disk)

    @classmethod
    def of_run(cls, folder: Path, *, local: bool) -> MetricsSink:
        """The sink of the run in `folder`, whose name is the job's. `local`: the cluster is this machine only.

        Raises:
            UserError: AGENT_RFT_METRICS_PORT is not a port.
        """
        return cls(MetricsAddress.of(folder.name, local=local), folder)

    def event(self, event: RunEvent) -> None:
        happened = event.event
        if happened is None or not happened.quiet:
            self.recorder.record(f"events/{event.level}")
        if isinstance(happened, StepDone):
            self._step(happened.metrics)

    def _step(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            found = metric_of(name)
            if found is not None and not METRICS[found[0]].live:
                self.recorder.record(name, value)

    def groups(self, name: str, groups: Sequence[Group]) -> None:
        for group in groups:
            for rollout in group.rollouts:
                self._rollout(group.request.purpose, rollout)

    def close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()

    def _rollout(self, split: str, rollout: Rollout) -> None:
        record = self.recorder.record
        record(f"reward/{split}", rollout.reward)
        record(f"grade/{split}", rollout.grade.value)
        record(f"rollout_calls/{split}", len(rollout.calls))
        for turn in rollout.turns:
            record(f"turn_calls/{split}", len(turn.calls))
        num_prompt = rollout.turns[0].start
        tokens = {
            "prompt": num_prompt,
            "completion": rollout.num_sampled,
            "reasoning": rollout.reasoning_tokens,
            "tool": len(rollout.token_ids) - num_prompt - rollout.num_sampled,
        }
        for kind, count in tokens.items():
            record(f"rollout_tokens/{split}/{kind}", count)
        record(f"rollout_wall_s/{split}", rollout.wall_s)
        record(f"rollout_busy_s/{split}", rollout.busy_s)

    def _disk(self) -> dict[str, float]:
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:  # the folder was removed
            return {}
        return {"disk_free_bytes": float(usage.free), "disk_total_bytes": float(usage.total)}
