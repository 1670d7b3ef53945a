"""The command `agent-rft init`: a project to begin with, from an example or from what the user has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent_rft.cli.projects import PORT

if TYPE_CHECKING:
    from agent_rft.cli.projects.project import Wanted

Ask = Callable[[str, str], str]
"""Asks a question, whose answer is the second text if the user presses Enter."""


def init_command(
    folder: Annotated[Path, typer.Argument(help="the folder to write; it must be new or empty")],
    example: Annotated[
        Literal["ledger", "endpoint"] | None,
        typer.Option(
            help="copy an example: ledger, a job that learns in minutes without a GPU (the default off a terminal), or "
            "endpoint, a skeleton for your agent"
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="what you have: a Python file of functions with type hints, or an OpenAPI file or URL; and a CSV file "
            "of questions and answers. Repeat it for both",
        ),
    ] = None,
    tools: Annotated[
        list[str] | None, typer.Option("--tool", help="take only this function or operation; repeat it for more")
    ] = None,
    system: Annotated[str, typer.Option(help="the system message of each row")] = "",
    model: Annotated[
        str | None, typer.Option(help="the start model, a folder or a Hugging Face name (default: a toy to try with)")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="the port of the project's server")] = PORT,
    serve: Annotated[
        bool, typer.Option("--serve", help="also write agent-rft.yaml, so that jobs of `agent-rft serve` may call it")
    ] = False,
) -> None:
    """Write a project to begin with: a job, its rows, and the server of its tools and grader.

    On a terminal and without options, it asks five questions.
    """
    own = bool(sources or tools or system or model is not None or port != PORT)
    if example is not None and own:
        raise typer.BadParameter("--example copies an example as it is: give it alone")
    if own and not sources:
        raise typer.BadParameter("say with --from what the project is made of")
    from agent_rft.cli.projects.project import Wanted, write_own_project

    wanted = Wanted(tuple(sources or ()), tuple(tools or ()), system, model, port) if sources else None
    if wanted is None and example is None and sys.stdin.isatty():
        wanted = asked(_prompt)
    if wanted is not None:
        typer.echo(write_own_project(folder, replace(wanted, serves=serve)))
        return
    from agent_rft.cli.projects.example import write_project

    typer.echo(write_project(folder, example or "ledger", serve))


def asked(ask: Ask) -> Wanted | None:
    """What the answers to the five questions say; None: the user has nothing yet, and gets the ledger example."""
    from agent_rft.cli.projects.project import Wanted

    tools = ask("1. Your tools: a Python file with type hints, or an OpenAPI file or URL (Enter: none)", "")
    rows = ask("2. Your examples: a CSV file with the columns question and answer (Enter: none)", "")
    if not tools and not rows:
        typer.echo("With neither, this is the ledger example.")
        return None
    system = ask("3. The system message of each row (Enter: none)", "")
    model = ask("4. The start model: a folder, or a name such as Qwen/Qwen3-0.6B (Enter: a toy to try with)", "")
    while not (port := ask("5. The port of the project's server", str(PORT))).isdecimal() or not 0 < int(port) < 65536:
        pass
    return Wanted(tuple(filter(None, (tools, rows))), (), system, model or None, int(port))


def _prompt(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, show_default=bool(default))).strip()
