"""Learner dashboard: metrics of the updates, and the agreement of engines and learner."""

from __future__ import annotations

from agent_rft.cluster.observability.alerts import alert, learner_restarts
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from agent_rft.cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    CHOSEN,
    JOBS,
    STEPS,
    gauge,
    panel,
    query_mean,
    query_rate,
    share_of_time,
)

LEARNER_DASHBOARD = Dashboard(
    "learner",
    "agent-rft: Learner",
    (
        (
            "Updates",
            (
                panel(gauge("loss"), gauge("full_valid_loss"), title="Loss"),
                panel(gauge("entropy"), alerts=("EntropyCollapse",)),
                panel(gauge("grad_norm")),
                panel(gauge("learning_rate")),
                panel(gauge("kl_reference")),
                panel(gauge("update_applied"), top=1),
                Panel(
                    "Learner restarts in an hour",
                    (Query(learner_restarts(CHOSEN["job"]), "restarts"),),
                    top=1,
                    about="Restarts of all ranks after one was lost.",
                    alerts=(alert("LearnerRestarts"),),
                ),
            ),
        ),
        (
            "Agreement of engines and learner",
            (
                panel(
                    gauge("logprob_gap"),
                    gauge("canary_gap"),
                    title="Log-probability gap",
                    unit="sci",
                    about="Typically about 1e-6 nats in float32 and 0.02 in bfloat16.",
                    alerts=("EngineLearnerDifference",),
                ),
                panel(gauge("importance_ratio_mean"), gauge("importance_ratio_same_version"), title="Importance ratio"),
                panel(
                    gauge("importance_capped_share"),
                    gauge("clipped_share"),
                    gauge("diverged_share"),
                    title="Truncated, clipped and diverged tokens",
                ),
                panel(query_mean("sync_total_s"), query_mean("sync_pause_s"), title="Weight sync time"),
            ),
        ),
        (
            "Throughput",
            (
                panel(gauge("padding_efficiency"), top=1),
                panel(query_rate("trained_tokens"), query_rate("computed_tokens"), title="Tokens per second"),
                panel(
                    share_of_time("rank_s/<call>", ("job", "process", "call"), window=STEPS),
                    stacked=True,
                    legend_at_right=True,
                ),
                panel(gauge("num_micro_batches")),
            ),
        ),
    ),
    (JOBS.as_single(),),
    ANNOTATIONS,
    page="jobs/$job",
)
