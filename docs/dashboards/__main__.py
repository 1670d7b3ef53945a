"""`python -m docs.dashboards URL START END`: pictures of what the Prometheus at URL has between two Unix times.

`make panels` installs what it needs below build/, and `make dashboards` draws what a short job leaves, too. Pictures of
the manual are in docs/assets/dashboards.
"""

import argparse
from pathlib import Path

from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from docs.dashboards.draw import MODULES, Shown, bundle, draw

parser = argparse.ArgumentParser(prog="python -m docs.dashboards", description="Draw the Grafana dashboards.")
parser.add_argument("url", help="of Prometheus")
parser.add_argument("start", type=float, help="Unix time")
parser.add_argument("end", type=float, help="Unix time")
parser.add_argument("--job", default=".+", help="the job to choose; by default all")
parser.add_argument("--window", default="5m", help="average over")
parser.add_argument("--steps", default="1h", help="average steps over")
parser.add_argument("--out", type=Path, default=Path("build/dashboards"), help="folder of the pictures")
parser.add_argument("names", nargs="*", help="of the dashboards; by default all")
options = parser.parse_intermixed_args()
bundle(MODULES, options.out)
values = {"job": options.job, "endpoint": ".+", "window": options.window, "steps": options.steps}
shown = Shown(options.url, options.start, options.end, values)
for dashboard in DASHBOARDS:
    if dashboard.name in (options.names or dashboard.name):
        for panel in draw(dashboard, shown, options.out):
            if not panel.series:
                print(f"{dashboard.name}: {panel.title!r} is empty")
