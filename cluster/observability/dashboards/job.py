"""One job: reward and latency first, then the outcomes of its rollouts and the time of its steps."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel
from cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    JOBS,
    distribution_of,
    gauge,
    mean_of,
    panel,
    quantile_of,
    rate_of,
)

TRACES = """Each point belongs to a **step** (the panel on the left shows its number at the same time), and the run
folder keeps the rollouts of each step. On a machine that has the folder:

    agent-rft traces runs/$job --name step-000012 --worst 3
    agent-rft traces runs/$job --trace trace_...      # one rollout with every call, its result and the grade

Each request to your tools and grader carries the `trace_id` of its rollout, so you can search their logs for it."""

JOB_DASHBOARD = Dashboard(
    "job",
    "agent-rft: Job",
    (
        (
            "Reward and latency",
            (
                panel(
                    gauge("train_mean_reward"),
                    gauge("full_valid_mean_reward"),
                    title="Reward",
                    about="What the policy is trained on: the grade minus penalties.",
                ),
                panel(
                    quantile_of(0.5, "rollout_wall_s/train"),
                    quantile_of(0.95, "rollout_wall_s/train"),
                    quantile_of(0.5, "rollout_busy_s/train"),
                    title="Rollout latency",
                ),
                panel(
                    gauge("train_mean_grade"),
                    gauge("full_valid_mean_grade"),
                    gauge("held_out_grade_mean"),
                    gauge("grader/<grader>/score_mean"),
                    title="Grade",
                    about="A grade that rises while the held-out grade falls indicates reward hacking.",
                ),
                panel(
                    gauge("tool_calls_mean"),
                    mean_of("turn_calls/train"),
                    gauge("full_valid_tool_calls_mean"),
                    title="Tool calls",
                ),
            ),
        ),
        (
            "Step and traces",
            (
                panel(gauge("step"), width=8),
                Panel("From a point to its rollouts", kind="text", text=TRACES, width=16),
            ),
        ),
        (
            "Rollouts",
            (
                panel(distribution_of("reward/train"), kind="heatmap"),
                panel(rate_of("rollouts/<outcome>"), title="Rollouts per second by outcome", stacked=True),
                panel(mean_of("rollout_tokens/train/<kind>")),
                panel(
                    rate_of("finish/<reason>"),
                    rate_of("call_errors/<kind>"),
                    title="Finish reasons and invalid calls per second",
                ),
                panel(
                    rate_of("groups_trained", per="minute"),
                    rate_of("groups_without_signal/<kind>", per="minute"),
                    rate_of("groups_lost", per="minute"),
                    title="Groups per minute",
                ),
                panel(rate_of("engine_sampled_tokens"), rate_of("trained_tokens"), title="Tokens per second"),
            ),
        ),
        (
            "Time",
            (
                panel(
                    *(mean_of(f"time_{phase}_s") for phase in ("wait", "learn", "sync", "eval", "checkpoint", "step")),
                    title="Step time",
                ),
                panel(gauge("staleness_mean"), gauge("staleness_max"), title="Staleness"),
                panel(gauge("checkpoint_bytes")),
                panel(gauge("checkpoint_age_s")),
                panel(rate_of("events/<level>", per="minute")),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
)
