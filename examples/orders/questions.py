"""What customers ask, which calls and values answer it, and how an answer is graded.

A question has one to three parts, each of which wants one value. The price of what is in an order takes two calls, one
after the other; all other parts take one, and calls that do not need each other can go out together.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from examples.orders.shop import DAYS, Shop, Split

Kind = Literal["ships", "price", "returns", "paid"]

ASKED: Final[dict[Kind, tuple[str, ...]]] = {
    "ships": ("when does order {} ship", "which day will order {} leave", "what day is order {} sent out"),
    "price": ("how much is the {}", "what does the {} cost", "what is the price of the {}"),
    "returns": (
        "how long can I return things in {}",
        "how many days do I have for returns in {}",
        "what is your return policy for {}",
    ),
    "paid": (
        "how much is the item in order {}",
        "what does the item in order {} cost",
        "what is the price of what I bought in order {}",
    ),
}
SAID: Final[dict[Kind, str]] = {
    "ships": "It ships on {}.",
    "price": "The price is {} dollars.",
    "returns": "Returns are open for {} days.",
    "paid": "The price is {} dollars.",
}
"""How an agent of the shop puts the value."""
MIXES: Final[tuple[tuple[Kind, ...], ...]] = (
    *(("ships",), ("price",), ("returns",), ("paid",), ("paid",)),
    *(("ships", "price"), ("ships", "returns"), ("price", "returns"), ("paid", "returns")),
    ("ships", "price", "returns"),
)
"""The parts of a question; each mix is equally likely."""
JOINED: Final = ("{}, and {}?", "{}? And {}?", "{}? Also, {}?", "{} and {}?")
GREETINGS: Final = ("", "", "Hi! ", "Hello, ")
_WORD: Final = re.compile(r"[A-Za-z]+|[0-9]+")


class Call(NamedTuple):
    """A tool call: the tool's name and its only argument."""

    tool: str
    argument: str


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a question: its kind and wording, the value that it wants, and the calls that find it, in order."""

    kind: Kind
    text: str
    value: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    parts: tuple[Part, ...]


def draw_question(shop: Shop, rng: random.Random, split: Split) -> Question:
    """A random question about the products, countries and orders of a split. All its values are different."""
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
            value, calls = str(shop.prices[subject]), (Call("product", subject),)
        case "returns":
            subject = rng.choice(shop.countries[split])
            value, calls = str(shop.returns[subject]), (Call("policy", subject),)
        case "ships":
            subject = rng.choice(shop.numbers[split])
            value, calls = shop.orders[subject].ships, (Call("order", subject),)
        case "paid":
            subject = rng.choice(shop.numbers[split])
            item = shop.orders[subject].item
            return Part(
                kind,
                rng.choice(ASKED[kind]).format(subject),
                str(shop.prices[item]),
                (Call("order", subject), Call("product", item)),
            )
    return Part(kind, rng.choice(ASKED[kind]).format(subject), value, calls)


def grade(answer: str, question: str, values: Sequence[str]) -> float:
    """The share of the wanted values that an answer names; naming others as well lowers it.

    Values are numbers and days. Those that the customer said, such as an order's number, may be repeated.
    """
    wanted, asked = set(values), set(_WORD.findall(question))
    named = {word for word in _WORD.findall(answer) if word.isdigit() or word in DAYS} - asked
    return len(wanted & named) / max(len(wanted), len(named))
