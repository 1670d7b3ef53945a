"""Asks a Prometheus what a dashboard's panels ask, and draws the answers in headless Chromium."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from agent_rft.cluster.observability.dashboards.grafana import CONSOLE, WINDOWS, Dashboard, dashboard_json
from tests.support.browser import program

PAGE = Path(__file__).parent / "page.jsx"
MODULES = Path("build/panels/node_modules")
WIDTH, HEAD, ROW = 1544, 96, 38
"""Pixels: of the page, of its head, and of one unit of a panel's height."""
POINTS, COLORS = 600, 256
"""The number of points of a curve, and of colors of a picture."""
DRAWN_S = 1800.0
"""Timeout of a page; on a free machine it takes seconds."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=20000", "--dump-dom",
)  # fmt: skip
LOADERS = [f"--loader:.{kind}=dataurl" for kind in ("ttf", "svg", "woff", "woff2", "eot")]
HTML = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css"><style>body {margin: 0}</style>
<div id="root"></div><script>window.process = {env: {}}; window.BOARD = %s</script><script src="page.js"></script>"""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows: Prometheus at `url` from `start` to `end` (Unix times), with these values of its variables."""

    url: str
    start: float
    end: float
    values: Mapping[str, str]

    def query(self, expr: str, *, now: bool) -> list[dict[str, Any]]:
        """The series of a panel's query; if `now`, only those that it has at the end."""
        step = max(1.0, (self.end - self.start) / POINTS)
        start = self.end if now else self.start
        asked: dict[str, str | float] = {
            "query": filled(expr, self.values),
            "start": start,
            "end": self.end,
            "step": step,
        }
        answer = httpx.get(f"{self.url}/api/v1/query_range", params=asked, timeout=60).raise_for_status()
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel as the page has drawn it."""

    title: str
    series: int


def filled(expr: str, values: Mapping[str, str]) -> str:
    """The query as Grafana sends it with these values of the page's variables; windows have their defaults."""
    windows = {name: choices[0] for name, (_, choices) in WINDOWS.items()}
    return re.sub(r"\$([a-z]\w*)", lambda found: (windows | dict(values))[found[1]], expr)


def bundle(modules: Path, out: Path) -> None:
    """Bundles the page with the packages in `modules` (a `node_modules`) as page.js and page.css."""
    out.mkdir(parents=True, exist_ok=True)
    options = ["--bundle", "--minify", "--log-level=error", f"--outfile={out / 'page.js'}", *LOADERS]
    esbuild = next(modules.resolve().glob("@esbuild/*/bin/esbuild"), None)
    if esbuild is None:
        raise FileNotFoundError(f"{modules} has no esbuild; `make nightly` installs the packages")
    subprocess.run([esbuild, PAGE, *options], check=True, env=os.environ | {"NODE_PATH": str(modules.resolve())})


def draw(dashboard: Dashboard, shown: Shown, folder: Path) -> list[Drawn]:
    """Writes the picture, named after the dashboard, into the folder of `bundle`; gives the panels with queries.

    Raises:
        RuntimeError: The page failed.
    """
    board = dashboard_json(dashboard)
    answers = {
        panel["id"]: [
            {
                "refId": target["refId"],
                "template": target["legendFormat"],
                "series": shown.query(target["expr"], now=target["instant"]),
            }
            for target in panel.get("targets", ())
        ]
        for panel in board["panels"]
    }
    data: dict[str, Any] = {"dashboard": board, "values": {"console": CONSOLE, **shown.values}, "answers": answers}
    data |= {"from": shown.start * 1000, "to": shown.end * 1000}
    page, picture = folder.resolve() / f"{dashboard.name}.html", folder / f"{dashboard.name}.png"
    page.write_text(HTML % json.dumps(data).replace("<", "\\u003c"))
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={WIDTH},{HEAD + ROW * bottom}"
        command = [program(), *FLAGS, f"--user-data-dir={profile}", size, f"--screenshot={picture}", page.as_uri()]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DRAWN_S)
    found = re.search(r'<script id="drawn" type="application/json">(.*?)</script>', done.stdout)
    if found is None:
        raise RuntimeError(f"{dashboard.name} was not drawn: {done.stderr[-2000:]}")
    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(COLORS).save(picture, optimize=True)
    return [Drawn(**panel) for panel in json.loads(found[1])]
