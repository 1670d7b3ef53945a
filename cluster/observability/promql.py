"""PromQL over the list of metrics: selectors of their samples, and sums of their rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent_rft.metrics import METRICS, metric_of, prometheus_name

Part = Literal["bucket", "sum", "count"]
OUR_TARGETS, RAY_TARGETS, DCGM_TARGETS = "agent-rft", "agent-rft-ray", "agent-rft-dcgm"
"""The label `job` of our ports, of Ray's and of DCGM's, by which a shared Prometheus tells them from other people's."""
RAY_SPILLED = f'ray_spill_manager_objects_bytes{{job="{RAY_TARGETS}",State="Spilled"}}'
"""Bytes that Ray's object store on a node has written to disk since Ray started; it never falls."""


RAY_HEAD_MEMORY = " / ".join(
    f'max by (ip) (ray_node_mem_{what}{{job="{RAY_TARGETS}",IsHeadNode="true"}})' for what in ("used", "total")
)
"""Share of memory in use on the head of each cluster, of its limit in a container."""


def samples(name: str, *matchers: str, part: Part | None = None) -> str:
    """The selector of a metric's samples: `rollouts/graded` -> `agent_rft_rollouts_total{outcome="graded"}`.

    A placeholder selects all its values (`rollouts/<outcome>`). `matchers` are further conditions on labels
    (`job=~"$job"`), `part` is that of a histogram.

    Raises:
        KeyError: the name is not listed.
        ValueError: Prometheus has no such samples: the metric is only in the file, or `part` does not fit its kind.
    """
    found = metric_of(name)
    if found is None:
        raise KeyError(name)
    entry, values = found
    kind = METRICS[entry].kind
    if kind == "file" or (kind == "histogram") != (part is not None):
        raise ValueError(f"{name} is a {kind}: Prometheus has no samples of it with part={part}")
    suffix = f"_{part}" if part else "_total" if kind == "counter" else ""
    fixed = [f'{label}="{value}"' for label, value in values.items() if value != f"<{label}>"]
    conditions = ",".join([*matchers, *fixed])
    return prometheus_name(entry) + suffix + (f"{{{conditions}}}" if conditions else "")


def rate(selector: str, window: str, by: Sequence[str] = ("job",)) -> str:
    """The rate per second over the window, summed for each combination of the labels in `by`."""
    return f"sum by ({', '.join(by)}) (rate({selector}[{window}]))"
