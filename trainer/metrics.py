"""The one list of metrics: what every process records, what plots, tables and dashboards may ask for.

A name with a `<placeholder>` stands for a family (`tool/<tool>/errors` -> `tool/search/errors`). Prometheus gets it as
`agent_rft_tool_errors_total{tool="search"}`: placeholders are labels, so their values must be few. Each sample has the
labels `job` and `process` beside its own.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import fmean
from typing import Literal

from trainer.types import Discarded, Grade, Group, Rollout

Kind = Literal["gauge", "counter", "histogram", "file"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LONG_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
GRADES = (-1.0, -0.5, *(i / 10 for i in range(11)))
CALLS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
TOKENS = tuple(16.0 * 2**i for i in range(14))
BYTES = tuple(10.0**i for i in range(5, 13))


@dataclass(frozen=True, slots=True)
class Metric:
    """What Prometheus gets by `kind`: the last value, the sum of what is recorded, a histogram with these `buckets`, or
    nothing (`file`: it is in metrics.jsonl only). Where `live`, the process that knows it records it as it happens, and
    what a step's line may hold of it is for the file alone.
    """

    unit: str
    help: str
    kind: Kind = "gauge"
    buckets: tuple[float, ...] = ()
    live: bool = False


_count = partial(Metric, kind="counter")
_spread = partial(Metric, kind="histogram")
_file = partial(Metric, kind="file")
_live = partial(Metric, live=True)

METRICS: dict[str, Metric] = {
    # where the job is
    "step": Metric("steps", "updates taken, counted from 1"),
    "total_steps": Metric("steps", "updates planned"),
    "version": Metric("", "policy version after the step"),
    "elapsed_s": Metric("s", "since the loop began"),
    # how well it does
    "train_mean_reward": Metric("", "mean reward of the step's graded rollouts"),
    "train_mean_grade": Metric("", "mean grade of the step's graded rollouts, without penalties"),
    "full_valid_mean_reward": Metric("", "mean reward over the whole validation file"),
    "full_valid_mean_grade": Metric("", "mean grade over the whole validation file"),
    "full_valid_pass_rate": Metric("share", "validation rollouts whose grade reaches the grader's pass_threshold"),
    "full_valid_ci95": Metric("", "half width of the 95 % confidence interval of full_valid_mean_grade, over rows"),
    "full_valid_n": Metric("rollouts", "graded validation rollouts"),
    "full_valid_tool_calls_mean": Metric("calls", "tool calls per validation rollout"),
    "valid_reasoning_tokens_mean": Metric("tokens", "sampled tokens up to the end of thought per validation rollout"),
    "full_valid_loss": Metric("nats", "cross-entropy on the validation file (supervised jobs)"),
    # how it works
    "tool_calls_mean": Metric("calls", "tool calls per rollout"),
    "turns_mean": Metric("turns", "model turns per rollout"),
    "parallel_turn_share": Metric("share", "turns with more than one call, of turns with calls"),
    "completion_tokens_mean": Metric("tokens", "sampled tokens per rollout"),
    "reasoning_tokens_mean": Metric("tokens", "sampled tokens up to the end of thought per rollout"),
    "rollout_tokens_mean": Metric("tokens", "all tokens per rollout, prompt and tool results included"),
    "rollout_busy_s_mean": Metric("s", "model and tool time per rollout, without queues, retries and pauses"),
    "rollout_wall_s_mean": Metric("s", "wall-clock per rollout"),
    "grade_latency_s_mean": Metric("s", "latency of the grader per rollout"),
    "grader/<grader>/score_mean": Metric("", "mean score of one part of a multi grader; `ungated`: without guards"),
    "guard/<guard>": _count("rollouts", "rollouts whose reward this guard set"),
    "held_out_grade_mean": Metric("", "mean grade of the held-out grader, which nothing is trained on"),
    "held_out_failures": _count("rollouts", "graded rollouts to which the held-out grader gave no grade"),
    "judge_tokens/<model>": _count("tokens", "tokens spent on one judge model"),
    "finish/<reason>": _count("rollouts", "rollouts that ended by answer, max_steps, max_tokens or context"),
    "tool/<tool>/calls_mean": _file("calls", "calls of one tool per rollout"),
    "tool/<tool>/latency_s_mean": Metric("s", "latency of one tool's answers"),
    "tool/<tool>/output_tokens_mean": _file("tokens", "length of one tool's outputs, shared out among a turn's calls"),
    "tool/<tool>/output_chars_mean": Metric("characters", "length of one tool's outputs"),
    "tool/<tool>/errors": _count("calls", "calls of one tool that were answered with an error"),
    "call_errors/<kind>": _count("calls", "calls refused or failed by the model's doing"),
    # what was lost
    "rollouts_graded": _count("rollouts", "graded rollouts of the step's groups"),
    "mean_unresponsive_rewards": Metric("share", "rollouts discarded, of all rollouts of the step's groups"),
    "discarded/<reason>": _count("rollouts", "discarded rollouts by reason"),
    "groups_trained": _count("groups", "groups that trained"),
    "groups_without_signal/<kind>": _count("groups", "groups whose rewards are all equal: all_right, all_wrong, equal"),
    "groups_lost": _count("groups", "groups with fewer than two survivors"),
    "account/<state>": _file(
        "rollouts", "attempts since the start: started = graded + discarded + cancelled + in_flight"
    ),
    "slow_rows_ratio": Metric(
        "", "graded share of the rollouts of the slowest quarter of groups, of that of all: 1 is as often as quick rows"
    ),
    # how fresh it is
    "staleness_mean": Metric("versions", "learner's version minus that of a trained group's oldest token"),
    "staleness_max": Metric("versions", "the largest of the step"),
    "sync_pause_s": _spread("s", "generation stood still for the update (slowest engine)", buckets=SECONDS),
    "sync_total_s": _spread("s", "from the learner's weights to all engines", buckets=SECONDS),
    "sync_bytes": _spread("bytes", "weights sent to each engine", buckets=BYTES),
    "canary_gap": Metric(
        "nats", "mean absolute difference of log-probabilities, engines against learner, same weights"
    ),
    # the learner
    "loss": Metric("", "the step's loss"),
    "grad_norm": Metric("", "norm of the gradient before clipping"),
    "learning_rate": Metric("", "of the update"),
    "entropy": Metric("nats", "mean entropy of trained tokens' distributions"),
    "importance_ratio_mean": Metric("", "mean ratio of learner's and engine's probabilities of trained tokens"),
    "importance_capped_share": Metric("share", "trained tokens whose importance weight was truncated"),
    "clipped_share": Metric("share", "trained tokens whose ratio was clipped"),
    "kl_start": Metric("nats", "KL to the start model, where kl_coef is above 0"),
    "logprob_gap": Metric("nats", "mean absolute log-probability difference on tokens of the learner's version"),
    "logprob_gap_ratio": Metric("", "mean ratio on tokens of the learner's version"),
    "logprob_gap_tokens": Metric("tokens", "how many tokens the two above were taken from"),
    "trained_tokens": _count("tokens", "tokens in the loss"),
    "computed_tokens": _count("tokens", "tokens that went through the model"),
    "padding_efficiency": Metric("share", "useful tokens of computed tokens"),
    "num_micro_batches": Metric("", "micro-batches per rank"),
    "update_applied": Metric("", "0 where a non-finite gradient skipped the update"),
    # where the time went
    "time_wait_s": _spread("s", "the learner waited for rollouts", buckets=LONG_SECONDS),
    "time_learn_s": _spread("s", "updates", buckets=LONG_SECONDS),
    "time_sync_s": _spread("s", "publishing weights", buckets=LONG_SECONDS),
    "time_eval_s": _spread("s", "validation", buckets=LONG_SECONDS),
    "time_checkpoint_s": _spread("s", "writing the checkpoint", buckets=LONG_SECONDS),
    "checkpoint_bytes": _spread("bytes", "of the checkpoint", buckets=BYTES),
    "time_step_s": _spread("s", "the whole step, validation and checkpoint included", buckets=LONG_SECONDS),
    # at each tool, grader, judge or session server, since the start; a line of the file has the sums of all processes
    "endpoint/<endpoint>/calls": _live("calls", "asked for: answered, failed, cancelled or under way", "counter"),
    "endpoint/<endpoint>/answered": _live("calls", "got an answer", "counter"),
    "endpoint/<endpoint>/failed": _live("calls", "ended without one", "counter"),
    "endpoint/<endpoint>/cancelled": _live("calls", "were given up by us", "counter"),
    "endpoint/<endpoint>/errors/<kind>": _live("calls", "by what went wrong: server_error, deadline, ...", "counter"),
    "endpoint/<endpoint>/retries": _live("requests", "sent again after a failure", "counter"),
    "endpoint/<endpoint>/waits": _live("requests", "sent again after 408, 425, 429 or 503", "counter"),
    "endpoint/<endpoint>/hedges": _live("requests", "sent a second time because the first took long", "counter"),
    "endpoint/<endpoint>/bytes_out": _live("bytes", "sent", "counter"),
    "endpoint/<endpoint>/bytes_in": _live("bytes", "received", "counter"),
    "endpoint/<endpoint>/latency_s": _live("s", "of requests that were answered", "histogram", SECONDS),
    "endpoint/<endpoint>/queue_s": _live("s", "requests waited for their turn", "histogram", SECONDS),
    "endpoint/<endpoint>/latency_sum_s": _file("s", "of requests that were answered"),
    "endpoint/<endpoint>/queue_sum_s": _file("s", "requests waited for their turn"),
    "endpoint/<endpoint>/limit": _live("requests", "allowed at a time just now"),
    "endpoint/<endpoint>/in_flight": _live("requests", "on the wire"),
    "endpoint/<endpoint>/queued": _live("requests", "wait for their turn"),
    "endpoint/<endpoint>/breaker": _live("", "0 closed, 1 half open, 2 open: only probes are sent"),
    # rollouts, as they end or, where they are told apart by split (train, validation, test), when their step is taken
    "rollouts_started": _live("rollouts", "attempts", "counter"),
    "rollouts/<outcome>": _live(
        "rollouts", "attempts that ended: graded, cancelled, why they were discarded", "counter"
    ),
    "rollouts_in_flight": _live("rollouts", "attempts under way"),
    "reward/<split>": _live("", "of graded rollouts", "histogram", GRADES),
    "grade/<split>": _live("", "of graded rollouts, without penalties", "histogram", GRADES),
    "rollout_calls/<split>": _live("calls", "tool calls of a rollout", "histogram", CALLS),
    "turn_calls/<split>": _live("calls", "tool calls of a turn", "histogram", CALLS),
    "rollout_tokens/<split>/<kind>": _live(
        "tokens", "of a rollout: prompt, completion (reasoning included), reasoning, tool", "histogram", TOKENS
    ),
    "rollout_wall_s/<split>": _live("s", "wall-clock of a rollout", "histogram", LONG_SECONDS),
    "rollout_busy_s/<split>": _live("s", "model and tool time of a rollout", "histogram", LONG_SECONDS),
    "grade_s": _live("s", "from a finished rollout to its grade", "histogram", SECONDS),
    "grade_errors/<kind>": _live("grades", "that were not given", "counter"),
    # the fleet and the ranks
    "engine/<engine>/ready": _live("", "1: takes rollouts; 0: starts, or is replaced"),
    "engine/<engine>/rollouts": _live("rollouts", "under way on it"),
    "engine_replacements": _live("engines", "that died or differed from the learner", "counter"),
    "engine_slots": _live("requests", "that an engine runs at once"),
    "engine_slots_used": _live("requests", "that run"),
    "engine_waiting": _live("requests", "that wait for a slot"),
    "engine_sampled_tokens": _live("tokens", "sampled", "counter"),
    "engine_version": _live("", "policy version of the engine's weights"),
    "engine_pause_s": _live("s", "generation stood still for an update", "histogram", SECONDS),
    "rank_s/<call>": _live("s", "a learner rank was at work: step, save, logprobs, ...", "histogram", LONG_SECONDS),
    # the job and the server
    "events/<level>": _live("events", "told to the user: info, warn, error", "counter"),
    "disk_free_bytes": _live("bytes", "free where the run's folder lies"),
    "disk_total_bytes": _live("bytes", "there, used or free"),
    "api_request_s/<status>/<method>/<route>": _live("s", "until an API answer ended", "histogram", SECONDS),
    "api_jobs/<state>": _live("jobs", "of the server, by state"),
}

_PLACEHOLDER = re.compile(r"<(\w+)>")
_FAMILIES = {
    name: re.compile(_PLACEHOLDER.sub(r"(?P<\1>.+?)", name) + "$", re.DOTALL) for name in METRICS if "<" in name
}


@lru_cache(4096)
def metric_of(name: str) -> tuple[str, dict[str, str]] | None:
    """The entry that a name belongs to, and its labels; None where it is in no list."""
    if name in METRICS:
        return name, {}
    for family, pattern in _FAMILIES.items():
        if found := pattern.match(name):
            return family, found.groupdict()
    return None


def prometheus_name(entry: str) -> str:
    """`tool/<tool>/latency_s_mean` -> `agent_rft_tool_latency_seconds_mean`; a counter's samples end in `_total`."""
    plain = "_".join(part for part in entry.split("/") if not part.startswith("<"))
    return "agent_rft_" + re.sub(r"_s(?=_|$)", "_seconds", plain)


def step_times(begun: float, run_begun: float) -> dict[str, float]:
    """Of a step and a run that began then (`time.monotonic`), up to now."""
    now = time.monotonic()
    return {"time_step_s": now - begun, "elapsed_s": now - run_begun}


def rollout_metrics(rollouts: Sequence[Rollout], discarded: Sequence[Discarded] = ()) -> dict[str, float]:
    """Means and counts over graded rollouts; nothing where there is none."""
    metrics: dict[str, float] = {f"discarded/{k}": float(n) for k, n in Counter(d.reason for d in discarded).items()}
    total = len(rollouts) + len(discarded)
    if total:
        metrics["mean_unresponsive_rewards"] = len(discarded) / total
    metrics["rollouts_graded"] = float(len(rollouts))
    if not rollouts:
        return metrics
    calling = [turn for r in rollouts for turn in r.turns if turn.calls]
    metrics |= {
        "train_mean_reward": fmean(r.reward for r in rollouts),
        "train_mean_grade": fmean(r.grade.value for r in rollouts),
        "tool_calls_mean": fmean(len(r.calls) for r in rollouts),
        "turns_mean": fmean(len(r.turns) for r in rollouts),
        "parallel_turn_share": sum(len(t.calls) > 1 for t in calling) / len(calling) if calling else 0.0,
        "completion_tokens_mean": fmean(r.num_sampled for r in rollouts),
        "reasoning_tokens_mean": fmean(r.reasoning_tokens for r in rollouts),
        "rollout_tokens_mean": fmean(len(r.token_ids) for r in rollouts),
        "rollout_busy_s_mean": fmean(r.busy_s for r in rollouts),
        "rollout_wall_s_mean": fmean(r.wall_s for r in rollouts),
        "grade_latency_s_mean": fmean(r.grade.latency_s for r in rollouts),
    }
    for finish, count in Counter(r.finish for r in rollouts).items():
        metrics[f"finish/{finish}"] = float(count)
    return metrics | _grade_metrics([r.grade for r in rollouts]) | _tool_metrics(rollouts)


def _grade_metrics(grades: Sequence[Grade]) -> dict[str, float]:
    """What graders, guards and judges said. A sample that a grader could not read has no scores of its parts."""
    metrics: dict[str, float] = {}
    for part in dict.fromkeys(part for grade in grades for part in grade.scores):
        metrics[f"grader/{part}/score_mean"] = fmean(g.scores[part] for g in grades if part in g.scores)
    for guard, count in Counter(grade.guard for grade in grades if grade.guard is not None).items():
        metrics[f"guard/{guard}"] = float(count)
    held_out = [grade.held_out for grade in grades if grade.held_out is not None]
    if held_out:
        metrics["held_out_grade_mean"] = fmean(held_out)
    if failures := sum(bool(grade.held_out_error) for grade in grades):
        metrics["held_out_failures"] = float(failures)
    for grade in grades:
        for model, num_tokens in grade.judge_tokens.items():
            metrics[f"judge_tokens/{model}"] = metrics.get(f"judge_tokens/{model}", 0.0) + num_tokens
    return metrics


def slow_rows_ratio(groups: Sequence[Group]) -> float:
    """Whether slow rows are trained as often as the data set holds them: the share of the slowest quarter's rollouts
    that was graded, divided by that share of all groups. NaN with fewer than four groups.
    """
    slow = sorted(groups, key=lambda group: group.wall_s)[-(len(groups) // 4) :] if len(groups) >= 4 else []

    def share(some: Sequence[Group]) -> float:
        return sum(len(group.rollouts) for group in some) / max(1, sum(group.request.size for group in some))

    return share(slow) / share(groups) if slow and share(groups) else math.nan


def _tool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    pairs = [pair for r in rollouts for pair in zip(r.calls, r.results, strict=True)]
    for kind, count in Counter(result.error for _, result in pairs if result.error).items():
        metrics[f"call_errors/{kind}"] = float(count)
    answered: dict[str, list[tuple[float, int, bool]]] = {}
    for call, result in pairs:
        if result.error in (None, "tool_error"):
            row = (result.latency_s, len(result.output), result.error is not None)
            answered.setdefault(call.name, []).append(row)
    for name, rows in answered.items():
        metrics[f"tool/{name}/calls_mean"] = len(rows) / len(rollouts)
        metrics[f"tool/{name}/latency_s_mean"] = fmean(row[0] for row in rows)
        metrics[f"tool/{name}/output_chars_mean"] = fmean(row[1] for row in rows)
        metrics[f"tool/{name}/errors"] = float(sum(row[2] for row in rows))
    tokens: dict[str, list[float]] = {}
    for name, num_tokens in (pair for r in rollouts for pair in _tool_tokens(r)):
        tokens.setdefault(name, []).append(num_tokens)
    return metrics | {f"tool/{name}/output_tokens_mean": fmean(counts) for name, counts in tokens.items()}


def _tool_tokens(rollout: Rollout) -> list[tuple[str, float]]:
    """(tool, tokens of its output): what stands between two turns, shared out among the calls by length."""
    found = []
    for turn, after in zip(rollout.turns, rollout.turns[1:], strict=False):
        lengths = [len(result.output) for result in turn.results]
        total = sum(lengths)
        for call, length in zip(turn.calls, lengths, strict=True):
            share = length / total if total else 1 / len(lengths)
            found.append((call.name, share * max(0, after.start - turn.stop)))
    return found
