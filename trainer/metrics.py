"""The list of all metrics: what every process records, and how charts, tables, dashboards and the API show it.

A name with a `<placeholder>` stands for a family (`tool/<tool>/errors` -> `tool/search/errors`). In Prometheus it is
`agent_rft_tool_errors_total{tool="search"}`: placeholders become labels, so they must have few values. Every sample
also has the labels `job` and `process`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "file"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LONG_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
GRADES = (-1.0, -0.5, *(i / 10 for i in range(11)))
CALLS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
TOKENS = tuple(16.0 * 2**i for i in range(14))
BYTES = tuple(10.0**i for i in range(5, 13))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric or family: its meaning, its format, and where it is shown.

    Attributes:
        label: Name in tables.
        help: Description in Prometheus.
        kind: How Prometheus exports it: the last value (gauge), the sum of recorded values (counter), a histogram with
            `buckets`, or not at all (file: it is in metrics.jsonl only).
        live: The process that measures it records it at once; a step's value of it goes to metrics.jsonl only.
        short: Name in log lines. Empty: `label`.
        form: Format of a value. Empty: that of its `unit`.
        chart: The key in CHARTS of the chart that draws it.
        series: Its name in that chart; a family uses the values of its placeholder.
        message: Name in the message of the API's metrics events. Empty: it is not in the message.
        csv: Whether it is among the first columns of the result file.
        better: 1 if more is better, -1 if less is better, else 0.
    """

    label: str
    unit: str
    help: str
    kind: Kind = "gauge"
    buckets: tuple[float, ...] = ()
    live: bool = False
    short: str = ""
    form: str = ""
    chart: str = ""
    series: str = ""
    shown: Literal["", "live view"] = ""
    message: str = ""
    csv: bool = False
    better: int = 0

    @property
    def pattern(self) -> str:
        """The format of values, for `str.format`."""
        return self.form or FORMS.get(self.unit, "{:.3f}")

    def format(self, value: float) -> str:
        """The value as tables show it, with its unit if that is s or share."""
        return self.pattern.format(value)


LIVE: Literal["live view"] = "live view"
FORMS = {
    **dict.fromkeys(("tokens", "rollouts", "groups", "characters", "steps"), "{:,.0f}"),
    **dict.fromkeys(("calls", "turns", "versions"), "{:.2f}"),
    "share": "{:.0%}",
    "s": "{:.2f} s",
}
"""Unit -> format of its values. Other units have three decimals."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Metrics drawn together, in the report's section about the agent or the training."""

    title: str
    unit: str = ""
    kind: Literal["lines", "area", "bars"] = "lines"
    ticks: str = ""
    scale: Literal["from zero", "fitted", "log"] = "from zero"
    section: Literal["agent", "training"] = "agent"


_training = partial(Chart, section="training")

CHARTS: dict[str, Chart] = {
    "tool_calls": Chart("Tool calls per rollout", "calls", "area"),
    "tokens": Chart("Tokens per rollout", "tokens"),
    "turns": Chart("Turns per rollout", "turns"),
    "parallel": Chart("Turns with parallel calls", "of turns with calls", ticks=".0%"),
    "rollout_time": Chart("Time per rollout", "s"),
    "tool_latency": Chart("Latency of tools", "s"),
    "grader_parts": Chart("Scores of the grader's parts"),
    "held_out": Chart("Grades of the held-out grader"),
    "guards": Chart("Rewards set by guards", "rollouts", "bars"),
    "call_errors": Chart("Invalid and failed calls", "calls", "bars"),
    "finish": Chart("How rollouts ended", "rollouts", "bars"),
    "discarded": _training("Discarded rollouts", "rollouts", "bars"),
    "groups": _training("Groups", "groups", "bars"),
    "staleness": _training("Staleness", "versions"),
    "sync": _training("Weight sync", "s"),
    "gap": _training("Engine against learner, same weights", "nats", scale="log"),
    "step_time": _training("Time per step", "s", "bars"),
    "loss": _training("Loss", scale="fitted"),
    "grad_norm": _training("Gradient norm"),
    "entropy": _training("Entropy", "nats"),
    "limited": _training("Truncated and clipped tokens", "of trained tokens", ticks=".1%"),
}
"""All charts, in the order of the report."""

_count = partial(Metric, kind="counter")
_spread = partial(Metric, kind="histogram")
_file = partial(Metric, kind="file")
_live = partial(Metric, live=True)

METRICS: dict[str, Metric] = {
    # progress
    "step": Metric("step", "steps", "updates taken, counted from 1"),
    "total_steps": Metric("planned steps", "steps", "updates planned"),
    "version": Metric("policy version", "", "policy version after the step"),
    "elapsed_s": Metric("elapsed time", "s", "time since the loop started"),
    # reward and grade
    "train_mean_reward": Metric(
        "train reward",
        "",
        "mean reward of the step's graded rollouts",
        short="reward",
        shown=LIVE,
        message="train mean reward",
        csv=True,
    ),
    "full_valid_mean_reward": Metric(
        "validation reward",
        "",
        "mean reward over the whole validation file",
        short="valid reward",
        shown=LIVE,
        message="full validation mean reward",
        csv=True,
    ),
    "train_mean_grade": Metric(
        "train grade",
        "",
        "mean grade of the step's graded rollouts, without penalties",
        short="grade",
        shown=LIVE,
        message="train mean grade",
    ),
    "full_valid_mean_grade": Metric(
        "validation grade", "", "mean grade over the whole validation file", short="valid grade", shown=LIVE
    ),
    "full_valid_pass_rate": Metric(
        "validation pass rate", "share", "validation rollouts whose grade reaches the grader's pass_threshold"
    ),
    "full_valid_ci95": Metric(
        "95 % interval of the validation grade",
        "",
        "half width of the 95 % confidence interval of full_valid_mean_grade, over rows",
    ),
    "full_valid_n": Metric("validation rollouts", "rollouts", "graded validation rollouts"),
    "full_valid_tool_calls_mean": Metric(
        "tool calls per validation rollout", "calls", "tool calls per validation rollout"
    ),
    "valid_reasoning_tokens_mean": Metric(
        "reasoning tokens per validation rollout",
        "tokens",
        "sampled tokens up to the end of thought per validation rollout",
    ),
    "full_valid_loss": Metric(
        "validation loss",
        "nats",
        "cross-entropy on the validation file (supervised jobs)",
        chart="loss",
        series="validation",
        shown=LIVE,
        message="full validation loss",
        form="{:.4f}",
    ),
    # behaviour of the agent
    "tool_calls_mean": Metric(
        "tool calls per rollout",
        "calls",
        "tool calls per rollout",
        short="calls",
        shown=LIVE,
        message="mean tool calls",
    ),
    "turns_mean": Metric(
        "turns per rollout",
        "turns",
        "model turns per rollout",
        chart="turns",
        series="turns",
        short="turns",
        shown=LIVE,
    ),
    "parallel_turn_share": Metric(
        "turns with parallel calls",
        "share",
        "share of turns with more than one call among turns with calls",
        chart="parallel",
        series="parallel",
        short="parallel",
        shown=LIVE,
    ),
    "completion_tokens_mean": Metric(
        "sampled tokens per rollout",
        "tokens",
        "sampled tokens per rollout",
        chart="tokens",
        series="sampled",
        short="sampled",
        shown=LIVE,
        message="mean completion tokens",
        csv=True,
    ),
    "reasoning_tokens_mean": Metric(
        "reasoning tokens per rollout",
        "tokens",
        "sampled tokens up to the end of thought per rollout",
        chart="tokens",
        series="reasoning",
        csv=True,
    ),
    "rollout_tokens_mean": Metric(
        "all tokens per rollout",
        "tokens",
        "all tokens per rollout, including prompt and tool results",
        chart="tokens",
        series="all",
        short="tokens",
        shown=LIVE,
    ),
    "rollout_busy_s_mean": Metric(
        "busy time per rollout",
        "s",
        "model and tool time per rollout, without queues, retries and pauses",
        chart="rollout_time",
        series="busy",
        short="busy",
        shown=LIVE,
    ),
    "rollout_wall_s_mean": Metric(
        "wall-clock time per rollout", "s", "wall-clock time per rollout", chart="rollout_time", series="wall"
    ),
    "grade_latency_s_mean": Metric(
        "grading time per rollout", "s", "latency of the grader per rollout", chart="rollout_time", series="grader"
    ),
    "grader/<grader>/score_mean": Metric(
        "score of a part of the grader",
        "",
        "mean score of one part of a multi grader; `ungated`: without guards",
        chart="grader_parts",
    ),
    "guard/<guard>": _count(
        "rewards set by a guard", "rollouts", "rollouts whose reward this guard set", chart="guards"
    ),
    "held_out_grade_mean": Metric(
        "held-out grade",
        "",
        "mean grade of the held-out grader, which is not used for training",
        chart="held_out",
        series="held out",
    ),
    "held_out_failures": _count(
        "failures of the held-out grader", "rollouts", "graded rollouts for which the held-out grader failed"
    ),
    "judge_tokens/<model>": _count("tokens of a judge", "tokens", "tokens used by one judge model"),
    "finish/<reason>": _count(
        "rollouts by how they ended",
        "rollouts",
        "rollouts that ended by answer, max_steps, max_tokens or context",
        chart="finish",
    ),
    "tool/<tool>/calls_mean": _file(
        "calls of a tool per rollout", "calls", "calls of one tool per rollout", chart="tool_calls"
    ),
    "tool/<tool>/latency_s_mean": Metric(
        "latency of a tool", "s", "latency of one tool's answers", chart="tool_latency"
    ),
    "tool/<tool>/output_tokens_mean": _file(
        "tokens of a tool's output",
        "tokens",
        "tokens of one tool's outputs; those of a turn are divided among its calls",
    ),
    "tool/<tool>/output_chars_mean": Metric(
        "length of a tool's output", "characters", "characters of one tool's outputs"
    ),
    "tool/<tool>/errors": _count("errors of a tool", "calls", "calls of one tool that returned an error"),
    "call_errors/<kind>": _count(
        "invalid calls", "calls", "calls that were refused or failed because of the model", chart="call_errors"
    ),
    # rollouts and groups that were lost
    "rollouts_graded": _count("graded rollouts", "rollouts", "graded rollouts of the step's groups"),
    "mean_unresponsive_rewards": Metric(
        "discarded rollouts",
        "share",
        "share of discarded rollouts among all rollouts of the step's groups",
        short="discarded",
        shown=LIVE,
        message="unresponsive rewards",
        csv=True,
    ),
    "discarded/<reason>": _count(
        "discarded rollouts by reason", "rollouts", "discarded rollouts by reason", chart="discarded"
    ),
    "groups_trained": _count("groups trained", "groups", "groups used for training", chart="groups", series="trained"),
    "groups_without_signal/<kind>": _count(
        "groups without signal",
        "groups",
        "groups whose rewards are all equal: all_right, all_wrong, equal",
        chart="groups",
    ),
    "groups_lost": _count(
        "groups lost", "groups", "groups with fewer than two graded rollouts", chart="groups", series="lost"
    ),
    "account/<state>": _file(
        "attempts at rollouts",
        "rollouts",
        "attempts since the start: started = graded + discarded + cancelled + in_flight",
    ),
    "slow_rows_ratio": Metric(
        "slow rows, relative",
        "",
        "graded share of rollouts in the slowest quarter of groups, divided by that of all groups",
    ),
    # staleness and weight sync
    "staleness_mean": Metric(
        "staleness in versions",
        "versions",
        "learner's version minus the version of a trained group's oldest token",
        chart="staleness",
        series="mean",
        short="stale",
        shown=LIVE,
    ),
    "staleness_max": Metric(
        "largest staleness", "versions", "largest staleness of the step", chart="staleness", series="largest"
    ),
    "sync_pause_s": _spread(
        "pause per update",
        "s",
        "pause of generation for the weight update (slowest engine)",
        buckets=SECONDS,
        chart="sync",
        series="pause",
        short="pause",
        shown=LIVE,
    ),
    "sync_total_s": _spread(
        "weight sync time",
        "s",
        "time to bring the learner's weights to all engines",
        buckets=SECONDS,
        chart="sync",
        series="whole sync",
    ),
    "sync_bytes": _spread("bytes per weight sync", "bytes", "bytes of weights sent to each engine", buckets=BYTES),
    "canary_gap": Metric(
        "gap on the canary",
        "nats",
        "mean absolute log-probability difference of engines and learner on the same weights",
        chart="gap",
        series="canary",
    ),
    # the learner
    "loss": Metric(
        "loss", "", "loss of the step", chart="loss", series="train", shown=LIVE, message="training loss", form="{:.4f}"
    ),
    "grad_norm": Metric(
        "gradient norm", "", "norm of the gradient before clipping", chart="grad_norm", series="before clipping"
    ),
    "learning_rate": Metric("learning rate", "", "learning rate of the update"),
    "entropy": Metric(
        "entropy", "nats", "mean entropy of the distributions of trained tokens", chart="entropy", series="entropy"
    ),
    "importance_ratio_mean": Metric(
        "importance ratio", "", "mean ratio of learner's and engine's probabilities of trained tokens"
    ),
    "importance_capped_share": Metric(
        "tokens with a truncated weight",
        "share",
        "trained tokens whose importance weight was truncated",
        chart="limited",
        series="weight truncated",
    ),
    "clipped_share": Metric(
        "clipped tokens", "share", "trained tokens whose ratio was clipped", chart="limited", series="ratio clipped"
    ),
    "kl_start": Metric("KL to the start model", "nats", "KL to the start model, if kl_coef is above 0"),
    "logprob_gap": Metric(
        "log-probability gap",
        "nats",
        "mean absolute log-probability difference on tokens of the learner's version",
        chart="gap",
        series="trained tokens",
    ),
    "logprob_gap_ratio": Metric("ratio at equal versions", "", "mean ratio on tokens of the learner's version"),
    "logprob_gap_tokens": Metric(
        "tokens of the gap", "tokens", "number of tokens behind logprob_gap and logprob_gap_ratio"
    ),
    "trained_tokens": _count("trained tokens", "tokens", "tokens in the loss"),
    "computed_tokens": _count("computed tokens", "tokens", "tokens processed by the model, including padding"),
    "padding_efficiency": Metric("padding efficiency", "share", "share of computed tokens that are not padding"),
    "num_micro_batches": Metric("micro-batches per rank", "", "micro-batches per rank"),
    "update_applied": Metric("update applied", "", "0 if the update was skipped because its gradient was not finite"),
    # time of a step
    "time_wait_s": _spread(
        "waiting for rollouts",
        "s",
        "time that the learner waited for rollouts",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="waiting",
    ),
    "time_learn_s": _spread(
        "learning", "s", "time of the updates", buckets=LONG_SECONDS, chart="step_time", series="learning"
    ),
    "time_sync_s": _spread(
        "weight sync", "s", "time to publish the weights", buckets=LONG_SECONDS, chart="step_time", series="weight sync"
    ),
    "time_eval_s": _spread(
        "validation", "s", "time of the validation", buckets=LONG_SECONDS, chart="step_time", series="validation"
    ),
    "time_checkpoint_s": _spread("checkpoint", "s", "time to write the checkpoint", buckets=LONG_SECONDS),
    "checkpoint_bytes": _spread("checkpoint size", "bytes", "size of the checkpoint", buckets=BYTES),
    "time_step_s": _spread(
        "whole step", "s", "time of the whole step, including validation and checkpoint", buckets=LONG_SECONDS
    ),
    # each tool, grader, judge or session server, since the start; metrics.jsonl has the sums over all processes
    "endpoint/<endpoint>/calls": _live("calls", "calls", "calls: answered, failed, cancelled or in flight", "counter"),
    "endpoint/<endpoint>/answered": _live("answered calls", "calls", "calls that were answered", "counter"),
    "endpoint/<endpoint>/failed": _live("failed calls", "calls", "calls that ended without an answer", "counter"),
    "endpoint/<endpoint>/cancelled": _live("cancelled calls", "calls", "calls that we cancelled", "counter"),
    "endpoint/<endpoint>/errors/<kind>": _live(
        "errors", "calls", "errors of requests by kind: server_error, deadline, ...", "counter"
    ),
    "endpoint/<endpoint>/retries": _live(
        "retries after failures", "requests", "requests sent again after a failure", "counter"
    ),
    "endpoint/<endpoint>/waits": _live(
        "waits after 408, 425, 429 or 503", "requests", "requests sent again after 408, 425, 429 or 503", "counter"
    ),
    "endpoint/<endpoint>/hedges": _live(
        "hedges of slow requests",
        "requests",
        "requests sent again because there was no answer within hedge_after_s",
        "counter",
    ),
    "endpoint/<endpoint>/bytes_out": _live("bytes sent", "bytes", "bytes sent", "counter"),
    "endpoint/<endpoint>/bytes_in": _live("bytes received", "bytes", "bytes received", "counter"),
    "endpoint/<endpoint>/latency_s": _live(
        "response latency", "s", "latency of requests that were answered", "histogram", SECONDS
    ),
    "endpoint/<endpoint>/queue_s": _live(
        "time in queue", "s", "time that requests waited in the queue", "histogram", SECONDS
    ),
    "endpoint/<endpoint>/latency_sum_s": _file(
        "sum of response latencies", "s", "total latency of requests that were answered"
    ),
    "endpoint/<endpoint>/queue_sum_s": _file(
        "sum of times in queue", "s", "total time that requests waited in the queue"
    ),
    "endpoint/<endpoint>/limit": _live("limit", "requests", "current limit of concurrent requests"),
    "endpoint/<endpoint>/in_flight": _live("requests in flight", "requests", "requests sent but not answered yet"),
    "endpoint/<endpoint>/queued": _live("requests queued", "requests", "requests that wait to be sent"),
    "endpoint/<endpoint>/breaker": _live("circuit breaker", "", "0 closed, 1 half open, 2 open: only probes are sent"),
    # rollouts, recorded when they end or, if they have a split (train, validation, test), when their step is done
    "rollouts_started": _live("rollouts started", "rollouts", "attempts started", "counter"),
    "rollouts/<outcome>": _live(
        "rollouts by outcome",
        "rollouts",
        "attempts that ended, by outcome: graded, cancelled, or the reason of the discard",
        "counter",
    ),
    "rollouts_in_flight": _live("rollouts in flight", "rollouts", "attempts in progress"),
    "reward/<split>": _live("reward", "", "reward of graded rollouts", "histogram", GRADES),
    "grade/<split>": _live("grade", "", "grade of graded rollouts, without penalties", "histogram", GRADES),
    "rollout_calls/<split>": _live("tool calls per rollout", "calls", "tool calls of a rollout", "histogram", CALLS),
    "turn_calls/<split>": _live("tool calls per turn", "calls", "tool calls of a turn", "histogram", CALLS),
    "rollout_tokens/<split>/<kind>": _live(
        "tokens per rollout",
        "tokens",
        "tokens of a rollout: prompt, completion (including reasoning), reasoning, tool",
        "histogram",
        TOKENS,
    ),
    "rollout_wall_s/<split>": _live("rollout latency", "s", "wall-clock time of a rollout", "histogram", LONG_SECONDS),
    "rollout_busy_s/<split>": _live(
        "busy time per rollout", "s", "model and tool time of a rollout", "histogram", LONG_SECONDS
    ),
    "grade_s": _live("grading time", "s", "time from the end of a rollout to its grade", "histogram", SECONDS),
    "grade_errors/<kind>": _live("failed gradings", "grades", "gradings that failed", "counter"),
    # engines and learner ranks
    "engine/<engine>/ready": _live("engine ready", "", "1: ready for rollouts; 0: starting, or being replaced"),
    "engine/<engine>/rollouts": _live("rollouts on an engine", "rollouts", "rollouts in flight on the engine"),
    "engine_replacements": _live(
        "engines replaced", "engines", "engines replaced because they died or differed from the learner", "counter"
    ),
    "engine_slots": _live("engine slots", "requests", "requests that an engine runs concurrently"),
    "engine_slots_used": _live("engine slots in use", "requests", "requests that run on an engine"),
    "engine_waiting": _live("requests waiting for a slot", "requests", "requests that wait for a slot of an engine"),
    "engine_sampled_tokens": _live("sampled tokens", "tokens", "tokens sampled by an engine", "counter"),
    "engine_version": _live("policy version of an engine", "", "policy version of the engine's weights"),
    "engine_pause_s": _live("pause of an engine", "s", "pause of generation for a weight update", "histogram", SECONDS),
    "rank_s/<call>": _live(
        "time of a learner rank",
        "s",
        "time of calls to a learner rank: step, save, logprobs, ...",
        "histogram",
        LONG_SECONDS,
    ),
    # the job and the server
    "events/<level>": _live("events", "events", "events shown to the user, by level: info, warn, error", "counter"),
    "disk_free_bytes": _live("free disk space", "bytes", "free space on the disk of the run's folder"),
    "disk_total_bytes": _live("disk size", "bytes", "size of the disk of the run's folder"),
    "api_request_s/<status>/<method>/<route>": _live(
        "API latency", "s", "time until an API response has been sent", "histogram", SECONDS
    ),
    "api_jobs/<state>": _live("API jobs", "jobs", "jobs of the server, by state"),
}

EVALUATION: dict[str, Metric] = {
    "grade": Metric("grade", "", "mean grade", better=1),
    "reward": Metric("reward", "", "mean reward", better=1),
    "pass_rate": Metric("pass rate", "share", "share of rollouts that pass", form="{:.1%}", better=1),
    "pass_at_k": Metric(
        "pass@k", "share", "share of rows of which at least one of k rollouts passes", form="{:.1%}", better=1
    ),
    "tool_calls": Metric("tool calls per rollout", "calls", "mean", better=-1),
    "turns": Metric("turns per rollout", "turns", "mean", better=-1),
    "parallel_turn_share": Metric("turns with parallel calls", "share", "share of turns with calls", form="{:.1%}"),
    "completion_tokens": Metric("sampled tokens per rollout", "tokens", "mean", better=-1),
    "rollout_tokens": Metric("all tokens per rollout", "tokens", "mean", better=-1),
    "busy_s": Metric("model and tool time per rollout", "s", "mean, without queues and retries", better=-1),
    "num_rollouts": Metric("graded rollouts", "rollouts", "count"),
    "discarded": Metric("discarded rollouts", "rollouts", "count", better=-1),
}
"""The fields of an Evaluation by which before and after are compared, in order."""

_PLACEHOLDER = re.compile(r"<(\w+)>")
_FAMILIES = {
    name: re.compile(_PLACEHOLDER.sub(r"(?P<\1>.+?)", name) + "$", re.DOTALL) for name in METRICS if "<" in name
}


@lru_cache(4096)
def metric_of(name: str) -> tuple[str, dict[str, str]] | None:
    """The entry of METRICS that a name belongs to, and its labels; None if there is none."""
    if name in METRICS:
        return name, {}
    for family, pattern in _FAMILIES.items():
        if found := pattern.match(name):
            return family, found.groupdict()
    return None


def prometheus_name(entry: str) -> str:
    """The name in Prometheus: `tool/<tool>/latency_s_mean` -> `agent_rft_tool_latency_seconds_mean`.

    Samples of a counter have the additional suffix `_total`.
    """
    plain = "_".join(part for part in entry.split("/") if not part.startswith("<"))
    return "agent_rft_" + re.sub(r"_s(?=_|$)", "_seconds", plain)
