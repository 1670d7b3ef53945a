"""`agent-rft compare`: what has changed between models, checkpoints, runs or evaluations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from agent_rft.cli import completion
from agent_rft.cli.job_files import given_options
from agent_rft.errors import UserError

File = Literal["test_file", "validation_file", "training_file"]


def compare_command(
    sides: Annotated[
        list[str],
        typer.Argument(
            help="two or more: a run folder, RUN:test-before, or with --job the folder of a model or checkpoint",
            autocompletion=completion.run_folders,
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="which rollouts of runs given without one: test-after, validation-5, ...")
    ] = None,
    job: Annotated[
        Path | None, typer.Option(help="the job to evaluate models with; an evaluation that is in --runs is reused")
    ] = None,
    file: Annotated[
        File | None,
        typer.Option(help="which file (default: the first of test, validation and training that all sides have)"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="rollouts per row of models that are evaluated")] = 1,
    runs: Annotated[Path, typer.Option(help="folder with the runs of evaluations, for those of models")] = Path("runs"),
    address: Annotated[
        str | None,
        typer.Option(help="a running Ray cluster for evaluations, HOST:PORT or auto", envvar="RAY_ADDRESS"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="the operator's configuration (default: agent-rft.yaml here, if it exists)", envvar="AGENT_RFT_CONFIG"
        ),
    ] = None,
    target_latency: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="wanted model and tool time of a rollout, in seconds: shows the share of slower ones"
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="how many rows that gained and lost most to show")] = 3,
    html: Annotated[Path | None, typer.Option(help="write a page with charts and traces, one file")] = None,
    png: Annotated[Path | None, typer.Option(help="write it as an image, without traces; needs Chromium")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object, with each row")] = False,
) -> None:
    """Compare evaluations row by row with the first: grades, reward, time, tokens, calls, tools, single rows."""
    from agent_rft.cluster.views.comparison.compare import compare_sides, comparison_json
    from agent_rft.cluster.views.comparison.page import write_page, write_png
    from agent_rft.cluster.views.comparison.sides import sides_of
    from agent_rft.cluster.views.comparison.table import print_comparison

    if len(sides) < 2:
        raise typer.BadParameter("give two or more; for one run before and after: RUN:test-before RUN:test-after")
    evaluate = None if job is None else _Evaluate(job, file or "test_file", samples, runs, address, config)
    chosen = file or (None if job is None else "test_file")
    found = sides_of(sides, name=name, file=chosen, evaluate=evaluate)
    comparison = compare_sides(found, rows, target_latency)
    if html is not None:
        write_page(comparison, html)
    if png is not None:
        write_png(comparison, png)
    if as_json:
        from agent_rft.cluster.records.redact import plain

        typer.echo(json.dumps(plain(comparison_json(comparison))))
    else:
        print_comparison(comparison, Console(emoji=False))
        for path in filter(None, (html, png)):
            typer.echo(f"written to {path}")


class _Evaluate:
    """Grades models with a job, each once, by `agent-rft eval` in a process of its own."""

    def __init__(
        self, job: Path, file: File, samples: int, runs: Path, address: str | None, config: Path | None
    ) -> None:
        from agent_rft.spec.job_file import load_job

        self._path, self._job = job, load_job(job)
        if getattr(self._job, file) is None:
            raise UserError(f"{job} has no {file}; add it, or choose another with --file")
        self._file, self._samples, self._runs = file, samples, runs
        self._others = given_options({"--address": address, "--config": config})

    def __call__(self, model: Path) -> Path:
        from agent_rft.cluster.views.comparison.sides import recorded_evaluation

        job = self._job.model_copy(update={"model": str(model)})
        known = recorded_evaluation(self._runs, job, model, self._file, self._samples)
        if known is not None:
            Console(stderr=True).print(f"{model}: the evaluation in {known} is reused", highlight=False, soft_wrap=True)
            return known
        options = ("--model", model, "--file", self._file, "--samples", self._samples, "--runs", self._runs)
        command = [sys.executable, "-P", "-m", "agent_rft.cli.main", "eval", self._path, *options, *self._others]
        ended = subprocess.run([*map(str, command)], stdout=sys.stderr.fileno())  # else it would be within the JSON
        made = recorded_evaluation(self._runs, job, model, self._file, self._samples)
        if ended.returncode or made is None:
            raise UserError(f"{model} was not evaluated: agent-rft eval ended with exit code {ended.returncode}")
        return made
