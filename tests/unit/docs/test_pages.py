"""What the generated pages contain."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import typer

from agent_rft.cli.main import app
from agent_rft.events import KINDS
from agent_rft.metrics import EVALUATION_METRICS, METRICS
from agent_rft.problems import PROBLEM_CODES
from docs.generator import api, commands, events, metrics, problems


def test_every_metric_is_in_one_row_and_under_one_heading() -> None:
    rows = re.findall(r"^\| `([^`]+)`", metrics.pages()["metrics.md"], re.MULTILINE)
    assert sorted(rows) == sorted([*METRICS, *EVALUATION_METRICS])


def test_every_event_and_every_problem_code_has_an_anchor_of_its_own() -> None:
    assert re.findall(r"^## `(\w+)`$", events.pages()["events.md"], re.MULTILINE) == list(KINDS)
    headings = re.findall(r"^### `([\w*]+)`$", problems.pages()["problems.md"], re.MULTILINE)
    assert len({heading.replace("*", "") for heading in headings}) == len(headings) == len(PROBLEM_CODES)


def all_commands(group: Any, names: tuple[str, ...] = ("agent-rft",)) -> list[tuple[tuple[str, ...], Any]]:
    found = [((*names, name), command) for name, command in group.commands.items()]
    return found + [
        below for names, command in found if hasattr(command, "commands") for below in all_commands(command, names)
    ]


OWN = ("help", "install_completion", "show_completion")
COMMANDS = all_commands(typer.main.get_command(app))


@pytest.mark.parametrize(("names", "command"), COMMANDS, ids=[" ".join(names) for names, _ in COMMANDS])
def test_every_command_and_its_parameters_have_help_and_are_on_the_page(names: tuple[str, ...], command: Any) -> None:
    text = commands.pages()["commands.md"]
    assert f"\n## `{' '.join(names)}`\n" in text
    assert len(command.help) > 10
    for parameter in command.params:
        assert parameter.help, parameter.name
        assert parameter.name in OWN or parameter.help.removesuffix(".")[1:] in text


def test_the_api_page_has_each_route_and_describes_it() -> None:
    pages = api.pages()
    document = json.loads(pages["schemas/openapi.json"])
    assert len(document["paths"]) > 15
    for path, operations in document["paths"].items():
        for method, route in operations.items():
            assert f"\n### `{method.upper()} {path}`\n" in pages["api.md"]
            assert route.get("description"), f"{method} {path} needs a docstring"
    assert "`training_file` | string | yes | Id of an uploaded" in pages["api.md"]
