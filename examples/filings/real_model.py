"""A small model learns to summarise filings: graded untrained, a warm start, reinforcement, figures.

    python -m examples.filings.real_model FOLDER [--seed N] [--rubric first]

FOLDER is the model's, in Hugging Face's form, such as build/smollm2-135m-instruct. Each step is a command that you
could type; all files are written below `build/filings`. `--rubric first` trains with the rubric that can be fooled.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

from examples.common.way import AGENT_RFT, Way, listening
from examples.filings.results import BUILD, held_out_part, table
from examples.filings.server import app

HERE: Final = Path(__file__).parent


def traces(run: Path, name: str) -> list[str]:
    command = [AGENT_RFT, "traces", str(run), "--name", name, "--json"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.filings.real_model")
    parser.add_argument("model", type=Path, help="the model's folder, in Hugging Face's form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rubric", choices=("rubric", "first"), default="rubric")
    options = parser.parse_args()
    folder = BUILD / f"{options.rubric}-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with listening(app) as url:
        variables = {"FILINGS_URL": url, "FILINGS_SEED": str(options.seed), "FILINGS_RUBRIC": options.rubric}
        way = Way(HERE, folder, options.model.resolve(), variables, job="job_small")
        way.untrained()
        way.trained()
    (untrained,), trained = (folder / "untrained").iterdir(), folder / "reinforcement"
    graded = ((untrained, "eval-test"), (trained, "test-before"), (trained, "test-after"))
    stages = [
        stage | held_out_part(map(json.loads, traces(run, name)))
        for stage, (run, name) in zip(way.stages, graded, strict=True)
    ]
    summary = {"seed": options.seed, "rubric": options.rubric, "stages": stages}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\n{table([summary])}")


if __name__ == "__main__":
    main()
