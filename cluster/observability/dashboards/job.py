"""One job: reward and latency first, then the outcomes of its rollouts and the time of its steps."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from cluster.observability.dashboards.queries import ANNOTATIONS, JOB, JOBS, TRAIN, mean, quantile, rate

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
                Panel(
                    "Reward",
                    (
                        Query(f"agent_rft_train_mean_reward{JOB}", "train {{job}}"),
                        Query(f"agent_rft_full_valid_mean_reward{JOB}", "validation {{job}}"),
                    ),
                    about="What the policy is trained on: the grade minus penalties.",
                ),
                Panel(
                    "Rollout latency",
                    (
                        Query(quantile(0.5, "agent_rft_rollout_wall_seconds", labels=TRAIN), "median {{job}}"),
                        Query(quantile(0.95, "agent_rft_rollout_wall_seconds", labels=TRAIN), "p95 {{job}}"),
                        Query(quantile(0.5, "agent_rft_rollout_busy_seconds", labels=TRAIN), "median busy {{job}}"),
                    ),
                    "s",
                    about="Wall-clock time. Busy: model and tool time, without queues, retries and pauses.",
                ),
                Panel(
                    "Grade",
                    (
                        Query(f"agent_rft_train_mean_grade{JOB}", "train {{job}}"),
                        Query(f"agent_rft_full_valid_mean_grade{JOB}", "validation {{job}}"),
                        Query(f"agent_rft_held_out_grade_mean{JOB}", "held out {{job}}"),
                        Query(f"agent_rft_grader_score_mean{JOB}", "{{grader}} {{job}}"),
                    ),
                    about="A grade that rises while the held-out grade falls indicates reward hacking.",
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
                    "Reward distribution",
                    (Query(f"sum by (le) (increase(agent_rft_reward_bucket{TRAIN}[$window]))", "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "Rollouts per second by outcome",
                    (Query(rate("agent_rft_rollouts_total", "job, outcome"), "{{outcome}} {{job}}"),),
                    stacked=True,
                ),
                Panel(
                    "Tokens per rollout",
                    (Query(mean("agent_rft_rollout_tokens", "job, kind", TRAIN), "{{kind}} {{job}}"),),
                    about="Completion includes reasoning.",
                ),
                Panel(
                    "Finish reasons and invalid calls per second",
                    (
                        Query(rate("agent_rft_finish_total", "job, reason"), "{{reason}} {{job}}"),
                        Query(rate("agent_rft_call_errors_total", "job, kind"), "{{kind}} {{job}}"),
                    ),
                ),
                Panel(
                    "Groups per minute",
                    (
                        Query("60 * " + rate("agent_rft_groups_trained_total"), "trained {{job}}"),
                        Query("60 * " + rate("agent_rft_groups_without_signal_total", "job, kind"), "{{kind}} {{job}}"),
                        Query("60 * " + rate("agent_rft_groups_lost_total"), "lost {{job}}"),
                    ),
                    about="Groups whose rewards are all equal carry no signal and are replaced.",
                ),
                Panel(
                    "Tokens per second",
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
                    "Step time",
                    tuple(
                        Query(mean(f"agent_rft_time_{phase}_seconds"), f"{label} {{{{job}}}}")
                        for phase, label in (
                            *(("wait", "waiting for rollouts"), ("learn", "learning"), ("sync", "weight sync")),
                            *(("eval", "validation"), ("checkpoint", "checkpoint"), ("step", "total")),
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
                    about="By how many policy versions a group's oldest token lags the learner.",
                ),
                Panel("Checkpoint size", (Query(mean("agent_rft_checkpoint_bytes")),), "bytes"),
                Panel(
                    "Events per minute",
                    (Query("60 * " + rate("agent_rft_events_total", "job, level"), "{{level}} {{job}}"),),
                ),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
)
