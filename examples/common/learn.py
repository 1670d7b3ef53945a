"""Trains a small model on an example: evaluation of the base model, SFT warm-up, reinforcement, and a table.

    python -m examples.common.learn CASE MODEL [--seed N] [--set NAME=VALUE]

MODEL is a folder in Hugging Face format, such as build/smollm2-135m-instruct. Each step is a command that you could
type. All files are written below `build/CASE`; files of an earlier run with this seed are moved to
`build/CASE/previous`. The jobs `warm_start.yaml` and `job_small.yaml` of the case read the variables CASE_MODEL,
CASE_URL (of its server, which is started here), CASE_SEED, and CASE_NAME for each setting NAME.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.common.results import BUILD, CASES, EXAMPLES, TARGETS_S, table
from examples.common.way import Way, listening


def learn(case: str, model: Path, seed: int, settings: Mapping[str, str]) -> Path:
    """Train with one seed, and return the path of the summary. `settings` are the values that differ from CASES."""
    app = importlib.import_module(f"examples.{case}.server").app
    folder = BUILD / case / "-".join((f"seed-{seed}", *settings.values()))
    if folder.exists():
        previous = folder.parent / "previous" / folder.name
        shutil.rmtree(previous, ignore_errors=True)
        previous.parent.mkdir(exist_ok=True)
        folder.rename(previous)
    folder.mkdir(parents=True)
    with listening(app) as url:
        given = {"URL": url, "SEED": str(seed), **CASES[case], **settings}
        variables = {f"{case.upper()}_{name}": value for name, value in given.items()}
        example = EXAMPLES / case
        way = Way(example / "job_small.yaml", example, folder, model.resolve(), variables)
        way.untrained()
        way.trained()
    return way.write_summary(seed, [f"{name}={value}" for name, value in settings.items()])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.common.learn")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("model", type=Path, help="the model's folder, in Hugging Face's form")
    parser.add_argument("--seed", type=int, default=1, help="of the order of rows and of sampling (default: 1)")
    named = "; ".join(f"{case}: {', '.join(known)}" for case, known in CASES.items() if known)
    text = f"another value for a setting of the case, again for each ({named})"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help=text)
    options = parser.parse_args(arguments)
    if not (options.model / "config.json").is_file():
        parser.error(f"{options.model} is not the folder of a model: it has no config.json")
    known = CASES[options.case]
    settings = dict(setting.partition("=")[::2] for setting in options.settings)
    if wrong := [name for name in settings if name not in known]:
        parser.error(f"--set {wrong[0]}: the settings of {options.case} are {', '.join(known) or 'none'}")
    changed = {name: value for name, value in settings.items() if value != known[name]}
    summary = json.loads(learn(options.case, options.model, options.seed, changed).read_text())
    print(f"\n{table([summary], TARGETS_S.get(options.case))}")


if __name__ == "__main__":
    main()
