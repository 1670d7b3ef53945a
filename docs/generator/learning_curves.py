"""docs/assets/learning.svg: grades and tool calls by step of two recorded runs, for the README."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DATA = Path("docs/assets/learning.json")
PATH = "docs/assets/learning.svg"
WIDTH, HEIGHT, PLOT_WIDTH, PLOT_HEIGHT = 900, 440, 370, 130
"""Pixels."""
FONT = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif'
STYLE = f"""text {{ font: 14px {FONT}; fill: #1f2937; }}
    .b {{ font-weight: 600; font-size: 16px; }} .s {{ fill: #4b5563; }} .e {{ text-anchor: end; }}
    .m {{ text-anchor: middle; }} .g {{ stroke: #e5e8ee; }}
    .c {{ fill: none; stroke: #5566c8; stroke-width: 2.4; stroke-linejoin: round; }}"""


def files() -> dict[str, str]:
    """Return the picture. The measured values are in DATA."""
    runs = json.loads((Path(__file__).parents[2] / DATA).read_text())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t">',
        f'  <title id="t">{" ".join(run["summary"] for run in runs)}</title>',
        f"  <style>\n    {STYLE}\n  </style>",
        f'  <rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="#f8fafc"/>',
    ]
    for column, run in enumerate(runs):
        left = 55 + column * (PLOT_WIDTH + 75)
        parts.append(f'  <text class="b" x="{left}" y="34">{run["title"]}</text>')
        parts.append(f'  <text class="s" x="{left}" y="54">{run["subtitle"]}</text>')
        parts += _plot("grade", run["steps"], run["grade"], 1.0, left, 84)
        parts += _plot("tool calls per rollout", run["steps"], run["tool_calls"], run["max_tool_calls"], left, 264)
    return {PATH: "\n".join([*parts, "</svg>"]) + "\n"}


def _plot(name: str, steps: Sequence[int], values: Sequence[float], top: float, left: int, y: int) -> Iterator[str]:
    """Yield the elements of one curve over the steps; the y axis goes from 0 to `top`."""
    bottom, last = y + PLOT_HEIGHT, steps[-1]

    def place(step: int, value: float) -> str:
        return f"{left + PLOT_WIDTH * (step - 1) / (last - 1):.0f} {bottom - PLOT_HEIGHT * value / top:.0f}"

    yield f'  <text class="s" x="{left}" y="{y - 8}">{name}: {values[0]:.2f} to {values[-1]:.2f}</text>'
    for share in (0, 0.5, 1):
        at = bottom - PLOT_HEIGHT * share
        yield f'  <path class="g" d="M{left} {at:.0f}h{PLOT_WIDTH}"/>'
        yield f'  <text class="s e" x="{left - 8}" y="{at + 5:.0f}">{share * top:g}</text>'
    for step in (1, *range(5, last + 1, 5)):
        x = place(step, 0).split()[0]
        yield f'  <text class="s m" x="{x}" y="{bottom + 20}">{step}</text>'
    points: list[Any] = [place(step, value) for step, value in zip(steps, values, strict=True)]
    yield f'  <path class="c" d="M{"L".join(points)}"/>'
