"""Fleet dashboard: load and health of engines, processes, nodes and GPUs of all jobs and served models."""

from __future__ import annotations

from functools import partial

from agent_rft.cluster.observability.alerts import API_FAILED, RAY_UP, UP, alert, drivers, failed_jobs
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from agent_rft.cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    CHOSEN,
    JOBS,
    STEPS,
    gauge,
    panel,
    query_increase,
    query_max,
    query_mean,
    query_sum,
    ratio,
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
                    gauge("engine_slots_used", PROCESS),
                    gauge("engine_slots", PROCESS),
                    gauge("engine_waiting", PROCESS),
                    title="Engine slots",
                ),
                *VLLM,
                _panel(gauge("engine/<engine>/rollouts"), gauge("rollouts_in_flight"), title="Rollouts in flight"),
                _panel(query_increase("engine_replacements"), top=1, alerts=("EngineReplaced",)),
                _panel(gauge("engine_version", PROCESS), gauge("version", series="learner"), title="Weight version"),
                _panel(
                    query_mean("engine_pause_s", PROCESS, window=STEPS),
                    query_mean("sync_pause_s", series="slowest engine"),
                    title="Generation pause per weight update",
                ),
            ),
        ),
        ("GPUs (not yet tested on a real GPU)", GPUS),
        ("Nodes", NODES),
        (
            "Jobs, processes and disk",
            (
                Panel(
                    "Failed jobs in 15 minutes",
                    (Query(failed_jobs(CHOSEN["job"])), Query(API_FAILED, "of the server")),
                    top=1,
                    about="Jobs whose driver ended with an error, and failed jobs of the server.",
                    alerts=(alert("JobFailed"),),
                ),
                Panel(
                    "Drivers of unfinished jobs",
                    (Query(drivers(CHOSEN["job"])),),
                    "none",
                    about="1: the driver runs. 0: it is gone and did not report the end of the job.",
                    alerts=(alert("JobLost"),),
                ),
                Panel(
                    "Scraped targets",
                    (Query(UP, "{{instance}}"), Query(RAY_UP, "Ray {{node}}")),
                    "none",
                    top=1,
                    about="1: Prometheus can read the target. 0: it cannot. A node without a job serves no metrics.",
                    legend_at_right=True,
                    alerts=(alert("TargetDown"),),
                ),
                *PROCESSES,
                Panel(
                    "Free disk space at the run folder",
                    (ratio(query_max("disk_free_bytes"), query_max("disk_total_bytes"), many_jobs=True),),
                    "percentunit",
                    alerts=(alert("DiskFull"),),
                ),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
    page="jobs",
)
