"""`python -m docs.curves_picture RUN PICTURE.svg TITLE`: grade and tool calls of each training step of a run."""

import argparse
from html import escape
from pathlib import Path

from agent_rft.cluster.records.run_folder import open_run

WIDTH, HEIGHT, LEFT, TOP = 250, 150, 46, 76
"""Size of a plot, and position of the first one, in pixels."""
GAP = 70
PLOTS = (("train_mean_grade", "Grade", 1.0), ("tool_calls_mean", "Tool calls per rollout", None))
"""Metric, heading, and upper end of the axis if it is fixed."""
STYLE = (
    'text { font: 13px ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; '
    "fill: #4b5563; } .b { font-weight: 600; font-size: 15px; fill: #1f2937; } .m { text-anchor: middle; } "
    ".e { text-anchor: end; } .l { fill: none; stroke: #5566c8; stroke-width: 2; } .g { stroke: #d5dae3; }"
)

parser = argparse.ArgumentParser(prog="python -m docs.curves_picture", description="Draw a run's curves.")
parser.add_argument("run", type=Path, help="a run folder")
parser.add_argument("picture", type=Path, help="the SVG file to write")
parser.add_argument("title", help="the heading of the picture")
options = parser.parse_args()
steps = open_run(options.run).metrics()
width = LEFT + len(PLOTS) * (WIDTH + GAP) - GAP + 24
parts = [f'<text class="b" x="20" y="32">{escape(options.title)}</text>']
for i, (metric, heading, end) in enumerate(PLOTS):
    values = [step[metric] for step in steps]
    highest = end or max(1.0, -(-max(values) // 1))
    left, bottom = LEFT + i * (WIDTH + GAP), TOP + HEIGHT
    parts.append(f'<text x="{left}" y="{TOP - 12}">{heading}</text>')
    for share in (0, 0.5, 1):
        y = bottom - share * HEIGHT
        parts.append(f'<path class="g" d="M{left} {y}h{WIDTH}"/>')
        parts.append(f'<text class="e" x="{left - 8}" y="{y + 4}">{share * highest:g}</text>')
    points = " ".join(
        f"{left + n * WIDTH / max(1, len(values) - 1):.1f},{bottom - value / highest * HEIGHT:.1f}"
        for n, value in enumerate(values)
    )
    parts.append(f'<polyline class="l" points="{points}"/>')
    parts.append(f'<text class="m" x="{left}" y="{bottom + 20}">1</text>')
    parts.append(f'<text class="m" x="{left + WIDTH}" y="{bottom + 20}">{len(values)}</text>')
    parts.append(f'<text class="m" x="{left + WIDTH / 2}" y="{bottom + 20}">step</text>')
height = TOP + HEIGHT + 36
options.picture.write_text(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t">\n'
    f'<title id="t">{escape(options.title)}: grade and tool calls per rollout, by training step</title>\n'
    f'<style>{STYLE}</style><rect width="{width}" height="{height}" rx="14" fill="#f8fafc"/>\n'
    + "".join(f"{part}\n" for part in parts)
    + "</svg>\n"
)
