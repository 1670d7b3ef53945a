"""`python -m docs.console_pictures RUN [--out FOLDER]`: takes pictures of the console of a run folder.

The pictures of the manual are in docs/assets/console. They show a run of `make quickstart`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.support.browser import PHONE, WIDE, chromium

PAGES = (
    ("job", "jobs/{job}", WIDE, "light", 465),
    ("rollouts", "jobs/{job}/rollouts?file=test-after", WIDE, "light", 0),
    ("rollout", "jobs/{job}/rollouts/test-after.0", WIDE, "dark", 0),
    ("phone", "jobs/{job}", PHONE, "dark", 900),
)
"""Name of the picture, address, size, colors, and how many pixels it is scrolled down."""

parser = argparse.ArgumentParser(prog="python -m docs.console_pictures", description="Take pictures of the console.")
parser.add_argument("run", type=Path, help="a run folder")
parser.add_argument("--out", type=Path, default=Path("docs/assets/console"), help="folder of the pictures")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
command = [sys.executable, "-m", "agent_rft.serve.host.run_console", str(options.run)]
with (
    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as console,
    chromium() as browser,
):
    assert console.stdin is not None and console.stdout is not None
    address = console.stdout.readline().strip()
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.goto(f"{address.split('#')[0]}#/jobs")
    link = page.locator("a[href^='#/jobs/ftjob-']").first
    link.wait_for()
    job = link.get_attribute("href").removeprefix("#/jobs/").split("/")[0]
    for name, where, size, colors, down in PAGES:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=colors)
        page.goto(f"{address.split('#')[0]}#/{where.format(job=job)}")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(2000)
        page.mouse.wheel(0, down)
        page.wait_for_timeout(500)
        page.screenshot(path=options.out / f"{name}.png")
    console.stdin.close()
