"""PromQL shared by the dashboards. The viewer chooses `$job`, `$endpoint` and `$window` on the page."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Query

JOB = '{job=~"$job"}'
TRAIN = '{job=~"$job",split="train"}'
ENDPOINT = '{job=~"$job",endpoint=~"$endpoint"}'
JOBS = ("job", "label_values(agent_rft_disk_total_bytes, job)")
ANNOTATIONS = (
    Query(f"increase(agent_rft_time_checkpoint_seconds_count{JOB}[1m]) > 0", "checkpoint"),
    Query(f"changes(agent_rft_version{JOB}[1m]) > 0", "weight update"),
)


def mean(name: str, by: str = "job", labels: str = JOB) -> str:
    """The mean of a histogram's observations over the window, for each combination of the labels in `by`."""
    return f"sum by ({by}) (rate({name}_sum{labels}[$window])) / sum by ({by}) (rate({name}_count{labels}[$window]))"


def quantile(q: float, name: str, by: str = "job", labels: str = JOB) -> str:
    return f"histogram_quantile({q:g}, sum by ({by}, le) (rate({name}_bucket{labels}[$window])))"


def rate(name: str, by: str = "job", labels: str = JOB) -> str:
    return f"sum by ({by}) (rate({name}{labels}[$window]))"
