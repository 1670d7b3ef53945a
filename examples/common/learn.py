"""A small model goes through an example: graded untrained, a warm start, reinforcement, figures.

    python -m examples.common.learn CASE MODEL [--seed N] [--set NAME=VALUE]

MODEL is a folder in Hugging Face's form, such as build/smollm2-135m-instruct. Each step is a command that you could
type; all files are written below `build/CASE`. The jobs `warm_start.yaml` and `job_small.yaml` of the case read the
variables CASE_MODEL, CASE_URL (of its server, which is started here) and CASE_SEED; `--set` gives others, CASE_NAME.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
from pathlib import Path

from examples.common.results import BUILD, EXAMPLES, TARGETS_S, table
from examples.common.way import Way, listening

CASES = ("edit_planning", "filings", "finqa", "icd10", "kernels")


def learn(case: str, model: Path, seed: int, settings: dict[str, str]) -> Path:
    """Go the way of one seed; returns the file with its summary."""
    app = importlib.import_module(f"examples.{case}.server").app
    folder = BUILD / case / "-".join((f"seed-{seed}", *settings.values()))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with listening(app) as url:
        given = {"URL": url, "SEED": str(seed)} | settings
        variables = {f"{case.upper()}_{name}": value for name, value in given.items()}
        way = Way(EXAMPLES / case, folder, model.resolve(), variables, job="job_small")
        way.untrained()
        way.trained()
    return way.write_summary(seed, settings)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.common.learn")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("model", type=Path, help="the model's folder, in Hugging Face's form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    options = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in options.settings)
    summary = json.loads(learn(options.case, options.model, options.seed, settings).read_text())
    print(f"\n{table([summary], TARGETS_S.get(options.case))}")


if __name__ == "__main__":
    main()
