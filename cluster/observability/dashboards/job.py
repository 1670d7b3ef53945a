"""Job dashboard: key figures of one job, reward and latency, outcomes of rollouts, and step times."""

from __future__ import annotations

from agent_rft.cluster.observability.alerts import (
    DISCARDED,
    NOT_ALL_RIGHT,
    failed_trackers_expr,
    find_alert,
    store_failures_expr,
)
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from agent_rft.cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    CHOSEN,
    JOBS,
    WINDOW,
    MetricQuery,
    build_rate_query,
    panel,
    query_distribution,
    query_gauge,
    query_increase,
    query_max,
    query_mean,
    query_quantile,
    query_ratio,
    query_time_share,
)
from agent_rft.cluster.observability.promql import rate, samples

ROLLOUTS = "jobs/$job/rollouts"
ROLLOUTS_THEN = f"{ROLLOUTS}?at=${{__value.time}}"
"""Console page that opens when the viewer clicks a point in a panel. The page shows the rollouts of one step.

Grafana inserts the time of the clicked point, which selects the step.
"""
TRACES = f"""Each point belongs to a **step**. Click a point in the panel on the left, or in the panels of reward,
grades and tool calls, to open the rollouts of that step in the console (`{ROLLOUTS}?step=12`; set the URL of the
console in the field *console* above). On a host with the run folder:

    agent-rft traces runs/$job --name step-000012 --worst 3
    agent-rft traces runs/$job --trace trace_...      # one rollout with every call, its result and the grade

Each request to your tools and grader carries the `trace_id` of its rollout, so you can search their logs for it."""


def _stat_panel(
    title: str, *queries: Query, unit: str = "none", width: int = 6, about: str, no_data_text: str = ""
) -> Panel:
    return Panel(title, queries, unit, "stat", width, height=4, about=about, no_data_text=no_data_text)


def _query_with_legend(query: MetricQuery, name: str) -> Query:
    return Query(query.expr, name)


_STEP, _STEPS_PLANNED = query_max("step"), query_max("total_steps")
_LEFT = f"clamp_min({_STEPS_PLANNED.expr} - {_STEP.expr}, 0) * ({query_mean('time_step_s').expr})"
_FAILING, _CALLS = (
    rate(samples(f"endpoint/<endpoint>/{name}", CHOSEN["job"]), WINDOW, ("job", "endpoint"))
    for name in ("failed", "calls")
)
"""Rates of all endpoints: this dashboard has no list from which the viewer selects `$endpoint`."""
_BASELINE = query_max("baseline_valid_mean_reward")
_NO_SIGNAL = build_rate_query("zero_variance_groups/<kind>", ("job",), where=NOT_ALL_RIGHT)
_GROUPS = (
    f"({build_rate_query('zero_variance_groups/<kind>', ('job',)).expr} + {build_rate_query('groups_trained').expr})"
)
FIGURES = (
    _stat_panel(
        "Step",
        _query_with_legend(_STEP, "done"),
        _query_with_legend(_STEPS_PLANNED, "planned"),
        about="Completed steps and planned steps.",
    ),
    _stat_panel(
        "Time left",
        Query(_LEFT, "at the current pace"),
        unit="s",
        width=5,
        about="Remaining steps multiplied by the mean step time. The test after training is not included.",
    ),
    _stat_panel(
        "Reward against the baseline",
        _query_with_legend(_BASELINE, "baseline"),
        _query_with_legend(query_max("full_valid_mean_reward"), "validation"),
        _query_with_legend(query_max("train_mean_reward"), "train"),
        width=8,
        about="Baseline: validation reward before training. Without a validation file, only the train reward is shown.",
    ),
    _stat_panel(
        "Failing endpoint",
        Query(f"topk(1, {_FAILING} / {_CALLS} > 0)", "{{endpoint}}", is_instant=True),
        unit="percentunit",
        width=5,
        about="Tool, grader, judge or session server with the largest current share of failing calls.",
        no_data_text="none",
    ),
)

JOB_DASHBOARD = Dashboard(
    "job",
    "agent-rft: Job",
    (
        ("Now", FIGURES),
        (
            "Reward and latency",
            (
                panel(
                    query_gauge("train_mean_reward"),
                    query_gauge("full_valid_mean_reward"),
                    dashed=(query_gauge("baseline_valid_mean_reward"),),
                    title="Reward",
                    about="Value that training maximizes: the grade minus penalties.",
                    console_page=ROLLOUTS_THEN,
                    alerts=("RewardCollapse",),
                ),
                panel(
                    query_quantile(0.5, "rollout_wall_s/train"),
                    query_quantile(0.95, "rollout_wall_s/train"),
                    query_quantile(0.5, "rollout_busy_s/train"),
                    title="Rollout latency",
                ),
                panel(
                    query_gauge("train_mean_grade"),
                    query_gauge("full_valid_mean_grade"),
                    query_gauge("grader/<grader>/score_mean"),
                    title="Grade",
                    console_page=ROLLOUTS_THEN,
                ),
                panel(
                    query_gauge("tool_calls_mean"),
                    query_mean("turn_calls/train"),
                    query_gauge("full_valid_tool_calls_mean"),
                    title="Tool calls",
                    console_page=ROLLOUTS_THEN,
                ),
                panel(
                    query_gauge("held_out_grade_mean"),
                    query_gauge("train_mean_grade"),
                    title="Held-out grade",
                    about="A grade that rises while the held-out grade falls indicates reward hacking.",
                    console_page=ROLLOUTS_THEN,
                    alerts=("HeldOutFalls",),
                ),
                panel(
                    build_rate_query("guard/<guard>", per="minute"),
                    title="Rewards set by guards per minute",
                    about="If a guard replaces the reward of more and more rollouts, the policy has probably found a "
                    "loophole in the grader.",
                ),
            ),
        ),
        (
            "Step and its rollouts",
            (
                panel(query_gauge("step"), width=8, console_page=f"{ROLLOUTS}?step=${{__value.numeric}}"),
                Panel("Rollouts of a point", kind="text", text=TRACES, width=16),
            ),
        ),
        (
            "Rollouts",
            (
                panel(query_distribution("reward/train"), kind="heatmap"),
                panel(build_rate_query("rollouts/<outcome>"), title="Rollouts per second by outcome", stacked=True),
                Panel(
                    "Discarded rollouts",
                    (
                        query_ratio(
                            build_rate_query("rollouts/<outcome>", ("job",), where=DISCARDED),
                            build_rate_query("rollouts/<outcome>", ("job",)),
                        ),
                    ),
                    "percentunit",
                    about="Share of rollouts that end without a grade. Rollouts that the job cancels are not counted.",
                    alerts=(find_alert("RolloutsDiscarded"),),
                ),
                panel(query_mean("rollout_tokens/train/<kind>")),
                panel(
                    build_rate_query("finish/<reason>"),
                    build_rate_query("call_errors/<kind>"),
                    title="Finish reasons and invalid calls per second",
                ),
                panel(
                    build_rate_query("groups_trained", per="minute"),
                    build_rate_query("zero_variance_groups/<kind>", per="minute"),
                    build_rate_query("groups_lost", per="minute"),
                    title="Groups per minute",
                ),
                Panel(
                    "Zero-variance groups",
                    (Query(f"{_NO_SIGNAL.expr} / {_GROUPS}", "share"),),
                    "percentunit",
                    about="Share of groups with equal rewards. Groups in which all rollouts are right are not counted.",
                    alerts=(find_alert("NoSignal"),),
                ),
                panel(
                    build_rate_query("engine_sampled_tokens"),
                    build_rate_query("trained_tokens"),
                    title="Tokens per second",
                ),
            ),
        ),
        (
            "Time",
            (
                panel(
                    *(
                        query_mean(f"time_{phase}_s")
                        for phase in ("wait", "learn", "sync", "eval", "checkpoint", "step")
                    ),
                    title="Step time",
                ),
                Panel(
                    "Waiting for rollouts",
                    (query_ratio(query_time_share("time_wait_s"), query_time_share("time_step_s")),),
                    "percentunit",
                    about="Share of the step time in which the learner waits for rollouts.",
                    alerts=(find_alert("LearnerStarves"),),
                ),
                panel(
                    query_increase("time_step_s", series="steps"),
                    query_increase("rollouts/graded", ("job",), series="graded rollouts"),
                    title="Steps and graded rollouts in 15 minutes",
                    alerts=("NoProgress",),
                ),
                panel(query_gauge("staleness_mean"), query_gauge("staleness_max"), title="Staleness", min_axis_max=1),
                panel(query_gauge("checkpoint_age_s"), alerts=("OldCheckpoint",)),
                panel(query_gauge("checkpoint_bytes")),
                Panel(
                    "Failures of the checkpoint store in 30 minutes",
                    (Query(store_failures_expr(CHOSEN["job"]), "failures"),),
                    min_axis_max=1,
                    about="Failed attempts to upload a checkpoint or to remove it from the store.",
                    alerts=(find_alert("CheckpointStoreFails"),),
                ),
                Panel(
                    "Failed trackers",
                    (Query(failed_trackers_expr(CHOSEN["job"]), "{{tracker}}"),),
                    "none",
                    min_axis_max=1,
                    about="Trackers that no longer receive metrics from the job.",
                    alerts=(find_alert("TrackerFails"),),
                ),
                panel(build_rate_query("events/<level>", per="minute")),
            ),
        ),
    ),
    (JOBS.as_single(),),
    ANNOTATIONS,
    console_page=ROLLOUTS,
)
