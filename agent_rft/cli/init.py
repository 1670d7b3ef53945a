"""Command `agent-rft init`: writes a new project, from an example or from the user's tools and questions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent_rft.cli.projects import PORT

if TYPE_CHECKING:
    from agent_rft.cli.projects.own_project import ProjectRequest

Ask = Callable[[str, str], str]
"""Function that asks a question and returns the answer; its second argument is the default for an empty answer."""


def init_command(
    folder: Annotated[Path, typer.Argument(help="folder to write; it must be new or empty")],
    example: Annotated[
        Literal["ledger", "endpoint"] | None,
        typer.Option(
            help="example to copy: ledger (a job that learns in minutes on CPUs) or endpoint (a skeleton for your "
            "agent); without a terminal, the default is ledger"
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="source of the tools: a Python file of functions with type hints, an OpenAPI file or URL, or a list "
            "of tools, such as the list of an MCP server. For examples, give a CSV file of questions and answers. "
            "Repeat the option to give both",
        ),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            help="tool to use: the name of a function, of an API operation, or of a tool in the list (default: all "
            "tools); repeat the option for several tools",
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="system message of each row")] = "",
    model: Annotated[
        str | None, typer.Option(help="base model: a folder or a Hugging Face name (default: a toy model)")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port of the project's server")] = PORT,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="also write agent-rft.yaml, so that jobs of `agent-rft serve` may call the project's server"
        ),
    ] = False,
) -> None:
    """Write a new project: a job, its rows, and a server with its tools and grader.

    Without options, the command asks five questions if it runs in a terminal.
    """
    has_own_options = bool(sources or tools or system or model is not None or port != PORT)
    if example is not None and has_own_options:
        raise typer.BadParameter("--example cannot be combined with --from, --tool, --system, --model or --port")
    if has_own_options and not sources:
        raise typer.BadParameter("--tool, --system, --model and --port require --from")
    from agent_rft.cli.projects.own_project import ProjectRequest, write_own_project

    request = ProjectRequest(tuple(sources or ()), tuple(tools or ()), system, model, port) if sources else None
    if request is None and example is None and sys.stdin.isatty():
        request = ask_project_questions(_prompt)
    if request is not None:
        typer.echo(write_own_project(folder, replace(request, with_operator_file=serve)))
        return
    from agent_rft.cli.projects.example_project import write_project

    typer.echo(write_project(folder, example or "ledger", serve))


def ask_project_questions(ask: Ask) -> ProjectRequest | None:
    """Ask the user five questions and return the requested project; None if the user has no tools and no examples."""
    from agent_rft.cli.projects.own_project import ProjectRequest

    kinds = "a Python file with type hints, an OpenAPI file or URL, or a list of tools"
    tools = ask(f"1. Your tools: {kinds} (Enter: none)", "")
    rows = ask("2. Your examples: a CSV file with the columns question and answer (Enter: none)", "")
    if not tools and not rows:
        typer.echo("No tools and no examples were given, so agent-rft init writes the built-in example `ledger`.")
        return None
    system = ask("3. The system message of each row (Enter: none)", "")
    model = ask("4. The base model: a folder, or a name such as Qwen/Qwen3-0.6B (Enter: a toy model)", "")
    while not (port := ask("5. The port of the project's server", str(PORT))).isdecimal() or not 0 < int(port) < 65536:
        pass
    return ProjectRequest(tuple(filter(None, (tools, rows))), (), system, model or None, int(port))


def _prompt(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, show_default=bool(default))).strip()
