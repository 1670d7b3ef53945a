"""PromQL for the listed metrics: selectors of samples, and sums of rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent_rft.metrics import METRICS, find_metric, to_prometheus_name

Part = Literal["bucket", "sum", "count"]
OUR_TARGETS, RAY_TARGETS, DCGM_TARGETS = "agent-rft", "agent-rft-ray", "agent-rft-dcgm"
"""Values of the label `job` for our ports, Ray's and DCGM's; they identify our targets in a shared Prometheus."""
RAY_SPILLED = f'ray_spill_manager_objects_bytes{{job="{RAY_TARGETS}",State="Spilled"}}'
"""Bytes that Ray's object store on a node has spilled to disk since Ray started; never decreases."""


RAY_HEAD_MEMORY = " / ".join(
    f'max by (ip) (ray_node_mem_{what}{{job="{RAY_TARGETS}",IsHeadNode="true"}})' for what in ("used", "total")
)
"""Share of used memory on the head of each cluster; in a container, of the container's limit."""


def samples(name: str, *matchers: str, part: Part | None = None) -> str:
    """Return the selector of a metric's samples: `rollouts/graded` -> `agent_rft_rollouts_total{outcome="graded"}`.

    A placeholder selects all its values (`rollouts/<outcome>`). `matchers` are further conditions on labels
    (`job=~"$job"`); `part` selects a part of a histogram.

    Raises:
        KeyError: The metric is not listed.
        ValueError: The metric is only in the metrics file, or `part` does not fit its kind.
    """
    found = find_metric(name)
    if found is None:
        raise KeyError(name)
    entry, values = found
    kind = METRICS[entry].kind
    if kind == "file" or (kind == "histogram") != (part is not None):
        raise ValueError(f"{name} is a {kind}: Prometheus has no samples of it with part={part}")
    suffix = f"_{part}" if part else "_total" if kind == "counter" else ""
    fixed = [f'{label}="{value}"' for label, value in values.items() if value != f"<{label}>"]
    conditions = ",".join([*matchers, *fixed])
    return to_prometheus_name(entry) + suffix + (f"{{{conditions}}}" if conditions else "")


def rate(selector: str, window: str, by: Sequence[str] = ("job",)) -> str:
    """Return the rate per second over the window, summed by the labels in `by`."""
    return f"sum by ({', '.join(by)}) (rate({selector}[{window}]))"
