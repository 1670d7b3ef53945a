"""How one job does: reward and latency first, then where its rollouts and its time go."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from cluster.observability.dashboards.queries import ANNOTATIONS, JOB, JOBS, TRAIN, mean, quantile, rate

TRACES = """Each point belongs to a **step** (the number on the left, at the same time), and a step's rollouts are kept
with their tool calls and grades. On the machine of the run, or where its folder is mounted:

    agent-rft traces runs/$job --name step-000012 --worst 3
    agent-rft traces runs/$job --trace trace_...      # all of one, with every call, its result and the grade

A rollout's `trace_id` is in each request to your tools and grader, so their logs can be searched for it."""

JOB_DASHBOARD = Dashboard(
    "job",
    "agent-rft: Job",
    (
        (
            "Reward and latency",
            (
                Panel(
                    "Reward",
                    (
                        Query(f"agent_rft_train_mean_reward{JOB}", "train {{job}}"),
                        Query(f"agent_rft_full_valid_mean_reward{JOB}", "validation {{job}}"),
                    ),
                    about="What is trained on: the grade, less penalties.",
                ),
                Panel(
                    "Latency of a rollout",
                    (
                        Query(quantile(0.5, "agent_rft_rollout_wall_seconds", labels=TRAIN), "median {{job}}"),
                        Query(quantile(0.95, "agent_rft_rollout_wall_seconds", labels=TRAIN), "p95 {{job}}"),
                        Query(quantile(0.5, "agent_rft_rollout_busy_seconds", labels=TRAIN), "median busy {{job}}"),
                    ),
                    "s",
                    about="Wall-clock; busy: model and tool time, without queues, retries and pauses.",
                ),
                Panel(
                    "Grade",
                    (
                        Query(f"agent_rft_train_mean_grade{JOB}", "train {{job}}"),
                        Query(f"agent_rft_full_valid_mean_grade{JOB}", "validation {{job}}"),
                        Query(f"agent_rft_held_out_grade_mean{JOB}", "held out {{job}}"),
                        Query(f"agent_rft_grader_score_mean{JOB}", "{{grader}} {{job}}"),
                    ),
                    about="A grade that rises while the held-out one falls is being hacked.",
                ),
                Panel(
                    "Tool calls",
                    (
                        Query(f"agent_rft_tool_calls_mean{JOB}", "per rollout {{job}}"),
                        Query(mean("agent_rft_turn_calls", labels=TRAIN), "per turn {{job}}"),
                        Query(f"agent_rft_full_valid_tool_calls_mean{JOB}", "per validation rollout {{job}}"),
                    ),
                ),
            ),
        ),
        (
            "Step and traces",
            (
                Panel("Step", (Query(f"agent_rft_step{JOB}"),), "none", width=8),
                Panel("From a point to its rollouts", kind="text", text=TRACES, width=16),
            ),
        ),
        (
            "Rollouts",
            (
                Panel(
                    "Rewards",
                    (Query(f"sum by (le) (increase(agent_rft_reward_bucket{TRAIN}[$window]))", "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "Rollouts a second, by how they ended",
                    (Query(rate("agent_rft_rollouts_total", "job, outcome"), "{{outcome}} {{job}}"),),
                    stacked=True,
                ),
                Panel(
                    "Tokens of a rollout",
                    (Query(mean("agent_rft_rollout_tokens", "job, kind", TRAIN), "{{kind}} {{job}}"),),
                    about="Completion includes reasoning.",
                ),
                Panel(
                    "Answers, limits and the model's own mistakes, a second",
                    (
                        Query(rate("agent_rft_finish_total", "job, reason"), "{{reason}} {{job}}"),
                        Query(rate("agent_rft_call_errors_total", "job, kind"), "{{kind}} {{job}}"),
                    ),
                ),
                Panel(
                    "Groups a minute",
                    (
                        Query("60 * " + rate("agent_rft_groups_trained_total"), "trained {{job}}"),
                        Query("60 * " + rate("agent_rft_groups_without_signal_total", "job, kind"), "{{kind}} {{job}}"),
                        Query("60 * " + rate("agent_rft_groups_lost_total"), "lost {{job}}"),
                    ),
                    about="Groups whose rewards are all equal teach nothing and are replaced.",
                ),
                Panel(
                    "Tokens a second",
                    (
                        Query(rate("agent_rft_engine_sampled_tokens_total"), "sampled {{job}}"),
                        Query(rate("agent_rft_trained_tokens_total"), "trained {{job}}"),
                    ),
                ),
            ),
        ),
        (
            "Time",
            (
                Panel(
                    "A step's seconds",
                    tuple(
                        Query(mean(f"agent_rft_time_{phase}_seconds"), f"{label} {{{{job}}}}")
                        for phase, label in (
                            *(("wait", "waiting for rollouts"), ("learn", "learning"), ("sync", "publishing")),
                            *(("eval", "validation"), ("checkpoint", "checkpoint"), ("step", "whole")),
                        )
                    ),
                    "s",
                ),
                Panel(
                    "Staleness",
                    (
                        Query(f"agent_rft_staleness_mean{JOB}", "mean {{job}}"),
                        Query(f"agent_rft_staleness_max{JOB}", "max {{job}}"),
                    ),
                    about="Versions that a group's oldest token is behind the learner.",
                ),
                Panel("Checkpoint size", (Query(mean("agent_rft_checkpoint_bytes")),), "bytes"),
                Panel(
                    "Events a minute",
                    (Query("60 * " + rate("agent_rft_events_total", "job, level"), "{{level}} {{job}}"),),
                ),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
)
