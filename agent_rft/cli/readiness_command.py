"""Command `agent-rft ready JOB`: runs the readiness check of a job before training."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from agent_rft.actors.runtime.process_setup import fast_imports
from agent_rft.cli import completion
from agent_rft.cli.job_files import (
    ClusterAddress,
    ConfigFile,
    JobFile,
    Runs,
    add_line_numbers,
    read_job_file,
    read_operator,
    to_cli_arguments,
)
from agent_rft.cluster.run.stop_signals import STOPPED_EXIT_CODE

NOT_READY = 4
"""Exit code for the verdicts fix_first and sft_warm_up."""


def ready_command(
    job: JobFile,
    samples: Annotated[int, typer.Option(min=2, max=128, help="rollouts per row")] = 8,
    file: Annotated[
        Literal["training_file", "validation_file", "test_file"],
        typer.Option(help="file of the job with the rows to sample"),
    ] = "training_file",
    target_latency: Annotated[
        float | None,
        typer.Option(min=0.0, help="maximum seconds that the model and the tools should take per rollout"),
    ] = None,
    export_sft: Annotated[
        Path | None,
        typer.Option("--export-sft", help="output file for the best passing rollouts, as rows for a supervised job"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object; all other output goes to stderr")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="run folder of a stopped readiness check; the check is resumed", autocompletion=completion.run_folders
        ),
    ] = None,
    runs: Runs = Path("runs"),
    address: ClusterAddress = None,
    config: ConfigFile = None,
) -> None:
    """Sample each row several times and report a verdict: train, fix_first or sft_warm_up.

    The exit code is 0 for train and 4 for the other verdicts. The run folder contains readiness.html, which
    plots the variance of each row's rewards.
    """
    if resume is not None and not resume.is_dir():
        raise typer.BadParameter(f"{resume} is not a run folder", param_hint="--resume")
    spec, model, operator = read_job_file(job, read_operator(config), address)
    with fast_imports():
        from agent_rft.cluster.run.driver import check_readiness, claim_run
        from agent_rft.cluster.run.readiness_check import ReadinessOptions
        from agent_rft.cluster.views.readiness.readiness_text import print_readiness

    console = Console(stderr=as_json)
    check_options = ReadinessOptions(samples, file, target_latency, export_sft)
    options = {
        "--samples": samples,
        "--file": file,
        "--target-latency": target_latency,
        "--export-sft": export_sft,
        "--address": address,
        "--config": config,
    }
    with add_line_numbers(job), nullcontext() if resume is None else claim_run(resume, 0.0, console.print) as claimed:
        outcome, found = asyncio.run(
            check_readiness(
                spec,
                model,
                check_options,
                runs,
                address,
                operator,
                claimed=claimed,
                console=console,
                cli_args=[str(job), *to_cli_arguments(options)],
            )
        )
    if outcome == "stopped" or found is None:
        raise typer.Exit(STOPPED_EXIT_CODE)
    print_readiness(console, found)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    raise typer.Exit(0 if found.verdict == "train" else NOT_READY)
