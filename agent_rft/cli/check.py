"""`agent-rft check JOB` and `agent-rft plan JOB`: problems and layout of a job that is not started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from agent_rft.actors.runtime.process import importing
from agent_rft.cli.job_files import ClusterAddress, ConfigFile, JobFile, Runs, job_lines, read_job_file, read_operator

if TYPE_CHECKING:
    from agent_rft.cluster.preflight.shown_prompt import ShownPrompt

TRAINED = ("⟦", "⟧")
"""Around what is trained, which a terminal also colours."""


def check_command(
    job: JobFile,
    runs: Runs = Path("runs"),
    address: ClusterAddress = None,
    config: ConfigFile = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="print what the model sees of the first row, and what is trained")
    ] = False,
) -> None:
    """Check a job without starting it; each tool and the grader are called once. All problems are listed."""
    spec, model, operator = read_job_file(job, read_operator(config), address)
    with importing():
        from agent_rft.cluster.preflight.shown_prompt import first_prompt
        from agent_rft.cluster.run.driver import check

    if show_prompt and (shown := first_prompt(spec, model)) is not None:
        print_prompt(Console(highlight=False), shown)
    with job_lines(job):
        asyncio.run(check(spec, model, runs, address, operator))


def print_prompt(console: Console, shown: ShownPrompt) -> None:
    """Print each sample as text with its special tokens, then how it was rendered."""
    for number, pieces in enumerate(shown.samples, start=1):
        title = (
            "the first row" if len(shown.samples) == 1 else f"the first row, sample {number} of {len(shown.samples)}"
        )
        console.print(Rule(title, align="left"))
        text = Text()
        for piece, trained in pieces:
            text.append(f"{TRAINED[0]}{piece}{TRAINED[1]}" if trained else piece, "green" if trained else "")
        console.print(text, soft_wrap=True)
    console.print(Rule())
    dialect = shown.dialect
    trained = any(trained for pieces in shown.samples for _, trained in pieces)
    parser = "no tool parser" if dialect.tool_parser is None else f"parser {dialect.tool_parser}"
    facts = [f"{shown.num_tokens:,} tokens", f"family {dialect.family}", parser]
    facts += [
        f"turns end with {' '.join(shown.end_tokens)}",
        *([f"{TRAINED[0]}trained{TRAINED[1]}"] if trained else []),
    ]
    console.print(Text(", ".join(facts)), soft_wrap=True)


def plan_command(
    job: JobFile,
    cluster: Annotated[
        Path | None, typer.Option(help="a list of nodes, YAML: plan for these instead of this machine")
    ] = None,
    address: ClusterAddress = None,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="plan the layout with the fewest GPUs, and show the settings that fix it")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Show where a job's processes would run, what their nodes need, and what does not fit (exit code 2).

    Starts nothing.
    """
    from agent_rft.cluster.planning.nodes import read_nodes, this_machine
    from agent_rft.cluster.planning.plan_view import print_planned, request_of_file

    if cluster is not None:
        request = request_of_file(job, read_nodes(cluster))
    elif address is not None:
        from agent_rft.cluster.ray_cluster.session import ray_session

        with ray_session(address) as nodes:
            request = request_of_file(job, nodes)
    else:
        request = request_of_file(job, [this_machine()])
    fits = print_planned(Console(), request, smallest=smallest, as_json=as_json)
    raise typer.Exit(0 if fits else 2)
