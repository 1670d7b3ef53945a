"""Engines, processes, nodes and the server."""

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
                Panel("Engines that take rollouts", (Query(f"sum by (job) (agent_rft_engine_ready{JOB})"),), "none"),
                Panel(
                    "Slots",
                    (
                        Query(f"agent_rft_engine_slots_used{JOB}", "used {{process}} {{job}}"),
                        Query(f"agent_rft_engine_slots{JOB}", "there {{process}} {{job}}"),
                        Query(f"agent_rft_engine_waiting{JOB}", "waiting {{process}} {{job}}"),
                    ),
                ),
                Panel(
                    "Sampled tokens a second",
                    (Query(rate("agent_rft_engine_sampled_tokens_total", "job, process"), "{{process}} {{job}}"),),
                ),
                Panel(
                    "Cache of keys and values",
                    (
                        Query(f"vllm:kv_cache_usage_perc{JOB}", "used {{process}} {{job}}"),
                        Query(
                            f"{rate('vllm:prefix_cache_hits_total', 'job, process')} / "
                            f"{rate('vllm:prefix_cache_queries_total', 'job, process')}",
                            "hits {{process}} {{job}}",
                        ),
                    ),
                    "percentunit",
                    about="vLLM's own: share in use, and share of prompt tokens found in it.",
                ),
                Panel(
                    "Rollouts under way",
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
                    "Pause of an update",
                    (
                        Query(mean("agent_rft_engine_pause_seconds", "job, process"), "{{process}} {{job}}"),
                        Query(mean("agent_rft_sync_pause_seconds"), "slowest {{job}}"),
                    ),
                    "s",
                ),
                Panel(
                    "Replaced engines",
                    (Query(f"sum by (job) (agent_rft_engine_replacements_total{JOB})"),),
                    "none",
                    about="Since the start: they died, or differed from the learner on the same weights.",
                ),
            ),
        ),
        (
            "Processes and nodes",
            (
                Panel("Memory", (Query(f"process_resident_memory_bytes{JOB}", "{{process}} {{job}}"),), "bytes"),
                Panel(
                    "Cores in use",
                    (Query(f"rate(process_cpu_seconds_total{JOB}[$window])", "{{process}} {{job}}"),),
                ),
                Panel(
                    "Cores of nodes in use",
                    (Query("ray_node_cpu_utilization", "{{instance}}"),),
                    "percent",
                    about="Ray's own.",
                ),
                Panel(
                    "Memory of nodes in use", (Query("ray_node_mem_used", "{{instance}}"),), "bytes", about="Ray's own."
                ),
                Panel(
                    "Free on the disk of the run",
                    (Query(f"agent_rft_disk_free_bytes{JOB} / agent_rft_disk_total_bytes{JOB}"),),
                    "percentunit",
                ),
            ),
        ),
        (
            "Server",
            (
                Panel(
                    "Requests a second",
                    (
                        Query(
                            rate("agent_rft_api_request_seconds_count", "route, status", ""),
                            "{{status}} {{route}}",
                        ),
                    ),
                ),
                Panel(
                    "Latency of requests",
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
                    "Engines that serve models",
                    (
                        Query(
                            'sum by (application) (ray_serve_deployment_replica_healthy{application=~"agent-rft.*"})',
                            "{{application}}",
                        ),
                    ),
                    "none",
                    about="Ray Serve's own: replicas of each served model, and of the API.",
                ),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
)
