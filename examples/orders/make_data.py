"""Writes the rows in `data/`: `python -m examples.orders.make_data`. The files are the same every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from examples.common.rows import turn, write_rows
from examples.orders.questions import SAID, Call, Question, draw_question
from examples.orders.shop import TOOLS, Shop, Split

DATA: Final = Path(__file__).parent / "data"
NUM_WARM_START: Final = 96
NUM_TRAIN: Final = 224
NUM_TEST: Final = 120
SYSTEM: Final = {"role": "system", "content": "You are the support agent of a shop."}
NEEDLESS_SHARE: Final = 0.75
"""Share of conversations about orders in which the agent also looks up and states the item's price, unasked."""
UNASKED: Final = "The {} costs {} dollars."
CHATTY: Final = ("{}", "Thank you for asking! {}", "{} Is there anything else?")


def row(question: Question) -> dict[str, Any]:
    """Return the row of a task. Tools and grader receive the full row as `item`, including `values`."""
    return {
        "messages": [SYSTEM, {"role": "user", "content": question.text}],
        "tools": [tool.schema() for tool in TOOLS.values()],
        "values": [part.value for part in question.parts],
    }


def conversation(shop: Shop, question: Question, rng: random.Random) -> dict[str, Any]:
    """Return a row for the SFT warm-up: an answer of the shop's agent, with more words and calls than needed."""
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": question.text}]
    calls = [part.call for part in question.parts]
    messages += _turn(shop, calls)
    said = [SAID[part.kind].format(part.value) for part in question.parts]
    ordered = [shop.orders[call.argument].item for call in calls if call.tool == "order"]
    if ordered and rng.random() < NEEDLESS_SHARE:
        messages += _turn(shop, [Call("product", item) for item in ordered])
        said += [UNASKED.format(item, shop.prices[item]) for item in ordered]
    messages.append({"role": "assistant", "content": rng.choice(CHATTY).format(" ".join(said))})
    return {"messages": messages, "tools": [tool.schema() for tool in TOOLS.values()]}


def _turn(shop: Shop, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Return the messages of one turn: the concurrent calls, and their results."""
    tools = [TOOLS[call.tool] for call in calls]
    return turn(
        (call.tool, {tool.parameter: call.argument}, tool.run(shop, call.argument))
        for tool, call in zip(tools, calls, strict=True)
    )


def _distinct(shop: Shop, rng: random.Random, split: Split) -> Iterator[Question]:
    seen = set[str]()
    while True:
        question = draw_question(shop, rng, split)
        if question.text not in seen:
            seen.add(question.text)
            yield question


def write_data(folder: Path) -> None:
    """Write all files; the folder is created if necessary."""
    shop, rng = Shop(), random.Random(1)
    train, test = _distinct(shop, rng, "train"), _distinct(shop, random.Random(3), "test")
    files = {
        "warm_start.jsonl": [conversation(shop, next(train), rng) for _ in range(NUM_WARM_START)],
        "train.jsonl": [row(next(train)) for _ in range(NUM_TRAIN)],
        "test.jsonl": [row(next(test)) for _ in range(NUM_TEST)],
    }
    for name, rows in files.items():
        write_rows(folder / name, rows)


if __name__ == "__main__":
    write_data(DATA)
