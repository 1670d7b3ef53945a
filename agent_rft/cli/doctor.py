"""Commands `agent-rft models doctor` and `agent-rft models template`: check a local model and print a chat template."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rft.actors.runtime.process_setup import fast_imports

if TYPE_CHECKING:
    from agent_rft.cluster.checks.model_examination import Examination


def doctor_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="folders in Hugging Face format, or names in the local cache (default: list model families instead)"
        ),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="Jinja file to use instead of the models' own chat templates")
    ] = None,
    tool_parser: Annotated[
        str, typer.Option(help="name of vLLM's tool parser to use; auto: detect the parser")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """Report whether models can be trained, and how to fix problems.

    The exit code is 1 if one of the models cannot be trained to call tools.
    """
    if not models:
        _print_families(as_json)
        return
    with fast_imports():
        from agent_rft.cluster.checks.model_examination import examine_model
    from agent_rft.errors import UserError
    from agent_rft.spec.model_options import ModelOptions, read_template

    overrides: dict[str, str] = {} if tool_parser == "auto" else {"tool_parser": tool_parser}
    try:
        if chat_template is not None:
            overrides["chat_template"] = read_template(chat_template)
        options = ModelOptions.model_validate(overrides)
    except ValueError as error:
        raise UserError(f"--chat-template or --tool-parser: {error}") from None
    trainable = True
    for name in models:
        found = examine_model(name, options)
        trainable = trainable and found.can_train_calls
        if as_json:
            row = {
                "model": name,
                "trainable": found.can_train_calls,
                "trainable_without_tools": found.can_train_without_calls,
                "examined": None if found.features is None else asdict(found.features),
                "problems": [asdict(one) for one in found.all_problems],
            }
            typer.echo(json.dumps(row))
        else:
            _print_examination(name, found)
    raise typer.Exit(0 if trainable else 1)


def template_command(
    model: Annotated[str, typer.Argument(help="folder in Hugging Face format, or a name in the local cache")],
) -> None:
    """Print a chat template that adds tool support to a model: it renders tools, calls and results as text."""
    with fast_imports():
        from agent_rft.cluster.checks.model_examination import add_tools_to_template
    typer.echo(add_tools_to_template(model), nl=False)


def _print_examination(name: str, found: Examination) -> None:
    console = Console(emoji=False, highlight=False)
    verdict, style = "not trainable", "bold"
    if found.can_train_calls:
        verdict, style = "trainable", "bold green"
    elif found.can_train_without_calls:
        verdict = "trainable without tools"
    console.print(Text(f"{name}: {verdict}", style))
    if found.features is not None:
        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in found.features.list_features():
            table.add_row(*map(Text, finding))
        console.print(table)
    for problem in found.all_problems:
        console.print(Text(str(problem)), soft_wrap=True)


def _print_families(as_json: bool) -> None:
    from agent_rft.chat.families import FAMILIES

    table = Table("family", "tool parser", "stop tokens", "reasoning", "structured output", box=None, pad_edge=False)
    for family in FAMILIES:
        row = {
            "family": family.name,
            "tool_parser": family.tool_parser,
            "stop_tokens": list(family.stop_tokens),
            "reasoning": family.reasoning_parser or " ".join(family.reasoning_delimiters),
            "structured": bool(family.call_syntaxes),
        }
        if as_json:
            typer.echo(json.dumps(row))
        ends = " ".join(family.stop_tokens) or "the template's"
        structured = "yes" if row["structured"] else "no"
        table.add_row(*map(Text, (family.name, str(family.tool_parser), ends, str(row["reasoning"]), structured)))
    if not as_json:
        Console(emoji=False).print(table)
