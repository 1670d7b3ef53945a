"""Command `agent-rft compare`: shows differences between models, checkpoints, runs or evaluations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from agent_rft.cli import completion
from agent_rft.cli.job_files import to_cli_arguments
from agent_rft.errors import UserError

File = Literal["test_file", "validation_file", "training_file"]


def compare_command(
    sides: Annotated[
        list[str],
        typer.Argument(
            help="two or more evaluations, each a run folder or a rollout file such as RUN:test-before; with --job, "
            "also folders of models or checkpoints",
            autocompletion=completion.run_folders,
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="rollout file to use in each run folder, such as test-after or validation-5"),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(help="job file to evaluate the models with; evaluations already recorded in --runs are reused"),
    ] = None,
    file: Annotated[
        File | None,
        typer.Option(
            help="file of rows to compare. Default: the file of the first evaluation that is given with its name, such "
            "as RUN:test-after. If no name is given: the test file if all runs have evaluated it, otherwise the "
            "validation file or the training file. With --job: the test file"
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="rollouts per row when models are evaluated with --job")] = 1,
    runs: Annotated[
        Path, typer.Option(help="with --job: folder in which recorded evaluations are found and new ones are saved")
    ] = Path("runs"),
    address: Annotated[
        str | None,
        typer.Option(help="address of a running Ray cluster for evaluations: HOST:PORT or auto", envvar="RAY_ADDRESS"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="operator's configuration (default: ./agent-rft.yaml, if it exists)", envvar="AGENT_RFT_CONFIG"
        ),
    ] = None,
    target_latency: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="maximum seconds that the model and the tools should take per rollout; the output shows the share of "
            "rollouts that take longer",
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=0, help="number of rows to show in each list: most improved and most worsened")
    ] = 3,
    html: Annotated[Path | None, typer.Option(help="HTML file to write, with charts and traces")] = None,
    png: Annotated[
        Path | None, typer.Option(help="PNG image to write, with charts but without traces; requires Chromium")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object that contains every row")] = False,
) -> None:
    """Compare each evaluation with the first one, row by row: grades, reward, time, tokens, calls and tools."""
    from agent_rft.cluster.views.comparison.comparison_page import write_page, write_png
    from agent_rft.cluster.views.comparison.comparison_stats import compare_evaluations, comparison_json
    from agent_rft.cluster.views.comparison.comparison_table import print_comparison
    from agent_rft.cluster.views.comparison.evaluation_selection import load_evaluations

    if len(sides) < 2:
        raise typer.BadParameter(
            "give two or more evaluations; for example, RUN:test-before RUN:test-after compares a run before and after "
            "training"
        )
    evaluate = None if job is None else _ModelEvaluator(job, file or "test_file", samples, runs, address, config)
    chosen = file or (None if job is None else "test_file")
    found = load_evaluations(sides, name=name, file=chosen, evaluate=evaluate)
    comparison = compare_evaluations(found, rows, target_latency)
    if html is not None:
        write_page(comparison, html)
    if png is not None:
        write_png(comparison, png)
    if as_json:
        from agent_rft.cluster.records.redaction import to_plain_json

        typer.echo(json.dumps(to_plain_json(comparison_json(comparison))))
    else:
        print_comparison(comparison, Console(emoji=False))
        for path in filter(None, (html, png)):
            typer.echo(f"written to {path}")


class _ModelEvaluator:
    """Callable that returns the run folder with the evaluation of a model.

    If there is no recorded evaluation, it runs `agent-rft eval` in a separate process.
    """

    def __init__(
        self, job: Path, file: File, samples: int, runs: Path, address: str | None, config: Path | None
    ) -> None:
        from agent_rft.spec.job_file import load_job

        self._path, self._job = job, load_job(job)
        if getattr(self._job, file) is None:
            raise UserError(f"{job} does not set {file}; set {file}, or choose another file with --file")
        self._file, self._samples, self._runs = file, samples, runs
        self._others = to_cli_arguments({"--address": address, "--config": config})

    def __call__(self, model: Path) -> Path:
        from agent_rft.cluster.views.comparison.evaluation_selection import find_recorded_evaluation

        job = self._job.model_copy(update={"model": str(model)})
        known = find_recorded_evaluation(self._runs, job, model, self._file, self._samples)
        if known is not None:
            Console(stderr=True).print(f"{model}: reusing the evaluation in {known}", highlight=False, soft_wrap=True)
            return known
        options = ("--model", model, "--file", self._file, "--samples", self._samples, "--runs", self._runs)
        command = [sys.executable, "-P", "-m", "agent_rft.cli.main", "eval", self._path, *options, *self._others]
        ended = subprocess.run([*map(str, command)], stdout=sys.stderr.fileno())  # stdout is for the JSON
        made = find_recorded_evaluation(self._runs, job, model, self._file, self._samples)
        if ended.returncode or made is None:
            raise UserError(f"{model} was not evaluated: agent-rft eval failed with exit code {ended.returncode}")
        return made
