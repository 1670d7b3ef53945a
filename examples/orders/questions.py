"""Questions of customers, the calls and values that answer them, and the grading of answers.

A question has one to three parts. Each part needs one value and one call. All calls of a question can be concurrent.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from examples.orders.shop import DAYS, Shop, Split

Kind = Literal["ships", "price", "returns"]

ASKED: Final[dict[Kind, tuple[str, ...]]] = {
    "ships": ("when does order {} ship", "which day will order {} leave", "what day is order {} sent out"),
    "price": ("how much is the {}", "what does the {} cost", "what is the price of the {}"),
    "returns": (
        "how long can I return things in {}",
        "how many days do I have for returns in {}",
        "what is your return policy for {}",
    ),
}
SAID: Final[dict[Kind, str]] = {
    "ships": "It ships on {}.",
    "price": "The price is {} dollars.",
    "returns": "Returns are open for {} days.",
}
"""Sentence with which the shop's agent states a value, by kind of question."""
MIXES: Final[tuple[tuple[Kind, ...], ...]] = (
    *(("ships",), ("price",), ("returns",), ("ships", "price"), ("ships", "returns"), ("price", "returns")),
    ("ships", "price", "returns"),
)
"""Combinations of parts in a question, which are equally likely."""
JOINED: Final = ("{}, and {}?", "{}? And {}?", "{}? Also, {}?", "{} and {}?")
GREETINGS: Final = ("", "", "Hi! ", "Hello, ")
_WORD: Final = re.compile(r"[A-Za-z]+|[0-9]+")


class Call(NamedTuple):
    """A tool call: the tool's name and its only argument."""

    tool: str
    argument: str


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a question: its kind and wording, the expected value, and the call that finds the value."""

    kind: Kind
    text: str
    value: str
    call: Call


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    parts: tuple[Part, ...]


def draw_question(shop: Shop, rng: random.Random, split: Split) -> Question:
    """Return a random question about the products, countries and orders of a split. Its values are all different."""
    while True:
        parts = [_draw_part(shop, rng, split, kind) for kind in rng.choice(MIXES)]
        rng.shuffle(parts)
        if len({part.value for part in parts}) == len(parts):
            break
    *others, last = (part.text for part in parts)
    text = rng.choice(JOINED).format(", ".join(others), last) if others else f"{last}?"
    greeting = rng.choice(GREETINGS)
    return Question(greeting + (text if greeting else text[0].upper() + text[1:]), tuple(parts))


def _draw_part(shop: Shop, rng: random.Random, split: Split, kind: Kind) -> Part:
    match kind:
        case "price":
            subject = rng.choice(shop.products[split])
            value, tool = str(shop.prices[subject]), "product"
        case "returns":
            subject = rng.choice(shop.countries[split])
            value, tool = str(shop.returns[subject]), "policy"
        case "ships":
            subject = rng.choice(shop.numbers[split])
            value, tool = shop.orders[subject].ships, "order"
    return Part(kind, rng.choice(ASKED[kind]).format(subject), value, Call(tool, subject))


def grade(answer: str, question: str, values: Sequence[str]) -> float:
    """Return the share of the expected values that an answer names; other values in the answer reduce the grade.

    Values are numbers and days. An answer may repeat values of the question, such as the number of an order.
    """
    wanted, asked = set(values), set(_WORD.findall(question))
    named = {word for word in _WORD.findall(answer) if word.isdigit() or word in DAYS} - asked
    return len(wanted & named) / max(len(wanted), len(named))
