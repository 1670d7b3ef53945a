"""Verdicts of the readiness check and their reason codes: the meaning of each reason and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Verdict = Literal["train", "fix_first", "sft_warm_up"]
"""Verdict of the readiness check.

- train: the rewards of the rollouts differ, so there is something to learn.
- fix_first: training would learn the wrong thing, or nothing.
- sft_warm_up: the model almost never succeeds, so it needs an SFT warm-up first.
"""


class Reason(StrEnum):
    """Reason for a verdict. The values are used in JSON and in the API."""

    ENOUGH_SIGNAL = "enough_signal"
    ROLLOUTS_DISCARDED = "rollouts_discarded"
    TOOLS_FAIL = "tools_fail"
    CALLS_INVALID = "calls_invalid"
    ANSWERS_CUT = "answers_truncated"
    TOO_FEW_ROWS = "too_few_rows"
    CONTRADICTORY_ROWS = "contradictory_rows"
    GRADER_NOISY = "grader_noisy"
    GRADER_DISAGREES = "grader_disagrees"
    TOO_EASY = "too_easy"
    NO_DIFFERENCES = "equal_rewards"
    TOO_HARD = "too_hard"
    TOOLS_UNUSED = "tools_unused"
    NEAR_DUPLICATES = "near_duplicates"
    ROWS_SHARED = "rows_overlap"
    GRADER_COARSE = "grader_coarse"
    TOO_SLOW = "too_slow"
    NOT_GRADED_TWICE = "grader_noise_unknown"


@dataclass(frozen=True, slots=True)
class ReasonEntry:
    """Meaning of a reason and what to do about it, in Markdown.

    `verdict` is the verdict that the reason causes, or None if the reason is only a note.
    """

    verdict: Verdict | None
    meaning: str
    fix: str


REASONS: dict[Reason, ReasonEntry] = {
    Reason.ENOUGH_SIGNAL: ReasonEntry(
        "train",
        "Enough rows have rollouts with different rewards, and the check found no problem that prevents learning.",
        "Train with the recommended settings.",
    ),
    Reason.ROLLOUTS_DISCARDED: ReasonEntry(
        "fix_first",
        "Many rollouts ended without a grade: a tool, the grader or the engine failed, or the rollouts took too long. "
        "The remaining rollouts do not represent the rows.",
        "Check the discard reasons and their counts. Fix the endpoint, or raise `limits.rollout_timeout_s`.",
    ),
    Reason.TOOLS_FAIL: ReasonEntry(
        "fix_first",
        "A tool answers many calls with an error (HTTP 4xx). The model would learn to avoid the tool, not to use it.",
        "Call the tool with the arguments of a trace (`agent-rft traces RUN --worst 3`), and fix the tool or its "
        "schema.",
    ),
    Reason.CALLS_INVALID: ReasonEntry(
        "fix_first",
        "Many calls cannot be parsed, name a tool that does not exist, or have invalid arguments. The cause is often "
        "the chat template, the parser or the tool's schema. Without a fix, the model learns to avoid such calls.",
        "Read the prompt with `agent-rft check JOB --show-prompt` and the calls with `agent-rft traces RUN`. See "
        "`model_options.tool_parser` and `model_options.tools_in_prompt`.",
    ),
    Reason.ANSWERS_CUT: ReasonEntry(
        "fix_first",
        "Most rollouts reach a limit before they answer, so their grades depend more on the limit than on the model.",
        "Raise `limits.max_completion_tokens`, `max_episode_steps` or `cluster.context_length`, or ask for shorter "
        "answers in the prompt.",
    ),
    Reason.TOO_FEW_ROWS: ReasonEntry(
        "fix_first",
        "Too few rows differ from each other. The model would memorize them and not improve on other rows.",
        "Write more rows, each with a different question.",
    ),
    Reason.CONTRADICTORY_ROWS: ReasonEntry(
        "fix_first",
        "Rows ask the same question but have different references. The same answer is therefore graded differently, "
        "and no answer is right for all of these rows.",
        "Correct or remove the listed rows.",
    ),
    Reason.GRADER_NOISY: ReasonEntry(
        "fix_first",
        "If the same answer is graded twice, its two grades differ about as much as the grades of different answers "
        "to one row. The model would mainly learn noise.",
        "Make the grader's instructions stricter, or average several scores (a `multi` grader). Set a judge's "
        "temperature to 0, or use a grader that calculates the grade with code instead of a model.",
    ),
    Reason.GRADER_DISAGREES: ReasonEntry(
        "fix_first",
        "Among the rollouts of a row, the held-out grader does not confirm the grader's ranking. Training would "
        "raise the grade, but perhaps not the quality.",
        "In some traces, compare the grade with the grade of the held-out grader. Then close the loophole in the "
        "grader, or add a guard.",
    ),
    Reason.TOO_EASY: ReasonEntry(
        "fix_first",
        "The model passes nearly every row already, so there is little left to gain.",
        "Use harder rows or a stricter grader, or penalize calls and tokens (`reward`).",
    ),
    Reason.NO_DIFFERENCES: ReasonEntry(
        "fix_first",
        "For most rows, all rollouts get the same reward, but they are neither all right nor all wrong. "
        "Either the grader does not detect differences, or the answers do not differ.",
        "Use a grader with finer grades, or raise `algorithm.temperature`.",
    ),
    Reason.TOO_HARD: ReasonEntry(
        "sft_warm_up",
        "For most rows, all rollouts fail, so no rollout shows the model a better answer.",
        "Start with an SFT warm-up: write supervised rows, or take the best rollouts of a stronger model "
        "(`--export-sft`). Or give partial credit in the grader, or use easier rows.",
    ),
    Reason.TOOLS_UNUSED: ReasonEntry(
        "sft_warm_up",
        "Rows offer tools, but the rollouts rarely call a tool. Behavior that is never sampled cannot be reinforced.",
        "Explain in the prompt when to call which tool. If that does not help, start with an SFT warm-up on rows with "
        "calls.",
    ),
    Reason.NEAR_DUPLICATES: ReasonEntry(
        None,
        "Rows with the same reference ask nearly the same question, so the file has fewer different tasks than rows.",
        "Remove one line of each pair, unless both are intended.",
    ),
    Reason.ROWS_SHARED: ReasonEntry(
        None,
        "Rows of the validation or test file are also in the training file. Their grades do not show how the model "
        "performs on new rows.",
        "Keep each of these rows in only one file.",
    ),
    Reason.GRADER_COARSE: ReasonEntry(
        None,
        "The grader gives at most two different grades. This works, but with finer grades more rows contribute to "
        "learning.",
        "Give partial credit for answers that are partly right.",
    ),
    Reason.TOO_SLOW: ReasonEntry(
        None,
        "More than one rollout in twenty takes longer than the target latency of the check.",
        "Set `reward.tool_call_penalty` or `reward.token_penalty`, or make the slowest tool faster.",
    ),
    Reason.NOT_GRADED_TWICE: ReasonEntry(
        None,
        "The grader failed on answers that it had graded before, so its noise could not be measured. A grader that "
        "reads the state of a session cannot grade an answer again.",
        "If the grader reads the session's state, no action is needed. Otherwise grade the run twice with `agent-rft "
        "grade`.",
    ),
}
