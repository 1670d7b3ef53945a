"""agent-rft: trains tool-using models on your own tools and grader.

Exit codes: 0 done, 1 failed, 2 the job or the command line is wrong, 3 the followed job was cancelled, 130 stopped by a
signal.
"""

# What a command needs of Ray, torch and the like it imports itself: --help, shell completion and the commands that only
# speak to a server start without them, in a fraction of a second.

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from actors.runtime.process import end_process, importing
from cluster.run.signals import STOPPED
from serve.cli import client as client_cli
from serve.cli.keys import DEFAULT_FOLDER, DatabaseUrl, Folder
from serve.cli.keys import app as keys_app
from trainer.errors import InvalidJob, RftError

if TYPE_CHECKING:
    from trainer.spec.job import JobSpec
    from trainer.spec.operator import Operator

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(keys_app, name="keys")
app.add_typer(client_cli.files, name="files")
app.add_typer(client_cli.jobs, name="jobs")
app.add_typer(client_cli.events, name="events")
app.add_typer(client_cli.checkpoints, name="checkpoints")
app.add_typer(client_cli.models, name="models")

JobFile = Annotated[Path, typer.Argument(help="the job, YAML or JSON")]
ClusterAddress = Annotated[
    str | None, typer.Option(help="Ray cluster (else RAY_ADDRESS, else a local one)", envvar="RAY_ADDRESS")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(help="the operator's configuration (else agent-rft.yaml here, if any)", envvar="AGENT_RFT_CONFIG"),
]
Runs = Annotated[Path, typer.Option(help="folder that gets the run's folder")]


@app.command("train")
def train_command(
    job: JobFile,
    runs: Runs = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="go on with the last checkpoint of this run folder")] = None,
    run_folder: Annotated[
        Path | None, typer.Option(help="train in this folder; from its last checkpoint where it has one")
    ] = None,
    address: ClusterAddress = None,
    config: ConfigFile = None,
) -> None:
    """Check a job, then train it."""
    operator = _operator(config)
    with importing():
        from cluster.run.driver import RunOutcome, train, train_in

    if run_folder is None:
        training = train(_load(job, runs, address, operator), runs, resume, address, operator)
    elif resume is None:
        training = train_in(_load(job, run_folder.parent, address, operator), run_folder, address, operator)
    else:
        raise typer.BadParameter("give --resume or --run-folder, not both")
    with _placed(job):
        outcome = asyncio.run(training)
    raise typer.Exit(STOPPED if outcome is RunOutcome.STOPPED else 0)


@app.command("eval")
def eval_command(
    job: JobFile,
    file: Annotated[str, typer.Option(help="training_file, validation_file or test_file of the job")] = "test_file",
    model: Annotated[str | None, typer.Option(help="another model than the job's: a folder, a checkpoint")] = None,
    samples: Annotated[int, typer.Option(min=1, help="rollouts per row")] = 1,
    runs: Runs = Path("runs"),
    address: ClusterAddress = None,
    config: ConfigFile = None,
) -> None:
    """Grade a model on a file without training; every trace is kept."""
    operator = _operator(config)
    with importing():
        from cluster.run.driver import RunOutcome, evaluate_model

    spec = _load(job, runs, address, operator)
    if model is not None:
        spec = spec.model_copy(update={"model": model})
    with _placed(job):
        outcome = asyncio.run(evaluate_model(spec, file, samples, runs, address, operator))
    raise typer.Exit(STOPPED if outcome is RunOutcome.STOPPED else 0)


@app.command("check")
def check_command(
    job: JobFile, runs: Runs = Path("runs"), address: ClusterAddress = None, config: ConfigFile = None
) -> None:
    """Find what is wrong with a job before anything is started; each tool and the grader is called once."""
    operator = _operator(config)
    with importing():
        from cluster.run.driver import check

    spec = _load(job, runs, address, operator)
    with _placed(job):
        asyncio.run(check(spec, runs, address, operator))


@app.command("plan")
def plan_command(
    job: JobFile,
    cluster: Annotated[Path | None, typer.Option(help="NODES.yaml: plan for these nodes instead")] = None,
    address: ClusterAddress = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Say who would go where, what memory each takes, and what does not fit (exit code 2). Starts nothing."""
    from cluster.planning.nodes import read_nodes, this_machine
    from cluster.planning.plan_view import plan_as_json, plan_of_file, print_cluster_plan
    from cluster.ray_cluster.session import ray_session

    if cluster is not None:
        plan = plan_of_file(job, read_nodes(cluster))
    elif address is not None:
        with ray_session(address) as nodes:
            plan = plan_of_file(job, nodes)
    else:
        plan = plan_of_file(job, [this_machine()])
    if as_json:
        typer.echo(json.dumps(plan_as_json(plan)))
    else:
        print_cluster_plan(Console(), plan)
    raise typer.Exit(2 if plan.lacking or plan.problems else 0)


def _operator(config: Path | None) -> Operator:
    from trainer.spec.operator_file import load_operator

    return load_operator(config)


def _load(path: Path, runs: Path, address: str | None, operator: Operator) -> JobSpec:
    """The job of a file. Where its form has mistakes, everything else that is wrong with it comes in the same list."""
    from cluster.run.driver import check
    from trainer.spec.job_file import load_job, read_job

    job, problems = read_job(path)
    if problems and job is not None:
        with _placed(path):
            asyncio.run(check(job, runs, address, operator, problems))
    return load_job(path)


@contextmanager
def _placed(job: Path) -> Iterator[None]:
    """Problems that are found behind the file, at an endpoint or in the model, get the line of their field, too."""
    from trainer.spec.job_file import with_lines

    try:
        yield
    except InvalidJob as error:
        raise InvalidJob(error.message, with_lines(job, error.problems)) from error


@app.command("traces")
def traces_command(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    name: Annotated[str | None, typer.Option(help="step-000001, validation-000005, test-before, ...")] = None,
    row: Annotated[str | None, typer.Option(help="only this row id")] = None,
    trace: Annotated[str | None, typer.Option(help="only this trace id")] = None,
    best: Annotated[int | None, typer.Option(help="the K of the highest grade")] = None,
    worst: Annotated[int | None, typer.Option(help="the K of the lowest grade")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> None:
    """Read the rollouts of a run: messages, tool calls, results, grades."""
    from cluster.records.run_folder import RunFolder
    from cluster.views.traces import print_traces, select_traces, trace_json

    traces = select_traces(RunFolder(run), name=name, row=row, trace=trace, best=best, worst=worst)
    if as_json:
        for found in traces:
            typer.echo(trace_json(found))
    else:
        print_traces(traces, Console(emoji=False))


@app.command("grade")
def grade_command(
    file: Annotated[Path, typer.Argument(help="a run folder, or a JSONL file of {sample, item}")],
    grader: Annotated[Path, typer.Option(help="the grader, YAML or JSON: alone, or as in method.reinforcement")],
    name: Annotated[str | None, typer.Option(help="of a run folder: step-000001, test-before, ...")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="runs; from two on, their differences are shown")] = 1,
    config: ConfigFile = None,
) -> None:
    """Run a grader over recorded rollouts: its grades, its errors and, run twice, its noise."""
    operator = _operator(config)
    from rich.progress import Progress

    from cluster.views.regrade import grade_file
    from cluster.views.regrade_report import print_summary, summary_of

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("grading", total=None)
        reinforcement, cases, runs = asyncio.run(
            grade_file(
                file,
                grader,
                operator,
                name=name,
                repeat=repeat,
                done=lambda count, total: progress.update(bar, completed=count, total=total),
            )
        )
    summary = summary_of(runs, reinforcement.grader.pass_threshold)
    print_summary(summary, [case.recorded for case in cases if case.recorded is not None], Console())
    if not summary.num_graded:
        raise RftError("the grader gave no grade at all")


@app.command("observe")
def observe_command(
    out: Annotated[Path, typer.Option(help="folder that gets the files; what is there is replaced")],
    address: ClusterAddress = None,
) -> None:
    """Write what a Prometheus and a Grafana need for this cluster: scraping, alerts, dashboards, a compose file."""
    from cluster.observability.files import write_pair
    from cluster.observability.targets import observed

    write_pair(out, observed(address))
    typer.echo(f"{out}: docker compose up -d in it, or see its README.md")


@app.command("serve")
def serve_command(
    folder: Folder = DEFAULT_FOLDER,
    database: DatabaseUrl = None,
    files: Annotated[str | None, typer.Option(help="fsspec URL of uploaded files (else the folder)")] = None,
    host: Annotated[str, typer.Option(help="address to listen at; 0.0.0.0 is all of this machine's")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8000,
    address: ClusterAddress = None,
    config: ConfigFile = None,
) -> None:
    """Serve OpenAI's API on this cluster until a signal. The first start prints an API key."""
    from cluster.ray_cluster.session import begin_with_token

    if address is None:
        begin_with_token()  # before all else, which it would do twice
    operator = _operator(config)
    from serve.host.state import Places
    from serve.local import run_server
    from trainer.spec.operator_file import config_path

    # Flushed: whoever started the server waits for these lines.
    tell = partial(print, flush=True)
    run_server(Places(folder, database, files), operator, host, port, address, tell, config_path(config))


def main() -> None:
    """Entry point; errors made for the user are printed without a traceback."""
    code = 0
    try:
        app()
    except SystemExit as end:  # every command ends so
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (asyncio.CancelledError, KeyboardInterrupt):
        code = STOPPED
    except InvalidJob as error:
        code = _told(error, 2)
    except RftError as error:
        code = _told(error, 1)
    end_process(code)


def _told(error: RftError, code: int) -> int:
    Console(stderr=True, emoji=False).print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True)
    return code


if __name__ == "__main__":
    main()
