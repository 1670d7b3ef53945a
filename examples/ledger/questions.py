"""Questions about the reports, and the grading of answers."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from examples.ledger.vocabulary import METRICS, STATEMENT_OF, YEARS
from examples.ledger.world import World

Kind = Literal["one", "two", "higher"]

_VALUE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Question:
    """Question, the documents that answer it, and the right values in the order of the question."""

    kind: Kind
    text: str
    metric: str
    documents: tuple[str, ...]
    values: tuple[int, ...]

    @property
    def reference_answer(self) -> str:
        """Right values separated by spaces, against which an answer is graded."""
        return " ".join(map(str, self.values))


def ask(world: World, kind: Kind, metric: str, year: str, companies: Sequence[str]) -> Question:
    """Return a question about a metric in a year: about one company for the kind `one`, otherwise about two."""
    documents = tuple(f"{company}/{year}/{STATEMENT_OF[metric]}" for company in companies)
    values = tuple(world.values[path][metric] for path in documents)
    who = " and ".join(companies)
    match kind:
        case "one":
            text = f"what was {metric} of {who} in {year}?"
        case "two":
            text = f"what were {metric} of {who} in {year}?"
        case "higher":
            text = f"what was the higher {metric} of {who} in {year}?"
            values = (max(values),)
    return Question(kind, text, metric, documents, values)


def draw_question(world: World, rng: random.Random, companies: Sequence[str]) -> Question:
    """Return a random question: 60 % of kind `one`, 30 % `two` (companies), 10 % `higher` (of two values)."""
    draw = rng.random()
    metric = rng.choice(METRICS)
    year = rng.choice(YEARS)
    pair = rng.sample(companies, 2)
    if draw < 0.6:
        return ask(world, "one", metric, year, pair[:1])
    return ask(world, "two" if draw < 0.9 else "higher", metric, year, pair)


def grade(text: str, reference_answer: str) -> float:
    """Return 1 for exactly the numbers of the reference, 0.5 if each number is within 1 %, otherwise 0.

    Raises:
        ValueError: The reference is not a list of numbers.
    """
    words = text.split()
    right = [int(word) for word in reference_answer.split()]
    if not right:
        raise ValueError("the reference answer is empty")
    if len(words) != len(right) or not all(_VALUE.fullmatch(word) for word in words):
        return 0.0
    given = [int(word) for word in words]
    if given == right:
        return 1.0
    close = all(abs(value - wanted) <= 0.01 * wanted for value, wanted in zip(given, right, strict=True))
    return 0.5 if close else 0.0
