"""Verdict of the readiness check, with its reasons. The thresholds were fixed before any measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent_rft.cluster.readiness.data_checks import MAX_PAIRS, DataFinding
from agent_rft.cluster.readiness.grader_reliability import GraderFinding
from agent_rft.cluster.readiness.rollout_behavior import RolloutBehavior
from agent_rft.cluster.readiness.row_signal import RowShares, RowSignal
from agent_rft.metrics.confidence_intervals import MIN_VALUES, Interval, wilson_interval
from agent_rft.problems.readiness_reasons import REASONS, Reason, Verdict

TRAINED = "training_file"
MIN_ROWS = 10
"""Minimum number of distinct questions, the same minimum as in OpenAI's API."""
MIN_SIGNAL = 0.15
"""Minimum share of rows whose rollouts have different rewards.

At this share, a batch of 16 rows has two or three such rows. With a smaller share, the gradient of a step comes from
only one or two rows."""
MAX_PASS = 0.9
"""Maximum pass rate. Above it, the likely gain is too small to measure with 100 test rows."""
MAX_CONTRADICTORY = 0.1
"""Maximum share of contradictory rows, which have the same question but different references.

At this share, the wrong references change the mean grade by up to 0.05, the smallest measurable change."""
MAX_NOISE = 0.5
"""Maximum share of noise in the variance of a row's grades. With more noise, noise decides the order of rollouts."""
MAX_DISCARDED = 0.3
"""Maximum share of discarded rollouts. At this share, about one in ten rollouts is still discarded after one retry."""
MAX_TOOL_ERRORS = 0.5
"""Error rate above which a tool is unusable. It is compared with the lower bound of the confidence interval."""
MAX_INVALID_CALLS = 0.5
"""Share of invalid calls above which the model probably uses a different syntax. It is compared with the lower bound of
the confidence interval. A model with fewer invalid calls can learn the syntax in training."""
MAX_CUT = 0.5
"""Maximum share of rollouts that end at a limit."""
MIN_CALLING = 0.02
"""Minimum share of rollouts with a tool call. At this share, one in seven groups of 8 rollouts contains a call."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements that decide the verdict. `penalties`: whether rewards penalize calls, turns, tokens or time."""

    rows: Sequence[RowSignal]
    shares: RowShares
    pass_rate: Interval
    grader: GraderFinding
    behavior: RolloutBehavior | None
    data: DataFinding
    penalties: bool


@dataclass(frozen=True, slots=True)
class ReadinessFinding:
    """Reason or note in the result of a readiness check. `words` describes it and contains the measured values."""

    reason: Reason
    words: str


def decide_verdict(evidence: Evidence) -> tuple[Verdict, tuple[ReadinessFinding, ...]]:
    """Return the verdict and its reasons, followed by notes, which do not affect the verdict.

    The verdict `fix_first` takes precedence over `sft_warm_up`.
    """
    found = (*_check_run(evidence), *_check_data(evidence.data), *_check_grader(evidence), *_check_rewards(evidence))
    notes = tuple(_notes(evidence))
    verdicts = {REASONS[entry.reason].verdict for entry in found}
    if "fix_first" in verdicts:
        return "fix_first", (*found, *notes)
    if "sft_warm_up" in verdicts:
        return "sft_warm_up", (*found, *notes)
    words = f"in {evidence.shares.signal:.0%} of the rows, the rollouts differ in reward"
    return "train", (ReadinessFinding(Reason.ENOUGH_SIGNAL, words), *notes)


def _check_run(evidence: Evidence) -> Iterator[ReadinessFinding]:
    behavior = evidence.behavior
    if behavior is None:
        yield ReadinessFinding(Reason.ROLLOUTS_DISCARDED, "no rollout was graded")
        return
    lost = sum(behavior.discarded.values())
    if (share := lost / (lost + behavior.rollouts)) > MAX_DISCARDED:
        kinds = ", ".join(f"{kind} {count}" for kind, count in behavior.discarded.items())
        yield ReadinessFinding(Reason.ROLLOUTS_DISCARDED, f"{share:.0%} of the rollouts were discarded ({kinds})")
    for tool in behavior.tools:
        if wilson_interval(tool.errors, tool.calls).low > MAX_TOOL_ERRORS:
            words = f"the tool {tool.name!r} answered {tool.errors} of {tool.calls} calls with an error"
            yield ReadinessFinding(Reason.TOOLS_FAIL, words)
    if (invalid := behavior.invalid_calls).low > MAX_INVALID_CALLS:
        yield ReadinessFinding(Reason.CALLS_INVALID, f"{invalid.mean:.0%} of the calls were invalid")
    if (cut := 1.0 - behavior.ended.get("answer", 0.0)) > MAX_CUT:
        kinds = ", ".join(f"{kind} {share:.0%}" for kind, share in behavior.ended.items() if kind != "answer")
        yield ReadinessFinding(Reason.ANSWERS_CUT, f"{cut:.0%} of the rollouts ended at a limit ({kinds})")


def _check_data(data: DataFinding) -> Iterator[ReadinessFinding]:
    if data.distinct < MIN_ROWS and data.file == TRAINED:
        yield ReadinessFinding(Reason.TOO_FEW_ROWS, f"the training file has only {data.distinct} different questions")
    if data.contradictory_share > MAX_CONTRADICTORY:
        share = data.contradictory_share
        words = f"{share:.0%} of the rows have the same question as another row, but a different reference"
        yield ReadinessFinding(Reason.CONTRADICTORY_ROWS, f"{words}: {_format_lines(data.contradictory)}")


def _check_grader(evidence: Evidence) -> Iterator[ReadinessFinding]:
    grader = evidence.grader
    if grader.noise is not None and grader.noise > MAX_NOISE:
        words = f"{grader.noise:.0%} of the grade variance within rows is noise from the grader"
        yield ReadinessFinding(Reason.GRADER_NOISY, f"{words} ({grader.regraded} answers graded twice)")
    agreement = grader.agreement
    if agreement is not None and agreement.n >= MIN_ROWS and agreement.low <= 0.0:
        words = f"the correlation between grade and held-out grade within rows is {agreement.format()}"
        yield ReadinessFinding(Reason.GRADER_DISAGREES, words)


def _check_rewards(evidence: Evidence) -> Iterator[ReadinessFinding]:
    shares, behavior = evidence.shares, evidence.behavior
    if behavior is None:
        return
    if behavior.calling is not None and behavior.calling < MIN_CALLING and shares.all_right < MAX_PASS:
        yield ReadinessFinding(
            Reason.TOOLS_UNUSED, f"for rows with tools, {behavior.calling:.1%} of the rollouts called a tool"
        )
    if evidence.pass_rate.mean > MAX_PASS and not evidence.penalties:
        yield ReadinessFinding(Reason.TOO_EASY, f"{evidence.pass_rate.mean:.0%} of the rollouts pass")
    elif shares.signal < MIN_SIGNAL:
        words = f"in {shares.signal:.0%} of the rows, the rollouts differ in reward"
        largest = max(shares.all_right, shares.all_wrong, shares.equal)
        if largest == shares.all_wrong:
            yield ReadinessFinding(
                Reason.TOO_HARD, f"{words}; in {shares.all_wrong:.0%} of the rows, all rollouts are wrong"
            )
        elif largest == shares.all_right:
            yield ReadinessFinding(
                Reason.TOO_EASY, f"{words}; in {shares.all_right:.0%} of the rows, all rollouts are right"
            )
        else:
            yield ReadinessFinding(
                Reason.NO_DIFFERENCES, f"{words}; in {shares.equal:.0%} of the rows, all grades are equal"
            )


def _notes(evidence: Evidence) -> Iterator[ReadinessFinding]:
    data, grader, behavior = evidence.data, evidence.grader, evidence.behavior
    if data.near_duplicates:
        many = "or more " * (len(data.near_duplicates) == MAX_PAIRS)
        words = f"{len(data.near_duplicates)} {many}pairs of rows are nearly identical"
        yield ReadinessFinding(Reason.NEAR_DUPLICATES, f"{words}: {_format_lines(data.near_duplicates)}")
    for name, count in (data.shared or {}).items():
        yield ReadinessFinding(Reason.ROWS_SHARED, f"{count} rows of {name} are also in {data.file}")
    if 1 <= grader.distinct <= 2 and grader.graded >= MIN_VALUES:
        yield ReadinessFinding(
            Reason.GRADER_COARSE, f"{grader.graded} rollouts got only {grader.distinct} different grades"
        )
    if grader.failed:
        total = grader.regraded + grader.failed
        yield ReadinessFinding(
            Reason.NOT_GRADED_TWICE, f"{grader.failed} of {total} answers could not be graded a second time"
        )
    if behavior is not None and behavior.over_target is not None and behavior.over_target > 0.05:
        words = f"{behavior.over_target:.0%} of the rollouts take longer than the target"
        yield ReadinessFinding(Reason.TOO_SLOW, f"{words}; 95% take at most {behavior.busy_s.p95:.1f} s")


def _format_lines(groups: Sequence[Sequence[int]], shown: int = 3) -> str:
    texts = [" and ".join(map(str, lines[:4])) for lines in groups[:shown]]
    return f"lines {', '.join(texts)}" + (f" and {len(groups) - shown} more" if len(groups) > shown else "")
