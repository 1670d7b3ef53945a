"""A judge's grade by the log-probabilities of its labels: how likely each is as the first token of its answer.

A judge that says something else than a label has not graded: there is no grade then, never a low one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from agent_rft.spec.graders import LabelModelGrader, ScoreModelGrader

NUM_TOKENS = 20
"""The most likely tokens that are asked for; the chat API gives no more."""
FORM = {"logprobs": True, "top_logprobs": NUM_TOKENS, "max_completion_tokens": 1, "temperature": 1, "top_p": 1}
"""The settings of a request. Some servers, such as ours, give log-probabilities after temperature and top_p."""
MIN_LABEL_SHARE = 0.5
"""Probability that the labels must have together, so that what the judge says most is a label."""
MIN_PREFIX_CHARS = 3
"""A token may be the beginning of a label, but not so short that it may as well begin another word ("in", "I")."""
ROUNDING = 1.001


class NoLogprobs(Exception):
    """The answer has no usable log-probabilities; the message says why."""


class NoLabel(Exception):
    """What the judge says is not a label; the message says what it is."""


def values_of(spec: ScoreModelGrader | LabelModelGrader) -> dict[str, float]:
    """The labels that a judge may say, with their grades: of a score, the digits of its range."""
    if isinstance(spec, LabelModelGrader):
        return {label: float(label in spec.passing_labels) for label in spec.labels}
    low, high = spec.range
    return {str(score): float(score) for score in range(int(low), int(high) + 1)}


def logprobs_problems(spec: ScoreModelGrader | LabelModelGrader) -> Iterator[tuple[str, str, str]]:
    """(field, mistake, remedy) of what cannot be told apart by one token."""
    if isinstance(spec, ScoreModelGrader):
        if not all(end in range(10) for end in spec.range):
            yield "range", "must be two digits, such as [0, 1] or [1, 5]", "use a range from 0 to 9 at most"
        return
    if len(spec.labels) > NUM_TOKENS:
        yield "labels", f"has more than {NUM_TOKENS} labels", "use fewer"
        return
    words = [label.casefold() for label in spec.labels]
    for i, word in enumerate(words):
        if not word or word != word.strip():
            yield "labels", f"{spec.labels[i]!r} is empty or has spaces around it", "use words, such as yes and no"
        elif any(other.startswith(word) for j, other in enumerate(words) if j != i):
            yield "labels", f"another label begins with {spec.labels[i]!r}", "use labels that begin differently"


def weighed(choice: Mapping[str, Any], values: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """The mean of `values` by the probabilities of their labels, and these probabilities.

    Raises:
        NoLogprobs: The choice of a chat completion has none.
        NoLabel: The judge says something else, more often than not.
    """
    likely = _likely(choice)
    shares = dict.fromkeys(values, 0.0)
    for token, share in likely:
        found = [label for label in values if _says(token, label)]
        if len(found) == 1:
            shares[found[0]] += share
    total = sum(shares.values())
    if total < MIN_LABEL_SHARE:
        says = ", ".join(f"{token[:20]!r} {share:.2f}" for token, share in likely[:3])
        raise NoLabel(f"its answer begins with a label with a probability of {total:.2f} only; it begins with {says}")
    return sum(values[label] * share for label, share in shares.items()) / total, shares


def _says(token: str, label: str) -> bool:
    """Whether a first token is a label, in upper or lower case, or its beginning."""
    word = token.strip()
    return word.casefold() == label.casefold() or (len(word) >= MIN_PREFIX_CHARS and label.startswith(word))


def _likely(choice: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(token, probability) of the most likely first tokens."""
    try:
        entries = choice["logprobs"]["content"][0]["top_logprobs"]
        likely = [(entry["token"], _probability(entry["logprob"])) for entry in entries]
    except (KeyError, IndexError, TypeError):
        raise NoLogprobs("its answer has no top_logprobs") from None
    if not likely or not all(isinstance(token, str) for token, _ in likely):
        raise NoLogprobs("its answer has no top_logprobs")
    if sum(share for _, share in likely) > ROUNDING:
        raise NoLogprobs("the probabilities in its top_logprobs add up to more than 1")
    return sorted(likely, key=lambda one: -one[1])


def _probability(logprob: Any) -> float:
    if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not logprob <= ROUNDING - 1:
        raise NoLogprobs("its top_logprobs are not log-probabilities")
    return math.exp(logprob)
