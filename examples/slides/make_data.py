"""Writes the same rows to `data/` on every run: `python -m examples.slides.make_data [FOLDER]`."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from examples.common.rows import turn, write_rows
from examples.slides.measures import Deck, Slide
from examples.slides.render import name_of
from examples.slides.rubric import describe
from examples.slides.world import TERMS, Report, Split, reports

DATA: Final = Path(__file__).parent / "data"
NUM_TRAIN, NUM_TEST_ROWS, NUM_STEP, NUM_WARM_START = 140, 100, 8, 32
POINTS: Final = {False: (2, 2, 3), True: (5, 6, 7)}
"""Possible numbers of points in a small task (False) and in a full task (True)."""
POINTS_OF_A_SLIDE: Final = 2
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "render",
        "description": "Draws the deck, checks its looks and names it.",
        "parameters": {"type": "object", "properties": {"html": {"type": "string"}}, "required": ["html"]},
    },
}
SMALL: Final = (
    "Make slides: <section><h1>title</h1><p>line</p></section>. Render them, then answer with the deck's name."
)
WHOLE: Final = (
    "You make decks of slides as HTML. Each slide is a <section> of 960 x 540 pixels with a heading. Lists, tables, "
    "divs, <style> and inline styles with colours, fonts, sizes, flex boxes, margins and borders are kept; scripts, "
    "images, positions and transforms are not. A slide is brief: lines, not sentences. All text is readable, nothing "
    "overflows. Say only what the source says. Render the deck, correct it until it is good, and submit it by name: "
    'answer with {"deck": "name"} and nothing else.'
)


def row(report: Report, topics: Sequence[str], points: Sequence[str], num_slides: int) -> dict[str, Any]:
    """Return the row of a task. The tool and the graders receive the complete row as `item`."""
    named = ", ".join(TERMS[point][0] for point in points)
    asked = f"{num_slides} slides on {report.company}: {named}.\nSource: {report.source(topics)}"
    system = WHOLE if len(topics) == len(report.facts) else SMALL
    return {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": asked}],
        "tools": [TOOL],
        "company": report.company,
        "topics": list(topics),
        "points": list(points),
        "slides": num_slides,
    }


def tasks(split: Split, rng: random.Random, *, whole: bool) -> Iterator[tuple[Report, dict[str, Any]]]:
    """Yield tasks without end. No company gets the same points twice. A small task has one slide for each point."""
    all_reports = [report for report in reports().values() if report.split == split]
    seen = set[tuple[str, frozenset[str]]]()
    while True:
        for report in all_reports:
            points = rng.sample(list(TERMS), rng.choice(POINTS[whole]))
            if (report.company, frozenset(points)) in seen:
                continue
            seen.add((report.company, frozenset(points)))
            others = [topic for topic in TERMS if topic not in points]
            topics = list(TERMS) if whole else sorted([*points, *rng.sample(others, 2)])
            num_slides = (len(points) + 1) // POINTS_OF_A_SLIDE if whole else len(points)
            yield report, row(report, topics, points, num_slides)


def slide(title: str, body: str) -> str:
    return f"<section><h1>{title}</h1>{body}</section>"


def deck_of(report: Report, points: Iterable[str]) -> str:
    """Return the HTML of an honest deck with one slide for each point."""
    facts = (report.facts[point] for point in points)
    return "".join(slide(fact.topic.capitalize(), f"<p>{fact.short}</p>") for fact in facts)


def conversation(report: Report, task: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a row for the SFT warm-up. In half of the rows, the first deck has no titles and is then corrected."""
    good = deck_of(report, task["points"])
    decks = [good.replace("h1>", "p>"), good] if rng.random() < 0.5 else [good]
    messages = list(task["messages"])
    for number, html in enumerate(decks):
        output = describe(name_of(html), _as_drawn(report, task["points"], titled=html is good))
        messages += turn([("render", {"html": html}, output)], first=number)
    messages.append({"role": "assistant", "content": name_of(good)})
    return {"messages": messages, "tools": task["tools"]}


def _as_drawn(report: Report, points: Sequence[str], *, titled: bool) -> Deck:
    """Return the measurements that the renderer would make of `deck_of`, so that Chromium is not needed."""
    lines = [(report.facts[point].topic.capitalize(), report.facts[point].short) for point in points]
    slides = [Slide(t if titled else "", (s,) if titled else (t, s), font_px=24, contrast=15.9) for t, s in lines]
    return Deck(len(slides), tuple(slides))


def write_data(folder: Path) -> None:
    """Write all data files to `folder`, which is created if necessary."""
    rng = random.Random(1)
    small = tasks("train", rng, whole=False)
    warm_start = [conversation(*next(small), rng) for _ in range(NUM_WARM_START)]
    train, test = (tasks(split, rng, whole=True) for split in ("train", "test"))
    files = {
        "warm_start": warm_start,
        "step": [next(small)[1] for _ in range(NUM_STEP)],
        "train": [next(train)[1] for _ in range(NUM_TRAIN)],
        "test": [next(test)[1] for _ in range(NUM_TEST_ROWS)],
    }
    for name, rows in files.items():
        write_rows(folder / f"{name}.jsonl", rows)


if __name__ == "__main__":
    write_data(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
