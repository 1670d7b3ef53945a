"""Learner dashboard: metrics of the updates, and the agreement between the engines and the learner."""

from __future__ import annotations

from agent_rft.cluster.observability.alerts import find_alert, learner_restarts_expr
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from agent_rft.cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    CHOSEN,
    JOBS,
    STEPS,
    build_rate_query,
    panel,
    query_gauge,
    query_mean,
    query_time_share,
)

LEARNER_DASHBOARD = Dashboard(
    "learner",
    "agent-rft: Learner",
    (
        (
            "Updates",
            (
                panel(query_gauge("loss"), query_gauge("full_valid_loss"), title="Loss"),
                panel(query_gauge("entropy"), alerts=("EntropyCollapse",)),
                panel(query_gauge("grad_norm")),
                panel(query_gauge("learning_rate")),
                panel(query_gauge("kl_reference")),
                panel(query_gauge("update_applied"), min_axis_max=1),
                Panel(
                    "Learner restarts in an hour",
                    (Query(learner_restarts_expr(CHOSEN["job"]), "restarts"),),
                    min_axis_max=1,
                    about="Restarts of all learner ranks after one rank was lost.",
                    alerts=(find_alert("LearnerRestarts"),),
                ),
            ),
        ),
        (
            "Agreement between engines and learner",
            (
                panel(
                    query_gauge("logprob_gap"),
                    query_gauge("canary_gap"),
                    title="Log-probability gap",
                    unit="sci",
                    about="Typical values are 1e-6 nats in float32 and 0.02 nats in bfloat16.",
                    alerts=("EngineLearnerDifference",),
                ),
                panel(
                    query_gauge("importance_ratio_mean"),
                    query_gauge("importance_ratio_same_version"),
                    title="Importance ratio",
                ),
                panel(
                    query_gauge("importance_capped_share"),
                    query_gauge("clipped_share"),
                    query_gauge("diverged_share"),
                    title="Truncated, clipped and diverged tokens",
                ),
                panel(query_mean("sync_total_s"), query_mean("sync_pause_s"), title="Weight sync time"),
            ),
        ),
        (
            "Throughput",
            (
                panel(query_gauge("padding_efficiency"), min_axis_max=1),
                panel(
                    build_rate_query("trained_tokens"), build_rate_query("computed_tokens"), title="Tokens per second"
                ),
                panel(
                    query_time_share("rank_s/<call>", ("job", "process", "call"), window=STEPS),
                    stacked=True,
                    legend_at_right=True,
                ),
                panel(query_gauge("num_micro_batches")),
            ),
        ),
    ),
    (JOBS.as_single(),),
    ANNOTATIONS,
    console_page="jobs/$job",
)
