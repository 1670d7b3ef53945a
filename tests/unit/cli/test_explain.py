"""`agent-rft explain`."""

from __future__ import annotations

import json

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agent_rft.cli.main import app


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("forbidden_address", ["problem code", "allowed_networks", "  -> "]),
        ("max_tool_calls", ["setting", "in: the job's file", "type: integer", "default: 64", "bounds: at least 1"]),
        ("sync_pause_s", ["metric", "unit: s", "agent_rft_sync_pause_seconds_bucket", "Learner dashboard"]),
        ("rollouts_throttled", ["event", "level: warn", "num_failed (integer): "]),
        ("130", ["exit code", "signal"]),
    ],
)
def test_a_name_is_explained(name: str, texts: list[str]) -> None:
    result = explain(name)
    assert result.exit_code == 0
    assert all(text in result.output for text in texts), result.output


def test_json_has_one_object_for_each_meaning() -> None:
    lines = [json.loads(line) for line in explain("tool_failed", "--json").output.splitlines()]
    assert [line["kind"] for line in lines] == ["problem code", "discard reason"]
    assert all(line.keys() == {"kind", "name", "meaning", "fix", "facts"} for line in lines)


def test_an_unknown_name_is_an_error_with_close_matches() -> None:
    result = explain("forbiden_address")
    assert result.exit_code == 2 and "did you mean: forbidden_address" in result.output


def test_a_name_of_several_settings_lists_them() -> None:
    result = explain("timeout_s")
    assert result.exit_code == 2
    assert "  method.reinforcement.tools[].timeout_s (the job's file)" in result.output.splitlines()


@pytest.mark.parametrize(
    "name", ["[red]x[/]", ".*", "a[", "\x1b[31m\n", "", "\udcff", pytest.param("{" * 100_000, id="long")]
)
def test_a_hostile_name_is_an_unknown_one(name: str) -> None:
    result = explain(name)
    assert result.exit_code == 2 and "unknown name " in result.output
    assert "\x1b" not in result.output
