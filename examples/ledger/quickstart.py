"""Runs the full example: starts tools and grader, trains, and compares the model before and after training.

Arguments are passed to `agent-rft train`. A job file as the first argument replaces job.yaml.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.ledger.services import run_with_services

JOB = Path(__file__).with_name("job.yaml")


def main() -> None:
    arguments = sys.argv[1:]
    job = arguments.pop(0) if arguments and not arguments[0].startswith("-") else str(JOB)
    agent_rft = str(Path(sys.executable).with_name("agent-rft"))
    sys.exit(run_with_services([agent_rft, "train", job, *arguments]))


if __name__ == "__main__":
    main()
