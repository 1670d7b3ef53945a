"""The one list of metrics: what every process records, what plots, tables and dashboards may ask for.

A name with a `<placeholder>` stands for a family (`tool/<name>/calls_mean` -> `tool/search/calls_mean`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from trainer.types import Discarded, Grade, Group, Rollout


@dataclass(frozen=True, slots=True)
class Metric:
    unit: str
    help: str


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
    "grader/<name>/score_mean": Metric("", "mean score of one part of a multi grader; `ungated`: without guards"),
    "guard/<name>": Metric("rollouts", "rollouts whose reward this guard set"),
    "held_out_grade_mean": Metric("", "mean grade of the held-out grader, which nothing is trained on"),
    "held_out_failures": Metric("rollouts", "graded rollouts to which the held-out grader gave no grade"),
    "judge_tokens/<model>": Metric("tokens", "tokens spent on one judge model"),
    "finish/<reason>": Metric("rollouts", "rollouts that ended by answer, max_steps, max_tokens or context"),
    "tool/<name>/calls_mean": Metric("calls", "calls of one tool per rollout"),
    "tool/<name>/latency_s_mean": Metric("s", "latency of one tool's answers"),
    "tool/<name>/output_chars_mean": Metric("characters", "length of one tool's outputs"),
    "tool/<name>/errors": Metric("calls", "calls of one tool that were answered with an error"),
    "call_errors/<kind>": Metric("calls", "calls refused or failed by the model's doing"),
    # what was lost
    "rollouts_graded": Metric("rollouts", "graded rollouts of the step's groups"),
    "mean_unresponsive_rewards": Metric("share", "rollouts discarded, of all rollouts of the step's groups"),
    "discarded/<reason>": Metric("rollouts", "discarded rollouts by reason"),
    "groups_trained": Metric("groups", "groups that trained"),
    "groups_without_signal/<kind>": Metric("groups", "groups whose rewards are all equal: all_right, all_wrong, equal"),
    "groups_lost": Metric("groups", "groups with fewer than two survivors"),
    "account/<state>": Metric(
        "rollouts", "attempts since the start: started = graded + discarded + cancelled + in_flight"
    ),
    "endpoint/<name>/<count>": Metric(
        "", "since the start at a tool, grader, judge or session server: calls, retries, waits, queue_sum_s, limit, ..."
    ),
    "slow_rows_ratio": Metric(
        "", "graded share of the rollouts of the slowest quarter of groups, of that of all: 1 is as often as quick rows"
    ),
    # how fresh it is
    "staleness_mean": Metric("versions", "learner's version minus that of a trained group's oldest token"),
    "staleness_max": Metric("versions", "the largest of the step"),
    "sync_pause_s": Metric("s", "generation stood still for the update (slowest engine)"),
    "sync_total_s": Metric("s", "from the learner's weights to all engines"),
    "sync_bytes": Metric("bytes", "weights sent to each engine"),
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
    "trained_tokens": Metric("tokens", "tokens in the loss"),
    "computed_tokens": Metric("tokens", "tokens that went through the model"),
    "padding_efficiency": Metric("share", "useful tokens of computed tokens"),
    "num_micro_batches": Metric("", "micro-batches per rank"),
    "update_applied": Metric("", "0 where a non-finite gradient skipped the update"),
    # where the time went
    "time_wait_s": Metric("s", "the learner waited for rollouts"),
    "time_learn_s": Metric("s", "updates"),
    "time_sync_s": Metric("s", "publishing weights"),
    "time_eval_s": Metric("s", "validation"),
    "time_step_s": Metric("s", "the whole step, validation and checkpoint included"),
}

_FAMILIES = [re.compile(re.sub(r"<\w+>", ".+", name) + "$") for name in METRICS if "<" in name]


def is_metric(name: str) -> bool:
    """Whether a name is in the list or belongs to a family of it."""
    return name in METRICS or any(family.match(name) for family in _FAMILIES)


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
    that was graded, divided by that share of all groups. NaN with fewer than four groups."""
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
    return metrics
