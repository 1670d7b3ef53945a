"""Load and health of engines, processes, nodes and the API server."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from cluster.observability.dashboards.queries import ANNOTATIONS, JOB, JOBS, mean, quantile, rate

FLEET_DASHBOARD = Dashboard(
    "fleet",
    "agent-rft: Fleet",
    (
        (
            "Engines",
            (
                Panel("Ready engines", (Query(f"sum by (job) (agent_rft_engine_ready{JOB})"),), "none"),
                Panel(
                    "Engine slots",
                    (
                        Query(f"agent_rft_engine_slots_used{JOB}", "used {{process}} {{job}}"),
                        Query(f"agent_rft_engine_slots{JOB}", "total {{process}} {{job}}"),
                        Query(f"agent_rft_engine_waiting{JOB}", "waiting {{process}} {{job}}"),
                    ),
                ),
                Panel(
                    "Sampled tokens per second",
                    (Query(rate("agent_rft_engine_sampled_tokens_total", "job, process"), "{{process}} {{job}}"),),
                ),
                Panel(
                    "KV cache",
                    (
                        Query(f"vllm:kv_cache_usage_perc{JOB}", "used {{process}} {{job}}"),
                        Query(
                            f"{rate('vllm:prefix_cache_hits_total', 'job, process')} / "
                            f"{rate('vllm:prefix_cache_queries_total', 'job, process')}",
                            "prefix hits {{process}} {{job}}",
                        ),
                    ),
                    "percentunit",
                    about="Reported by vLLM: share in use, and share of prompt tokens found in the prefix cache.",
                ),
                Panel(
                    "Rollouts in flight",
                    (
                        Query(f"agent_rft_engine_rollouts{JOB}", "{{engine}} {{job}}"),
                        Query(f"agent_rft_rollouts_in_flight{JOB}", "all {{job}}"),
                    ),
                ),
                Panel(
                    "Weight version",
                    (
                        Query(f"agent_rft_engine_version{JOB}", "{{process}} {{job}}"),
                        Query(f"agent_rft_version{JOB}", "learner {{job}}"),
                    ),
                    "none",
                ),
                Panel(
                    "Generation pause per weight update",
                    (
                        Query(mean("agent_rft_engine_pause_seconds", "job, process"), "{{process}} {{job}}"),
                        Query(mean("agent_rft_sync_pause_seconds"), "slowest engine {{job}}"),
                    ),
                    "s",
                ),
                Panel(
                    "Engine replacements",
                    (Query(f"sum by (job) (agent_rft_engine_replacements_total{JOB})"),),
                    "none",
                    about="Since the job started: engines that died, or differed from the learner on the same weights.",
                ),
            ),
        ),
        (
            "Processes and nodes",
            (
                Panel(
                    "Memory by process", (Query(f"process_resident_memory_bytes{JOB}", "{{process}} {{job}}"),), "bytes"
                ),
                Panel(
                    "CPU cores in use by process",
                    (Query(f"rate(process_cpu_seconds_total{JOB}[$window])", "{{process}} {{job}}"),),
                ),
                Panel(
                    "CPU usage by node",
                    (Query("ray_node_cpu_utilization", "{{instance}}"),),
                    "percent",
                    about="Reported by Ray.",
                ),
                Panel(
                    "Memory in use by node",
                    (Query("ray_node_mem_used", "{{instance}}"),),
                    "bytes",
                    about="Reported by Ray.",
                ),
                Panel(
                    "Free disk space at the run folder",
                    (Query(f"agent_rft_disk_free_bytes{JOB} / agent_rft_disk_total_bytes{JOB}"),),
                    "percentunit",
                ),
            ),
        ),
        (
            "Server",
            (
                Panel(
                    "Requests per second",
                    (
                        Query(
                            rate("agent_rft_api_request_seconds_count", "route, status", ""),
                            "{{status}} {{route}}",
                        ),
                    ),
                ),
                Panel(
                    "Request latency",
                    (
                        Query(
                            quantile(0.95, "agent_rft_api_request_seconds", "route", ""),
                            "p95 {{route}}",
                        ),
                    ),
                    "s",
                ),
                Panel("Jobs", (Query("max by (state) (agent_rft_api_jobs)", "{{state}}"),), "none"),
                Panel(
                    "Healthy replicas of served models",
                    (
                        Query(
                            'sum by (application) (ray_serve_deployment_replica_healthy{application=~"agent-rft.*"})',
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
