"""Registry of all metrics: their units and meanings, and where tables, charts, dashboards and the API show them.

A metric name with a `<placeholder>` stands for a family of metrics: `tool/<tool>/errors` includes `tool/search/errors`.
Prometheus receives this metric as `agent_rft_tool_errors_total{tool="search"}`: a placeholder becomes a label, so it
must have few values. Each sample also has the labels `job` and `process`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from agent_rft.metrics.live_metrics import LIVE_GROUPS, LIVE_METRICS
from agent_rft.metrics.metric import Metric
from agent_rft.metrics.step_metrics import STEP_GROUPS, STEP_METRICS

METRICS: dict[str, Metric] = STEP_METRICS | LIVE_METRICS
METRIC_GROUPS: dict[str, dict[str, Metric]] = STEP_GROUPS | LIVE_GROUPS
"""All metrics, grouped by heading in the reference."""

EVALUATION_METRICS: dict[str, Metric] = {
    "grade": Metric("grade", "", "mean grade", better_direction=1),
    "held_out": Metric("held-out grade", "", "mean grade of the held-out grader, if there is one", better_direction=1),
    "reward": Metric("reward", "", "mean reward", better_direction=1),
    "pass_rate": Metric("pass rate", "share", "share of rollouts that pass", value_format="{:.1%}", better_direction=1),
    "pass_at_k": Metric(
        "pass@k",
        "share",
        "share of rows for which at least one of k rollouts passes",
        value_format="{:.1%}",
        better_direction=1,
    ),
    "tool_calls": Metric("tool calls per rollout", "calls", "mean number", better_direction=-1),
    "turns": Metric("turns per rollout", "turns", "mean number", better_direction=-1),
    "parallel_turn_share": Metric(
        "turns with parallel calls",
        "share",
        "share of turns with several tool calls, among all turns with tool calls",
        value_format="{:.1%}",
    ),
    "completion_tokens": Metric("sampled tokens per rollout", "tokens", "mean number", better_direction=-1),
    "rollout_tokens": Metric("all tokens per rollout", "tokens", "mean number", better_direction=-1),
    "busy_s": Metric(
        "model and tool time per rollout", "s", "mean, excluding queueing, retries and pauses", better_direction=-1
    ),
    "num_rollouts": Metric("graded rollouts", "rollouts", "number"),
    "discarded": Metric("discarded rollouts", "rollouts", "number", better_direction=-1),
}
"""Metrics by which two evaluations are compared, such as those before and after training, in display order. The keys
are fields of Evaluation."""

_PLACEHOLDER = re.compile(r"<(\w+)>")
_FAMILIES = {
    name: re.compile(_PLACEHOLDER.sub(r"(?P<\1>.+?)", name) + "$", re.DOTALL) for name in METRICS if "<" in name
}


@lru_cache(4096)
def find_metric(name: str) -> tuple[str, dict[str, str]] | None:
    """Return the registered name that matches a metric name, and the values of its placeholders.

    The result is None if no registered name matches.
    """
    if name in METRICS:
        return name, {}
    for family, pattern in _FAMILIES.items():
        if found := pattern.match(name):
            return family, found.groupdict()
    return None


def to_prometheus_name(entry: str) -> str:
    """Return the Prometheus name of a registered metric, without the suffix `_total` of counters.

    `tool/<tool>/latency_s_mean` -> `agent_rft_tool_latency_seconds_mean`.
    """
    plain = "_".join(part for part in entry.split("/") if not part.startswith("<"))
    return "agent_rft_" + re.sub(r"_s(?=_|$)", "_seconds", plain)
