"""The shop with its products, policies and orders, and the three tools that look them up.

The same seed gives the same shop. Training and test share no products, countries or orders to memorize.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

Split = Literal["train", "test"]

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PRODUCTS: Final = """\
lamp chair table mirror kettle clock basket blanket pillow carpet shelf ladder hammer drill saw rope bucket broom brush
candle vase plate bowl cup spoon knife fork pan pot jar bottle tray towel soap sponge bag belt hat scarf coat jacket
shirt dress skirt shoe boot sock glove ring watch camera radio phone tablet keyboard mouse speaker printer guitar piano
drum flute book pen pencil notebook ruler map globe tent bike helmet ball kite sled puzzle doll robot"""
COUNTRIES: Final = """\
Norway Sweden Finland Denmark Iceland Ireland France Spain Portugal Italy Greece Austria Poland Hungary Romania Bulgaria
Croatia Serbia Turkey Egypt Morocco Kenya Ghana Nigeria Canada Mexico Cuba Peru Chile Brazil Colombia Ecuador Japan
China India Nepal Thailand Vietnam Malaysia Indonesia Israel Jordan Iran Germany Belgium Switzerland"""
NUM_ORDERS: Final = 400
TEST_SHARE: Final = 0.3
NOT_FOUND: Final = "not found"


class Order(NamedTuple):
    item: str
    ships: str


class Shop:
    """Data for the tools: prices by product, days for returns by country, and orders by number."""

    def __init__(self, seed: int = 0) -> None:
        rng = random.Random(seed)
        numbers = map(str, rng.sample(range(1000, 10_000), NUM_ORDERS))
        self.products = _shuffled_and_split(PRODUCTS.split(), rng)
        self.countries = _shuffled_and_split(COUNTRIES.split(), rng)
        self.numbers = _shuffled_and_split(numbers, rng)
        self.prices = {product: rng.randint(10, 99) for of_split in self.products.values() for product in of_split}
        self.returns = {country: rng.randint(10, 60) for of_split in self.countries.values() for country in of_split}
        self.orders = {
            number: Order(rng.choice(self.products[split]), rng.choice(DAYS))
            for split, of_split in self.numbers.items()
            for number in of_split
        }

    def order(self, number: str) -> str:
        found = self.orders.get(number.strip())
        return f"item: {found.item}, ships: {found.ships}" if found else NOT_FOUND

    def product(self, name: str) -> str:
        price = self.prices.get(name.strip())
        return f"price: {price}" if price else NOT_FOUND

    def policy(self, country: str) -> str:
        days = self.returns.get(country.strip())
        return f"returns: {days} days" if days else NOT_FOUND


def _shuffled_and_split(names: Iterable[str], rng: random.Random) -> dict[Split, list[str]]:
    shuffled = list(names)
    rng.shuffle(shuffled)
    num_test = round(TEST_SHARE * len(shuffled))
    return {"train": shuffled[num_test:], "test": shuffled[:num_test]}


@dataclass(frozen=True, slots=True)
class Tool:
    """Tool with one argument, a string."""

    name: str
    parameter: str
    description: str
    run: Callable[[Shop, str], str]

    def schema(self) -> dict[str, Any]:
        """Return the tool's description for the model, in OpenAI's format."""
        properties = {self.parameter: {"type": "string"}}
        parameters = {"type": "object", "properties": properties, "required": [self.parameter]}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


TOOLS: Final = {
    tool.name: tool
    for tool in (
        Tool("order", "number", "the day an order ships, and its item", Shop.order),
        Tool("product", "item", "what a product costs", Shop.product),
        Tool("policy", "country", "return policy of a country, in days", Shop.policy),
    )
}
