"""How long commands take that start nothing, against an interpreter that ends at once.

    python -m benchmarks.cli [--runs 5]

Aims on two cores: `--help` 0.5 s, `plan` 2 s. `check` is given a job whose form has a mistake.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.common import Figure, in_turn, report, seconds

JOB = Path(__file__).parents[1] / "examples" / "ledger" / "job.yaml"


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mistaken = Path(folder) / "job.yaml"
        mistaken.write_text(JOB.read_text().replace("model: base", f"model: {JOB.parent / 'base'}\nsede: 1"))
        commands = {
            "help": ["--help"],
            "plan": ["plan", str(JOB)],
            "check_of_a_mistake": ["check", str(mistaken), "--runs", folder],
        }
        figures = []
        for name, arguments in commands.items():
            ours = partial(run, "-m", "agent_rft.cli.main", *arguments)
            bare = partial(run, "-c", "pass")
            seconds(ours)  # the first one reads files from disk
            figures.append(Figure(name, "s", in_turn(partial(seconds, ours), partial(seconds, bare), options.runs)))
    report(figures)


if __name__ == "__main__":
    main()
