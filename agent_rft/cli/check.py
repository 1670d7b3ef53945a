"""Commands `agent-rft check JOB` and `agent-rft plan JOB`: show problems and placement of a job without starting it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from agent_rft.actors.runtime.process_setup import fast_imports
from agent_rft.cli.job_files import (
    ClusterAddress,
    ConfigFile,
    JobFile,
    Runs,
    add_line_numbers,
    read_job_file,
    read_operator,
)

if TYPE_CHECKING:
    from agent_rft.cluster.checks.prompt_preview import PromptPreview

TRAINED_MARKS = ("⟦", "⟧")
"""Characters before and after trained text. On color terminals, the text is also green."""


def check_command(
    job: JobFile,
    runs: Runs = Path("runs"),
    address: ClusterAddress = None,
    config: ConfigFile = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="print the first row as the model sees it, and mark the trained text")
    ] = False,
) -> None:
    """Check a job without starting it, and list all problems. The check calls each tool and the grader once."""
    spec, model, operator = read_job_file(job, read_operator(config), address)
    with fast_imports():
        from agent_rft.cluster.checks.prompt_preview import preview_prompt
        from agent_rft.cluster.run.driver import check

    if show_prompt and (preview := preview_prompt(spec, model)) is not None:
        print_prompt(Console(highlight=False), preview)
    with add_line_numbers(job):
        asyncio.run(check(spec, model, runs, address, operator))


def print_prompt(console: Console, preview: PromptPreview) -> None:
    """Print each training sample of a row as the model reads it, with marks around trained text.

    The last line contains the number of tokens, model family, tool parser and stop tokens.
    """
    for number, pieces in enumerate(preview.samples, start=1):
        title = (
            "the first row"
            if len(preview.samples) == 1
            else f"the first row, sample {number} of {len(preview.samples)}"
        )
        console.print(Rule(title, align="left"))
        text = Text()
        for piece, trained in pieces:
            text.append(
                f"{TRAINED_MARKS[0]}{piece}{TRAINED_MARKS[1]}" if trained else piece, "green" if trained else ""
            )
        console.print(text, soft_wrap=True)
    console.print(Rule())
    dialect = preview.dialect
    trained = any(trained for pieces in preview.samples for _, trained in pieces)
    parser = "no tool parser" if dialect.tool_parser is None else f"parser {dialect.tool_parser}"
    facts = [f"{preview.num_tokens:,} tokens", f"family {dialect.family}", parser]
    facts += [
        f"stop tokens {' '.join(preview.stop_tokens)}",
        *([f"{TRAINED_MARKS[0]}trained{TRAINED_MARKS[1]}"] if trained else []),
    ]
    console.print(Text(", ".join(facts)), soft_wrap=True)


def plan_command(
    job: JobFile,
    cluster: Annotated[
        Path | None, typer.Option(help="YAML file with the nodes to plan for (default: this machine)")
    ] = None,
    address: ClusterAddress = None,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="plan with as few GPUs as possible, and print the settings to use")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show the placement of a job's processes and the resources that each node needs, without starting anything.

    The exit code is 2 if the job does not fit on the nodes.
    """
    from agent_rft.cluster.planning.plan_nodes import read_local_node, read_nodes
    from agent_rft.cluster.planning.plan_view import plan_and_print, read_request

    if cluster is not None:
        request = read_request(job, read_nodes(cluster))
    elif address is not None:
        from agent_rft.cluster.ray_cluster.ray_session import ray_session

        with ray_session(address) as nodes:
            request = read_request(job, nodes)
    else:
        request = read_request(job, [read_local_node()])
    fits = plan_and_print(Console(), request, smallest=smallest, as_json=as_json)
    raise typer.Exit(0 if fits else 2)
