"""Writes the rows in `data/`: `python -m examples.icd10.make_data [FOLDER]`. The files are the same every time."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from examples.common.rows import turn, write_rows
from examples.icd10.codes import EXTRACT, SEARCH, CodeList
from examples.icd10.visits import Split, Visit, draw_visit, findings, split_of

NUM_WARM_START: Final = 160
NUM_TRAIN: Final = 160
NUM_TEST: Final = 120
SYSTEM: Final = {
    "role": "system",
    "content": "Code the visit: ICD-10-CM codes of what the doctor finds now, with its side. "
    "Search first. Answer with the codes alone, separated by commas.",
}
# Bad habits in the SFT warm-up's conversations, which reinforcement should correct.
NEEDLESS_SHARE: Final = 0.5
"""Share of conversations that also search for the finding that is only talked about."""
CODED_SHARE: Final = 0.5
"""Share of these conversations that also code this finding."""
ONE_BY_ONE_SHARE: Final = 0.5
"""Share of conversations with one search per turn, instead of all searches in one turn."""
SIDE_SHARE: Final = 0.8
"""Share of conversations that search with the side, so that the first result is right."""
VAGUE_SHARE: Final = 0.5
"""Share of conversations that use the unspecified code, among those that search without the side."""


def row(visit: Visit) -> dict[str, Any]:
    """Return the row of a task. Tools and graders receive the full row as `item`."""
    return {
        "messages": [SYSTEM, {"role": "user", "content": visit.transcript}],
        "tools": [SEARCH],
        "codes": visit.codes,
        "talked_about": visit.other.all_codes,
        "unspecified": [finding.unspecified for finding, _ in visit.found],
        "chapters": sorted({finding.chapter for finding in (visit.other, *(found for found, _ in visit.found))}),
    }


def conversation(codes: CodeList, visit: Visit, rng: random.Random) -> dict[str, Any]:
    """Return a row for the SFT warm-up, with or without each of the habits."""
    with_side = rng.random() < SIDE_SHARE
    vague = not with_side and rng.random() < VAGUE_SHARE
    coded = {
        f"{finding.name}, {side}" if with_side else finding.name: finding.unspecified if vague else finding.codes[side]
        for finding, side in visit.found
    }
    if rng.random() < NEEDLESS_SHARE:
        coded[visit.other.name] = visit.other.unspecified if rng.random() < CODED_SHARE else ""
    # In the order of the transcript and copied from it: a small model has to copy, and not to write.
    queries = sorted(coded, key=lambda query: visit.transcript.index(query.split(",")[0]))
    answer = [coded[query] for query in queries if coded[query]]
    turns = [[query] for query in queries] if rng.random() < ONE_BY_ONE_SHARE else [queries]
    messages = list(row(visit)["messages"])
    for number, searched in enumerate(turns):
        calls = (("search", {"query": query}, codes.search(query)) for query in searched)
        messages += turn(calls, prefix="abcdef"[number])
    return {"messages": [*messages, {"role": "assistant", "content": ", ".join(answer)}], "tools": [SEARCH]}


def visits(codes: CodeList, split: Split, rng: random.Random) -> Iterator[Visit]:
    """Yield random visits of a split; no transcript occurs twice."""
    known = [finding for finding in findings(codes) if split_of(finding) == split]
    seen = set[str]()
    while True:
        visit = draw_visit(known, rng)
        if visit.transcript not in seen:
            seen.add(visit.transcript)
            yield visit


def write_data(folder: Path) -> None:
    """Write all files; the folder is created if necessary."""
    codes, rng = CodeList.read(EXTRACT), random.Random(1)
    train, test = visits(codes, "train", rng), visits(codes, "test", random.Random(3))
    files = {
        "warm_start.jsonl": [conversation(codes, next(train), rng) for _ in range(NUM_WARM_START)],
        "train.jsonl": [row(next(train)) for _ in range(NUM_TRAIN)],
        "test.jsonl": [row(next(test)) for _ in range(NUM_TEST)],
    }
    for name, rows in files.items():
        write_rows(folder / name, rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.icd10.make_data", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=EXTRACT.parent, help="default: data/")
    write_data(parser.parse_args().folder)


if __name__ == "__main__":
    main()
