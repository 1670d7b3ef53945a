"""The verdicts before training and their reason codes: what each means and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Verdict = Literal["train", "fix_first", "warm_start"]
"""train: the draws differ, so there is something to learn. fix_first: training would learn the wrong thing or nothing.
warm_start: the model almost never succeeds, so show it how first, by supervised rows."""


class Reason(StrEnum):
    """Why a verdict is as it is. The values are in JSON and in the API."""

    ENOUGH_SIGNAL = "enough_signal"
    ROLLOUTS_DISCARDED = "rollouts_discarded"
    TOOLS_FAIL = "tools_fail"
    CALLS_INVALID = "calls_invalid"
    ANSWERS_CUT = "answers_cut"
    TOO_FEW_ROWS = "too_few_rows"
    CONTRADICTORY_ROWS = "contradictory_rows"
    GRADER_NOISY = "grader_noisy"
    GRADER_DISAGREES = "grader_disagrees"
    TOO_EASY = "too_easy"
    NO_DIFFERENCES = "no_differences"
    TOO_HARD = "too_hard"
    TOOLS_UNUSED = "tools_unused"
    NEAR_DUPLICATES = "near_duplicates"
    ROWS_SHARED = "rows_shared"
    GRADER_COARSE = "grader_coarse"
    TOO_SLOW = "too_slow"
    NOT_GRADED_TWICE = "not_graded_twice"


@dataclass(frozen=True, slots=True)
class Meaning:
    """The verdict that a reason leads to (None: it is only noted), what it means, and what to do, in Markdown."""

    verdict: Verdict | None
    meaning: str
    remedy: str


REASONS: dict[Reason, Meaning] = {
    Reason.ENOUGH_SIGNAL: Meaning(
        "train",
        "The rollouts of enough rows differ in reward, and nothing was found that would spoil the training.",
        "Train, with the settings that are recommended.",
    ),
    Reason.ROLLOUTS_DISCARDED: Meaning(
        "fix_first",
        "Many rollouts ended without a grade: a tool, the grader or the engine failed, or they took too long. What "
        "remains is not a fair sample of the rows.",
        "Look at the reasons that are counted; repair the endpoint, or raise `limits.rollout_timeout_s`.",
    ),
    Reason.TOOLS_FAIL: Meaning(
        "fix_first",
        "A tool answers many calls with an error (HTTP 4xx). The model would learn to avoid the tool, not to use it.",
        "Call the tool with the arguments of a trace (`agent-rft traces RUN --worst 3`) and repair it or its schema.",
    ),
    Reason.CALLS_INVALID: Meaning(
        "fix_first",
        "Many calls cannot be read, name a tool that does not exist or have invalid arguments. Often the chat "
        "template, the parser or the tool's schema is at fault, and training would work around it.",
        "Look at the prompt with `agent-rft check JOB --show-prompt` and at the calls with `agent-rft traces RUN`; see "
        "`model_options.tool_parser` and `model_options.tools_in_prompt`.",
    ),
    Reason.ANSWERS_CUT: Meaning(
        "fix_first",
        "Most rollouts reach a limit before they answer, so their grades are about the limit more than the model.",
        "Raise `limits.max_completion_tokens`, `max_episode_steps` or `cluster.context_length`, or ask for shorter "
        "answers in the prompt.",
    ),
    Reason.TOO_FEW_ROWS: Meaning(
        "fix_first",
        "So few rows differ from each other that the model would memorize them, and not get better at other rows.",
        "Write more rows, each with a question of its own.",
    ),
    Reason.CONTRADICTORY_ROWS: Meaning(
        "fix_first",
        "Rows ask the same question and have different references: whatever the model answers, some of them are wrong.",
        "Correct or remove the rows whose lines are listed.",
    ),
    Reason.GRADER_NOISY: Meaning(
        "fix_first",
        "The same answers, graded twice, get grades that differ about as much as those of different answers to one "
        "row. Most of what would be learned is chance.",
        "Make the grader's instructions stricter, let it give several scores and take their mean (a `multi` grader), "
        "set a judge's temperature to 0, or use a grader that computes.",
    ),
    Reason.GRADER_DISAGREES: Meaning(
        "fix_first",
        "Nothing shows that, among the rollouts of a row, those that the grader prefers are better by the held-out "
        "grader: training would raise the grade and perhaps not the quality.",
        "Compare both grades of some traces, and close the gap in the grader or with a guard.",
    ),
    Reason.TOO_EASY: Meaning(
        "fix_first",
        "The model passes nearly every row already, so there is little left to gain.",
        "Take harder rows, a stricter grader, or reward fewer calls and tokens (`reward`).",
    ),
    Reason.NO_DIFFERENCES: Meaning(
        "fix_first",
        "Most rows get one and the same reward in all their rollouts, neither right nor wrong: the grader does not see "
        "differences, or the model does not make any.",
        "Use a grader with more steps, or raise `algorithm.temperature`.",
    ),
    Reason.TOO_HARD: Meaning(
        "warm_start",
        "Most rows fail in all their rollouts, so no rollout shows what would be better.",
        "Train on supervised rows first: write some, or take the best rollouts of a stronger model (`--export-sft`). "
        "Or give partial credit in the grader, or take easier rows.",
    ),
    Reason.TOOLS_UNUSED: Meaning(
        "warm_start",
        "Rows offer tools, but the rollouts rarely call one: what is never sampled cannot be reinforced.",
        "Say in the prompt when to call which tool. If that does not help, train on supervised rows with calls first.",
    ),
    Reason.NEAR_DUPLICATES: Meaning(
        None,
        "Rows with the same reference ask nearly the same question, so they count for less than their number.",
        "Remove one of each pair of lines, unless it is meant.",
    ),
    Reason.ROWS_SHARED: Meaning(
        None,
        "Rows of the validation or test file are in the training file, too: their grades say little about new rows.",
        "Move them to one of the files.",
    ),
    Reason.GRADER_COARSE: Meaning(
        None,
        "The grader gives two different grades at most. It works, but grades with steps between learn from more rows.",
        "Give partial credit where an answer is partly right.",
    ),
    Reason.TOO_SLOW: Meaning(
        None,
        "More than one rollout in twenty takes longer than the target.",
        "Set `reward.tool_call_penalty` or `reward.token_penalty`, or make the slowest tool faster.",
    ),
    Reason.NOT_GRADED_TWICE: Meaning(
        None,
        "The grader failed on answers that it had graded before, so its noise is not known. A grader that reads the "
        "state of a session cannot grade an answer again.",
        "Nothing, if the grader reads the session's state; otherwise grade the run twice with `agent-rft grade`.",
    ),
}
