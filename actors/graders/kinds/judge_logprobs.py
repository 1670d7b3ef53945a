"""Grades from log-probabilities: each label is weighted by the probability that the judge's answer begins with it.

If the judge answers with something other than a label, grading fails; such an answer never becomes a low grade.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from agent_rft.spec.graders import LabelModelGrader, ScoreModelGrader

NUM_TOKENS = 20
"""Number of most likely tokens to request; the chat API does not return more."""
LOGPROBS_PARAMETERS = {
    "logprobs": True,
    "top_logprobs": NUM_TOKENS,
    "max_completion_tokens": 1,
    "temperature": 1,
    "top_p": 1,
}
"""Request parameters. Some servers, such as ours, apply temperature and top_p to log-probabilities, so both are 1."""
MIN_LABEL_SHARE = 0.5
"""Minimum total probability of the labels."""
MIN_PREFIX_CHARS = 3
"""Minimum length of a token that counts as the beginning of a label; "in" or "I" could begin many other words."""
ROUNDING = 1.001


class MissingLogprobs(Exception):
    """The answer has no usable log-probabilities; the message is the reason."""


class MissingLabel(Exception):
    """The judge's answer does not begin with a label; the message contains the answer's likely first tokens."""


def label_grades(spec: ScoreModelGrader | LabelModelGrader) -> dict[str, float]:
    """Return the grade of each label that a judge may answer. For a score, the labels are the digits in the range."""
    if isinstance(spec, LabelModelGrader):
        return {label: float(label in spec.passing_labels) for label in spec.labels}
    low, high = spec.range
    return {str(score): float(score) for score in range(int(low), int(high) + 1)}


def logprobs_problems(spec: ScoreModelGrader | LabelModelGrader) -> Iterator[tuple[str, str, str]]:
    """Yield (field, problem, fix) if the first token of an answer cannot identify the label or the score."""
    if isinstance(spec, ScoreModelGrader):
        if not all(end in range(10) for end in spec.range):
            yield "range", "must be a list of two digits, such as [0, 1] or [1, 5]", "use whole numbers from 0 to 9"
        return
    if len(spec.labels) > NUM_TOKENS:
        yield "labels", f"has more than {NUM_TOKENS} labels", "use fewer labels"
        return
    words = [label.casefold() for label in spec.labels]
    for i, word in enumerate(words):
        if not word or word != word.strip():
            problem = f"the label {spec.labels[i]!r} is empty, or begins or ends with a space"
            yield "labels", problem, "use words as labels, such as yes and no"
        elif any(other.startswith(word) for j, other in enumerate(words) if j != i):
            yield "labels", f"another label begins with {spec.labels[i]!r}", "use labels that begin differently"


def weigh_labels(choice: Mapping[str, Any], values: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """Return the mean grade, weighted by the probabilities of the labels, and the probability of each label.

    `values` has the grade of each label.

    Raises:
        MissingLogprobs: `choice`, the choice of a chat completion, has no log-probabilities.
        MissingLabel: The probability that the answer begins with a label is too low.
    """
    likely = _likely_tokens(choice)
    shares = dict.fromkeys(values, 0.0)
    for token, share in likely:
        found = [label for label in values if _begins_label(token, label)]
        if len(found) == 1:
            shares[found[0]] += share
    total = sum(shares.values())
    if total < MIN_LABEL_SHARE:
        tokens = ", ".join(f"{token[:20]!r} {share:.2f}" for token, share in likely[:3])
        raise MissingLabel(
            f"the probability that the judge's answer begins with a label is only {total:.2f}; "
            f"likely first tokens: {tokens}"
        )
    return sum(values[label] * share for label, share in shares.items()) / total, shares


def _begins_label(token: str, label: str) -> bool:
    """Return whether `token`, the first token of an answer, means `label`.

    The token must be the label in upper or lower case, or a prefix of the label with at least MIN_PREFIX_CHARS
    characters.
    """
    word = token.strip()
    return word.casefold() == label.casefold() or (len(word) >= MIN_PREFIX_CHARS and label.startswith(word))


def _likely_tokens(choice: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (token, probability) of the most likely tokens at the first position, by descending probability."""
    try:
        entries = choice["logprobs"]["content"][0]["top_logprobs"]
        likely = [(entry["token"], _probability(entry["logprob"])) for entry in entries]
    except (KeyError, IndexError, TypeError):
        raise MissingLogprobs("the judge's answer has no top_logprobs") from None
    if not likely or not all(isinstance(token, str) for token, _ in likely):
        raise MissingLogprobs("the judge's answer has no top_logprobs")
    if sum(share for _, share in likely) > ROUNDING:
        raise MissingLogprobs("the probabilities in the answer's top_logprobs add up to more than 1")
    return sorted(likely, key=lambda one: -one[1])


def _probability(logprob: Any) -> float:
    if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not logprob <= ROUNDING - 1:
        raise MissingLogprobs("the answer's top_logprobs are not log-probabilities")
    return math.exp(logprob)
