"""Load and health of engines, processes, nodes and the API server."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    JOB,
    JOBS,
    OURS,
    STEPS,
    WINDOW,
    gauge,
    max_of,
    mean_of,
    panel,
    quantile_of,
    rate_of,
    ratio,
    sum_of,
)
from cluster.observability.promql import RAY_SPILLED, RAY_TARGETS, rate, samples

PROCESS = ("job", "process")
APPLICATION = 'application=~"agent-rft.*"'
RAY = f'job="{RAY_TARGETS}"'
API_REQUEST_S = "api_request_s/<status>/<method>/<route>"
PREFIX_HITS, PREFIX_QUERIES = (
    rate(f"vllm:prefix_cache_{what}_total{JOB}", WINDOW, PROCESS) for what in ("hits", "queries")
)

FLEET_DASHBOARD = Dashboard(
    "fleet",
    "agent-rft: Fleet",
    (
        (
            "Engines",
            (
                panel(sum_of("engine/<engine>/ready", ("job",))),
                panel(
                    gauge("engine_slots_used", PROCESS),
                    gauge("engine_slots", PROCESS),
                    gauge("engine_waiting", PROCESS),
                    title="Engine slots",
                ),
                panel(rate_of("engine_sampled_tokens", PROCESS)),
                Panel(
                    "KV cache",
                    (
                        Query(f"vllm:kv_cache_usage_perc{JOB} {OURS}", "used {{process}} {{job}}"),
                        Query(f"{PREFIX_HITS} / {PREFIX_QUERIES} {OURS}", "prefix hits {{process}} {{job}}"),
                    ),
                    "percentunit",
                    about="Reported by vLLM: share in use, and share of prompt tokens found in the prefix cache.",
                ),
                panel(gauge("engine/<engine>/rollouts"), gauge("rollouts_in_flight"), title="Rollouts in flight"),
                panel(gauge("engine_version", PROCESS), gauge("version", series="learner"), title="Weight version"),
                panel(
                    mean_of("engine_pause_s", PROCESS, window=STEPS),
                    mean_of("sync_pause_s", series="slowest engine"),
                    title="Generation pause per weight update",
                ),
                panel(sum_of("engine_replacements")),
            ),
        ),
        (
            "Processes and nodes",
            (
                Panel(
                    "Memory by process",
                    (Query(f"process_resident_memory_bytes{JOB} {OURS}", "{{process}} {{job}}"),),
                    "bytes",
                ),
                Panel(
                    "CPU cores in use by process",
                    (Query(f"rate(process_cpu_seconds_total{JOB}[{WINDOW}]) {OURS}", "{{process}} {{job}}"),),
                ),
                Panel(
                    "CPU usage by node",
                    (Query(f"ray_node_cpu_utilization{{{RAY}}}", "{{ip}}"),),
                    "percent",
                    about="Reported by Ray.",
                ),
                Panel(
                    "Memory in use by node",
                    (Query(f"ray_node_mem_used{{{RAY}}}", "{{ip}}"),),
                    "bytes",
                    about="Reported by Ray.",
                ),
                Panel(
                    "Spilled to disk by node",
                    (Query(f"sum by (NodeAddress) ({RAY_SPILLED})", "{{NodeAddress}}"),),
                    "bytes",
                    about="Reported by Ray: what did not fit into its object store, since it started.",
                ),
                Panel(
                    "Free disk space at the run folder",
                    (ratio(gauge("disk_free_bytes"), gauge("disk_total_bytes")),),
                    "percentunit",
                ),
            ),
        ),
        (
            "Server",
            (
                Panel(
                    "API requests per second",
                    (
                        Query(
                            rate(samples(API_REQUEST_S, part="count"), WINDOW, ("route", "status")),
                            "{{status}} {{route}}",
                        ),
                    ),
                ),
                panel(quantile_of(0.95, API_REQUEST_S, ("route",))),
                panel(max_of("api_jobs/<state>", ("state",))),
                Panel(
                    "Healthy replicas of served models",
                    (
                        Query(
                            f"sum by (application) (ray_serve_deployment_replica_healthy{{{RAY},{APPLICATION}}})",
                            "{{application}}",
                        ),
                    ),
                    "none",
                    about="Reported by Ray Serve, for each served model and the API.",
                ),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
)
