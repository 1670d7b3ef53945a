"""Writes the small data set in `data/`, the same every time: `python -m examples.finqa.make_data [FOLDER]`.

The generated reports pass through the converter like the release. `data/release.json` was written by hand.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from examples.common.rows import turn, write_rows
from examples.finqa.convert import Entry, documents, row, split_of
from examples.finqa.library import TOOLS, Library
from examples.finqa.world import Fact, entries, make_facts

DATA: Final = Path(__file__).parent / "data"
NUM_WARM_START: Final = 64
NUM_TRAIN: Final = 160
NUM_TEST: Final = 120
LIST_SHARE: Final = 0.5
"""Share of conversations that list the company's folder before the search. Training should unlearn it."""
CAT_SHARE: Final = 0.5
"""Share of conversations that read the page although the search has shown the figure, another habit to unlearn."""
BARE_SHARE: Final = 0.55
"""Share of conversations that answer without the unit, another habit to unlearn."""


def conversation(library: Library, fact: Fact, task: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a row for the SFT warm-up: a search for the figure, often with unnecessary calls."""
    calls: list[tuple[str, dict[str, str]]] = [("search", {"query": f"{fact.company} {fact.item} {fact.year}"})]
    if rng.random() < LIST_SHARE:
        calls.insert(0, ("list", {"folder": fact.company}))
    if rng.random() < CAT_SHARE:
        calls.append(("cat", {"path": fact.path}))
    messages = list(task["messages"])
    for number, call in enumerate(calls):
        messages += _called(library, *call, number)
    answer = str(fact.number) if rng.random() < BARE_SHARE else fact.answer
    return {"messages": [*messages, {"role": "assistant", "content": answer}], "tools": task["tools"]}


def _called(library: Library, name: str, arguments: dict[str, str], number: int) -> list[dict[str, Any]]:
    """Return the messages of a turn with one call, and its result."""
    return turn([(name, arguments, TOOLS[name].model_validate(arguments).run(library))], first=number)


def write_data(folder: Path) -> None:
    """Write all files; the folder is created if necessary."""
    facts = make_facts()
    made = [Entry.model_validate(each) for each in entries(facts)]
    pages = documents(made)
    library, rng = Library(pages), random.Random(2)
    tasks: Sequence[tuple[Fact, dict[str, Any]]] = [(fact, row(entry)) for fact, entry in zip(facts, made, strict=True)]
    train = [task for task in tasks if split_of(task[0].company) == "train"]
    test = [task for task in tasks if split_of(task[0].company) == "test"]
    warm = [conversation(library, *task, rng) for task in train[:NUM_WARM_START]]
    write_rows(folder / "documents.jsonl", (page.model_dump() for page in sorted(pages, key=lambda page: page.path)))
    write_rows(folder / "warm_start.jsonl", warm)
    write_rows(folder / "train.jsonl", [task for _, task in train[NUM_WARM_START : NUM_WARM_START + NUM_TRAIN]])
    write_rows(folder / "test.jsonl", [task for _, task in test[:NUM_TEST]])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.finqa.make_data", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help="default: data/")
    write_data(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
