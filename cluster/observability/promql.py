"""PromQL expressions that select the samples of a metric in `agent_rft.metrics`, or sum the metric's rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent_rft.metrics import METRICS, find_metric, to_prometheus_name

Part = Literal["bucket", "sum", "count"]
OUR_TARGETS, RAY_TARGETS, DCGM_TARGETS = "agent-rft", "agent-rft-ray", "agent-rft-dcgm"
"""Values of the label `job` that distinguish the targets of agent-rft, Ray and DCGM in a shared Prometheus."""
RAY_SPILLED = f'ray_spill_manager_objects_bytes{{job="{RAY_TARGETS}",State="Spilled"}}'
"""Bytes that Ray's object store on a node has spilled to disk since Ray started; never decreases."""


RAY_HEAD_MEMORY = " / ".join(
    f'max by (ip) (ray_node_mem_{what}{{job="{RAY_TARGETS}",IsHeadNode="true"}})' for what in ("used", "total")
)
"""Used share of each head node's memory; if the head runs in a container, used share of its memory limit."""


def samples(name: str, *matchers: str, part: Part | None = None) -> str:
    """Return the selector of a metric's samples: `rollouts/graded` -> `agent_rft_rollouts_total{outcome="graded"}`.

    A placeholder in `name`, as in `rollouts/<outcome>`, matches all its values. `matchers` are further label matchers,
    such as `job=~"$job"`. `part` selects the buckets, the sum or the count of a histogram.

    Raises:
        KeyError: The metric is not listed.
        ValueError: The metric is only in metrics.jsonl, `part` is missing for a histogram, or `part` is set for another
            kind of metric.
    """
    found = find_metric(name)
    if found is None:
        raise KeyError(name)
    entry, values = found
    kind = METRICS[entry].kind
    if kind == "file" or (kind == "histogram") != (part is not None):
        raise ValueError(f"{name} is a {kind}, so Prometheus has no samples of this metric with part={part}")
    suffix = f"_{part}" if part else "_total" if kind == "counter" else ""
    fixed = [f'{label}="{value}"' for label, value in values.items() if value != f"<{label}>"]
    conditions = ",".join([*matchers, *fixed])
    return to_prometheus_name(entry) + suffix + (f"{{{conditions}}}" if conditions else "")


def rate(selector: str, window: str, by: Sequence[str] = ("job",)) -> str:
    """Return the rate per second over the window, summed by the labels in `by`."""
    return f"sum by ({', '.join(by)}) (rate({selector}[{window}]))"
