"""Writes the rows in `data/`: `python -m examples.orders.make_data`. The files are the same every time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from examples.orders.questions import SAID, Call, Question, draw_question
from examples.orders.shop import TOOLS, Shop, Split

DATA: Final = Path(__file__).parent / "data"
NUM_WARM_START: Final = 56
NUM_TRAIN: Final = 192
NUM_TEST: Final = 120
SYSTEM: Final = {"role": "system", "content": "You are the support agent of a shop."}
NEEDLESS_SHARE: Final = 0.75
"""How often the agent of the shop, having looked up an order, also looks up the price of its item, unasked."""
CHATTY: Final = ("{}", "Thank you for asking! {}", "{} Is there anything else?")


def row(question: Question) -> dict[str, Any]:
    """A task. Tools and grader get all of it as `item`, including `values`."""
    return {
        "messages": [SYSTEM, {"role": "user", "content": question.text}],
        "tools": [tool.schema() for tool in TOOLS.values()],
        "values": [part.value for part in question.parts],
    }


def conversation(shop: Shop, question: Question, rng: random.Random) -> dict[str, Any]:
    """A row for the warm start: how an agent of the shop answered, with more words and calls than needed."""
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": question.text}]
    calls = [part.call for part in question.parts]
    messages += _turn(shop, calls)
    ordered = [shop.orders[call.argument].item for call in calls if call.tool == "order"]
    if ordered and rng.random() < NEEDLESS_SHARE:
        messages += _turn(shop, [Call("product", item) for item in ordered])
    answer = " ".join(SAID[part.kind].format(part.value) for part in question.parts)
    messages.append({"role": "assistant", "content": rng.choice(CHATTY).format(answer)})
    return {"messages": messages, "tools": [tool.schema() for tool in TOOLS.values()]}


def _turn(shop: Shop, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Calls that go out together, and their results."""
    named = [(f"call_{i}", call) for i, call in enumerate(calls)]
    results = [
        {"role": "tool", "tool_call_id": call_id, "content": TOOLS[call.tool].run(shop, call.argument)}
        for call_id, call in named
    ]
    return [{"role": "assistant", "content": None, "tool_calls": [_call_form(*call) for call in named]}, *results]


def _call_form(call_id: str, call: Call) -> dict[str, Any]:
    arguments = json.dumps({TOOLS[call.tool].parameter: call.argument})
    return {"id": call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


def _distinct(shop: Shop, rng: random.Random, split: Split) -> Iterator[Question]:
    seen = set[str]()
    while True:
        question = draw_question(shop, rng, split)
        if question.text not in seen:
            seen.add(question.text)
            yield question


def write_data(folder: Path) -> None:
    """Write all files; the folder is created if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    shop, rng = Shop(), random.Random(1)
    train, test = _distinct(shop, rng, "train"), _distinct(shop, random.Random(3), "test")
    files = {
        "warm_start.jsonl": [conversation(shop, next(train), rng) for _ in range(NUM_WARM_START)],
        "train.jsonl": [row(next(train)) for _ in range(NUM_TRAIN)],
        "test.jsonl": [row(next(test)) for _ in range(NUM_TEST)],
    }
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write_data(DATA)
