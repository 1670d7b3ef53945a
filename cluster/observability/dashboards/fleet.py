"""Load and health of engines, processes, nodes and GPUs of all jobs and served models."""

from __future__ import annotations

from functools import partial

from cluster.observability.dashboards.grafana import Dashboard, Panel
from cluster.observability.dashboards.libraries import GPUS, NODES, PROCESS, PROCESSES, VLLM
from cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    JOBS,
    STEPS,
    gauge,
    max_of,
    mean_of,
    panel,
    ratio,
    sum_of,
)

_panel = partial(panel, many_jobs=True)

FLEET_DASHBOARD = Dashboard(
    "fleet",
    "agent-rft: Fleet",
    (
        (
            "Engines",
            (
                _panel(sum_of("engine/<engine>/ready", ("job",))),
                _panel(
                    gauge("engine_slots_used", PROCESS),
                    gauge("engine_slots", PROCESS),
                    gauge("engine_waiting", PROCESS),
                    title="Engine slots",
                ),
                *VLLM,
                _panel(gauge("engine/<engine>/rollouts"), gauge("rollouts_in_flight"), title="Rollouts in flight"),
                _panel(sum_of("engine_replacements"), top=1),
                _panel(gauge("engine_version", PROCESS), gauge("version", series="learner"), title="Weight version"),
                _panel(
                    mean_of("engine_pause_s", PROCESS, window=STEPS),
                    mean_of("sync_pause_s", series="slowest engine"),
                    title="Generation pause per weight update",
                ),
            ),
        ),
        ("GPUs (not yet seen on a real one)", GPUS),
        ("Nodes", NODES),
        (
            "Processes and disk",
            (
                *PROCESSES,
                Panel(
                    "Free disk space at the run folder",
                    (ratio(max_of("disk_free_bytes"), max_of("disk_total_bytes"), many_jobs=True),),
                    "percentunit",
                ),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
    page="jobs",
)
