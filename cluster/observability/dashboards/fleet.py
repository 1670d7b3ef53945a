"""Fleet dashboard: load and health of engines, processes, nodes and GPUs of all jobs and served models."""

from __future__ import annotations

from functools import partial

from agent_rft.cluster.observability.alerts import API_FAILED, RAY_UP, UP, driver_up_expr, failed_jobs_expr, find_alert
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from agent_rft.cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    CHOSEN,
    JOBS,
    STEPS,
    panel,
    query_gauge,
    query_increase,
    query_max,
    query_mean,
    query_ratio,
    query_sum,
)
from agent_rft.cluster.observability.dashboards.third_party_panels import GPUS, NODES, PROCESS, PROCESSES, VLLM

_panel = partial(panel, many_jobs=True)

FLEET_DASHBOARD = Dashboard(
    "fleet",
    "agent-rft: Fleet",
    (
        (
            "Engines",
            (
                _panel(query_sum("engine/<engine>/ready", ("job",)), alerts=("EnginesMissing",)),
                _panel(
                    query_gauge("engine_slots_used", PROCESS),
                    query_gauge("engine_slots", PROCESS),
                    query_gauge("engine_waiting", PROCESS),
                    title="Engine slots",
                ),
                *VLLM,
                _panel(
                    query_gauge("engine/<engine>/rollouts"),
                    query_gauge("rollouts_in_flight"),
                    title="Rollouts in flight",
                ),
                _panel(query_increase("engine_replacements"), min_axis_max=1, alerts=("EngineReplaced",)),
                _panel(
                    query_gauge("engine_version", PROCESS),
                    query_gauge("version", series="learner"),
                    title="Weight version",
                ),
                _panel(
                    query_mean("engine_pause_s", PROCESS, window=STEPS),
                    query_mean("sync_pause_s", series="slowest engine"),
                    title="Generation pause per weight update",
                ),
            ),
        ),
        ("GPUs (these panels have not been tested on real GPUs yet)", GPUS),
        ("Nodes", NODES),
        (
            "Jobs, processes and disk",
            (
                Panel(
                    "Failed jobs in 15 minutes",
                    (Query(failed_jobs_expr(CHOSEN["job"])), Query(API_FAILED, "of the server")),
                    min_axis_max=1,
                    about="Jobs whose driver ended with an error, and failed jobs on the server.",
                    alerts=(find_alert("JobFailed"),),
                ),
                Panel(
                    "Drivers of unfinished jobs",
                    (Query(driver_up_expr(CHOSEN["job"])),),
                    "none",
                    about="1: the driver is running. 0: the driver is gone and did not report the end of the job.",
                    alerts=(find_alert("JobLost"),),
                ),
                Panel(
                    "Scraped targets",
                    (Query(UP, "{{instance}}"), Query(RAY_UP, "Ray {{node}}")),
                    "none",
                    min_axis_max=1,
                    about="1: Prometheus can scrape the target. 0: Prometheus cannot scrape it. A node without a job "
                    "serves no metrics.",
                    legend_at_right=True,
                    alerts=(find_alert("TargetDown"),),
                ),
                *PROCESSES,
                Panel(
                    "Free disk space at the run folder",
                    (query_ratio(query_max("disk_free_bytes"), query_max("disk_total_bytes"), many_jobs=True),),
                    "percentunit",
                    alerts=(find_alert("DiskFull"),),
                ),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
    console_page="jobs",
)
