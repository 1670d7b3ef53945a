"""Panels for metrics from vLLM, Ray and NVIDIA's DCGM exporter, limited to our processes and nodes.

Other programs may export metrics with the same names to the same Prometheus. Therefore vLLM queries select our
processes, and the other queries select the label `job` that our scrape configuration gives to their targets.
"""

from __future__ import annotations

from agent_rft.cluster.observability.alerts import NEW_SPILLS, find_alert
from agent_rft.cluster.observability.dashboards.grafana import Panel, Query
from agent_rft.cluster.observability.dashboards.queries import CHOSEN, WINDOW
from agent_rft.cluster.observability.promql import DCGM_TARGETS, RAY_HEAD_MEMORY, RAY_TARGETS, rate, samples

PROCESS = ("job", "process")
JOB = f"{{{CHOSEN['job']}}}"
OURS = f"and on (job, process) {samples('process_up', CHOSEN['job'])}"
"""PromQL condition, appended to a vLLM query, that selects the series of agent-rft's processes."""
BY_PROCESS = "{{process}} {{job}}"
RAY, DCGM = f'job="{RAY_TARGETS}"', f'job="{DCGM_TARGETS}"'
APPLICATION = f'{RAY},application=~"agent-rft.*"'
MEBIBYTE, MILLI = 1 << 20, 1000


def _rate(name: str, by: tuple[str, ...] = PROCESS) -> str:
    return rate(f"vllm:{name}{JOB}", WINDOW, by)


def vllm_rate(name: str, series: str = "", *, per_minute: bool = False) -> Query:
    """Return a query for the growth of a vLLM counter per second or per minute, by engine."""
    return Query(f"{'60 * ' if per_minute else ''}{_rate(name)} {OURS}", f"{series} {BY_PROCESS}".strip())


def vllm_quantile(q: float, name: str) -> Query:
    buckets = _rate(f"{name}_bucket", (*PROCESS, "le"))
    return Query(f"histogram_quantile({q:g}, {buckets}) {OURS}", f"p{q * 100:g} {BY_PROCESS}")


VLLM = (
    Panel(
        "Time to first token",
        (vllm_quantile(0.5, "time_to_first_token_seconds"), vllm_quantile(0.95, "time_to_first_token_seconds")),
        "s",
        about="Reported by vLLM: time from a request's arrival at the engine to its first token, including the queue.",
    ),
    Panel(
        "Engine tokens per second",
        (vllm_rate("generation_tokens_total", "sampled"), vllm_rate("prompt_tokens_total", "prompt")),
        about="Reported by vLLM. Prompt tokens found in the prefix cache are included.",
    ),
    Panel(
        "KV cache",
        (
            Query(f"vllm:kv_cache_usage_perc{JOB} {OURS}", f"used {BY_PROCESS}"),
            Query(
                f"{_rate('prefix_cache_hits_total')} / {_rate('prefix_cache_queries_total')} {OURS}",
                f"prefix hits {BY_PROCESS}",
            ),
        ),
        "percentunit",
        about="Reported by vLLM: the share of the cache in use, and the share of prompt tokens found in the prefix "
        "cache.",
    ),
    Panel(
        "Preemptions per minute",
        (vllm_rate("num_preemptions_total", per_minute=True),),
        min_axis_max=1,
        about="Reported by vLLM: requests that were evicted from a full KV cache and must be computed again. If the "
        "rate is often above 0, run fewer rollouts concurrently or give the cache more memory.",
    ),
)
PROCESSES = (
    Panel(
        "Memory by process",
        (Query(f"process_resident_memory_bytes{JOB} {OURS}", BY_PROCESS),),
        "bytes",
        legend_at_right=True,
    ),
    Panel(
        "CPU cores in use, per process",
        (Query(f"rate(process_cpu_seconds_total{JOB}[{WINDOW}]) {OURS}", BY_PROCESS),),
        legend_at_right=True,
    ),
)
_USED, _FREE = (f"sum by (NodeAddress) (ray_object_store_{what}_memory{{{RAY}}})" for what in ("used", "available"))
NODES = (
    Panel(
        "CPU usage by node",
        (Query(f"ray_node_cpu_utilization{{{RAY}}}", "{{ip}}"),),
        "percent",
        about="Reported by Ray.",
    ),
    Panel(
        "Memory in use, per node", (Query(f"ray_node_mem_used{{{RAY}}}", "{{ip}}"),), "bytes", about="Reported by Ray."
    ),
    Panel(
        "Memory in use on the head",
        (Query(RAY_HEAD_MEMORY, "{{ip}}"),),
        "percentunit",
        about="Reported by Ray: share of the node's memory in use; in a container, share of the container's limit.",
        alerts=(find_alert("HeadMemory"),),
    ),
    Panel(
        "Object store in use, per node",
        (Query(f"{_USED} / ({_USED} + {_FREE})", "{{NodeAddress}}"),),
        "percentunit",
        about="Reported by Ray. Objects that do not fit spill to disk.",
    ),
    Panel(
        "Spilled to disk in 15 minutes, per node",
        (Query(NEW_SPILLS, "{{NodeAddress}}"),),
        "bytes",
        about="Reported by Ray: size of the objects that did not fit in Ray's object store.",
        alerts=(find_alert("RaySpills"),),
    ),
)
_ONE_GPU = "Only one of them is needed, because each reports all values of this panel."


def _gpu_panel(title: str, unit: str, ray: str, dcgm: str) -> Panel:
    """Return a panel with one series per GPU.

    `ray` is an expression for Ray's metrics. `dcgm` is an expression for the metrics of DCGM's exporter. Label matchers
    replace `{}` in both expressions.
    """
    queries = (
        Query(ray.replace("{}", f"{{{RAY}}}"), "{{ip}} GPU {{GpuIndex}}"),
        Query(dcgm.replace("{}", f"{{{DCGM}}}"), "{{Hostname}} GPU {{gpu}} by DCGM"),
    )
    return Panel(title, queries, unit, width=8, about=f"Reported by Ray and by DCGM's exporter. {_ONE_GPU}")


GPUS = (
    _gpu_panel("GPU usage", "percent", "ray_node_gpus_utilization{}", "DCGM_FI_DEV_GPU_UTIL{}"),
    _gpu_panel(
        "GPU memory in use", "bytes", f"ray_node_gram_used{{}} * {MEBIBYTE}", f"DCGM_FI_DEV_FB_USED{{}} * {MEBIBYTE}"
    ),
    _gpu_panel("GPU power", "watt", f"ray_node_gpu_power_milliwatts{{}} / {MILLI}", "DCGM_FI_DEV_POWER_USAGE{}"),
)
"""GPU panels. Tested with sample metrics from Ray and DCGM's exporter, but not yet on a real GPU."""
_REQUESTS = "ray_serve_deployment_request_counter_total"
_LATENCY = "ray_serve_deployment_processing_latency_ms_bucket"
_SERVED = ("application",)
SERVED = (
    Panel(
        "Healthy replicas of served models",
        (
            Query(
                f"sum by (application) (ray_serve_deployment_replica_healthy{{{APPLICATION}}})",
                "{{application}}",
            ),
        ),
        "none",
        width=8,
        about="Reported by Ray Serve, for each served model and the API.",
    ),
    Panel(
        "Requests per second to served models",
        (Query(rate(f"{_REQUESTS}{{{APPLICATION}}}", WINDOW, _SERVED), "{{application}}"),),
        width=8,
        about="Reported by Ray Serve, for each served model and the API.",
    ),
    Panel(
        "Latency of served models",
        (
            Query(
                f"histogram_quantile(0.95, {rate(f'{_LATENCY}{{{APPLICATION}}}', WINDOW, (*_SERVED, 'le'))})",
                "p95 {{application}}",
            ),
        ),
        "ms",
        width=8,
        about="Reported by Ray Serve: time that a request spends in a replica, until the end of a streamed response.",
    ),
)
