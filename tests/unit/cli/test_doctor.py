"""`agent-rft models doctor` and `models template`, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agent_rft.chat.families import FAMILIES
from agent_rft.cli.main import app
from agent_rft.errors import UserError
from tests.support.tiny_model import WITHOUT_TOOLS, write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def without_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("plain"), template=WITHOUT_TOOLS)


def models(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["models", *map(str, arguments)])


def test_the_known_families_are_listed() -> None:
    shown = models("doctor")
    assert shown.exit_code == 0 and all(family.name in shown.output for family in FAMILIES)
    rows = [json.loads(line) for line in models("doctor", "--json").output.splitlines()]
    assert [row["tool_parser"] for row in rows] == [family.tool_parser for family in FAMILIES]


def test_a_model_that_can_be_trained(model: Path) -> None:
    shown = models("doctor", model)
    assert (shown.exit_code, f"{model}: trainable" in shown.output.replace("\n", "")) == (0, True)
    (row,) = [json.loads(line) for line in models("doctor", model, "--json").output.splitlines()]
    assert row["trainable"] and row["trainable_without_tools"] and row["problems"] == []
    assert (row["examined"]["family"], row["examined"]["stop_tokens"]) == ("hermes", ["<|im_end|>"])


def test_one_model_of_several_that_cannot_be_trained_is_a_failure(model: Path, without_tools: Path) -> None:
    shown = models("doctor", model, without_tools, "no-such-folder", "--json")
    rows = [json.loads(line) for line in shown.output.splitlines()]
    assert (shown.exit_code, [row["trainable"] for row in rows]) == (1, [True, False, False])
    assert [one["code"] for row in rows for one in row["problems"]] == ["calls_not_parsed", "missing_model"]
    assert [row["trainable_without_tools"] for row in rows] == [True, True, False]


def test_a_model_whose_template_renders_no_calls_is_trainable_without_tools(without_tools: Path) -> None:
    shown = " ".join(models("doctor", without_tools).output.split())
    assert "plain0: trainable without tools" in shown
    assert "usable without tools; to use tools, run `agent-rft models template FOLDER > template.jinja`" in shown
    assert "parallel calls" not in shown
    (row,) = [json.loads(line) for line in models("doctor", without_tools, "--json").output.splitlines()]
    assert (row["examined"]["family"], row["examined"]["tool_parser"]) == ("unknown", None)
    assert (row["examined"]["samples"], row["examined"]["samples_without_calls"]) == (0, 1)


def test_the_written_template_makes_it_trainable(without_tools: Path, tmp_path: Path) -> None:
    own = tmp_path / "with-tools.jinja"
    own.write_text(models("template", without_tools).output)
    assert own.read_text().endswith(WITHOUT_TOOLS)
    (row,) = [
        json.loads(line)
        for line in models("doctor", without_tools, "--chat-template", own, "--json").output.splitlines()
    ]
    assert row["trainable"] and row["examined"]["shows_tools"] and row["examined"]["parallel_calls"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("doctor", "{model}", "--tool-parser", "x" * 65), "at most 64 characters"),
        (("doctor", "{model}", "--chat-template", "/no/such.jinja"), "cannot be read"),
        (("template", "{model}"), "already supports tools"),
        (("template", "no-such-folder"), "the folder no-such-folder does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused(model: Path, arguments: tuple[str, ...], message: str) -> None:
    error = models(*(one.format(model=model) for one in arguments)).exception
    assert isinstance(error, UserError) and message in str(error)
