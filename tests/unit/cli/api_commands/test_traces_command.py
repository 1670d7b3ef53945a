"""`agent-rft traces` with its filters, on a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent_rft.cli.main import app
from agent_rft.errors import UserError
from tests.support.synthetic import Synthetic

Traces = Callable[..., Result]


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    folder = Synthetic().run(tmp_path / "run", steps=3, total=3, validation_every=3).path
    return lambda *arguments: CliRunner().invoke(app, ["traces", str(folder), *map(str, arguments)])


def test_filters_are_combined_with_best_and_json(traces: Traces) -> None:
    lines = [json.loads(line) for line in traces("--tool", "cat", "--best", 3, "--json").stdout.splitlines()]
    assert len(lines) == 3 and {line["grade"]["value"] for line in lines} == {1.0}
    [line] = traces("--finish", "discarded", "--step", 2, "--json").stdout.splitlines()
    assert json.loads(line)["reason"] == "tool_failed"
    assert {json.loads(line)["name"] for line in traces("--json").stdout.splitlines()} == {"test-after"}


def test_two_files_are_shown_side_by_side(traces: Traces) -> None:
    shown = traces("--compare", "test-before", "test-after", "--row", 3)
    assert shown.exit_code == 0 and shown.stdout.count("row 3-00000003: ") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tool", "serch"), "no rollouts have the tool 'serch'; available: cat, list, search"),
        (("--row", "nobody"), "has no rollout with row 'nobody'"),
        (("--compare", "test-before", "test-now"), "no rollouts have the file 'test-now'"),
    ],
)
def test_what_no_rollout_has_is_an_error(traces: Traces, arguments: tuple[str, ...], message: str) -> None:
    refused = traces(*arguments).exception
    assert isinstance(refused, UserError) and message in str(refused)


@pytest.mark.parametrize(
    "arguments", [("--best", 1, "--worst", 1), ("--export", "parquet"), ("--finish", "well"), ("--min-grade", "x")]
)
def test_bad_options_are_refused(traces: Traces, arguments: tuple[object, ...]) -> None:
    assert traces(*arguments).exit_code == 2


def test_a_damaged_file_is_named_and_the_rest_is_shown(traces: Traces, tmp_path: Path) -> None:
    path = tmp_path / "run" / "rollouts" / "step-000002.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-20])
    shown = traces("--tool", "cat", "--json")
    assert shown.exit_code == 0 and shown.stdout
    assert "warning: " in shown.stderr and "step-000002.jsonl.zst is damaged or truncated" in shown.stderr
