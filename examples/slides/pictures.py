"""Shows the best and the worst deck of a step side by side: `python -m examples.slides.pictures RUN`.

The command reads the rollouts with `agent-rft traces RUN --json`, draws their decks again and writes an HTML page.
`--name test-before test-after` shows the decks before training above the decks after training.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from examples.common.way import AGENT_RFT
from examples.slides.render import Chromium, Refused, Renderer, RenderFailed
from examples.slides.server import submitted

SHOWN_CHARS: Final = 600
HEAD: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Decks</title>
<meta http-equiv="content-security-policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
body { font: 15px/1.4 sans-serif; margin: 24px; background: #eee; color: #222 }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 24px; align-items: start }
img { width: 100%; border: 1px solid #999 }
.text { white-space: pre-wrap; overflow-wrap: anywhere }
</style>
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """Graded rollout that submitted a deck."""

    trace_id: str
    question: str
    grade: float
    reason: str
    html: str


def entries(lines: Iterable[str]) -> list[Entry]:
    """Return the rollouts that submitted a deck, best first, from the output lines of `agent-rft traces RUN --json`."""
    found = []
    for line in map(json.loads, lines):
        if line["kind"] == "rollout" and (html := submitted(_sample(line))) is not None:
            question = line["request"]["task"]["messages"][-1]["content"]
            found.append(Entry(line["trace_id"], question, line["grade"]["value"], line["grade"]["reason"], html))
    return sorted(found, key=lambda entry: -entry.grade)


def _sample(line: dict[str, Any]) -> dict[str, Any]:
    calls = [{"function": call} for turn in line["turns"] for call in turn["calls"]]
    return {"output_text": line["answer"], "output_tools": calls}


def page(steps: Mapping[str, Sequence[Entry]], renderer: Renderer) -> str:
    """Return the HTML page, which shows the best and the worst deck of each step."""
    parts = [HEAD]
    for name, found in steps.items():
        parts.append(f"<h1>{escape(name)}: {len(found)} decks</h1>")
        pair = {"best": found[0], "worst": found[-1]} if found else {}
        shown = "".join(f"<div>{_shown(title, entry, renderer)}</div>" for title, entry in pair.items())
        parts.append(f'<div class="pair">{shown}</div>\n' if pair else "<p>No rollout has submitted a deck.</p>\n")
    return "".join(parts)


def _shown(title: str, entry: Entry, renderer: Renderer) -> str:
    text = "".join(f'<p class="text">{escape(part[:SHOWN_CHARS])}</p>' for part in (entry.question, entry.reason))
    head = f"<h2>{title}: {entry.grade:.3f}, {escape(entry.trace_id)}</h2>{text}"
    try:
        png = base64.b64encode(renderer.draw(entry.html).png).decode()
    except (Refused, RenderFailed) as error:
        return f"{head}<p>Not drawn: {escape(str(error))}</p>"
    return f'{head}<img alt="" src="data:image/png;base64,{png}">'


def _lines(run: str, name: str | None) -> list[str]:
    command = [AGENT_RFT, "traces", run, "--json", *(["--name", name] if name else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.slides.pictures", description=__doc__)
    parser.add_argument("run", help="a run folder, or a server's job")
    parser.add_argument("--name", nargs="+", help="such as step-1, or test-before test-after; default: the newest")
    parser.add_argument("--out", type=Path, default=Path("build/slides/pictures.html"), help="default: %(default)s")
    options = parser.parse_args()
    steps = {name or "the newest": entries(_lines(options.run, name)) for name in options.name or [None]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page(steps, Chromium()), encoding="utf-8", errors="replace")
    print(options.out)


if __name__ == "__main__":
    main()
