"""Rollouts as tables, and two files side by side."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.views.trace_export import COLUMNS, export_traces, make_table_rows
from agent_rft.cluster.views.traces import Trace, find_traces, pair_traces, print_pairs
from agent_rft.errors import UserError
from agent_rft.types import DiscardedRollout, Rollout
from tests.support.builders import group_request, rollout

REPO = Path(__file__).parents[4]


class Table:
    """A table in memory."""

    def __init__(self, path):
        self.path, self.rows, self.sizes, self.closed = path, [], [], False

    def write(self, rows):
        self.rows += rows
        self.sizes.append(len(rows))

    def close(self):
        self.closed = True


@pytest.fixture
def run(tmp_path, synthetic):
    return synthetic.run(tmp_path / "run", steps=2, total=2, validation_every=2)


@pytest.fixture
def tables():
    return []


@pytest.fixture
def open_table(tables):
    def opened(path):
        tables.append(Table(path))
        return tables[-1]

    return opened


def test_a_run_becomes_one_table_with_a_line_for_each_rollout(run, tmp_path, tables, open_table):
    traces = list(find_traces(run, RolloutFilter()))
    assert export_traces(traces, "job", "parquet", tmp_path / "a.parquet", open_table) == len(traces)
    [table] = tables
    assert table.path == tmp_path / "a.parquet" and table.closed
    assert [row["trace_id"] for row in table.rows] == [trace.outcome.trace_id for trace in traces]
    for row, trace in zip(table.rows, traces, strict=True):
        assert list(row) == [column.name for column in COLUMNS]
        assert (row["run"], row["file"]) == ("job", trace.name)
        if isinstance(trace.outcome, Rollout):
            assert (
                row["train"] is True
                and row["grade"] == trace.outcome.grade.value
                and row["num_calls"] == len(row["tools"])
            )
            assert json.loads(row["turns"])[0]["calls"][0]["name"] == row["tools"][0]
        else:
            assert (row["finish"], row["errors"], row["grade"]) == ("discarded", ["tool_failed"], None)


def test_a_table_is_written_in_parts(tmp_path, tables, open_table):
    traces = (Trace("step-000001", group_request(i), rollout(group_request(i))) for i in range(2500))
    assert export_traces(traces, "job", "parquet", tmp_path / "a", open_table) == 2500
    assert tables[0].sizes == [1000, 1000, 500]


def test_a_dataset_has_a_table_for_each_purpose_and_a_card(run, tmp_path, tables, open_table):
    out = tmp_path / "dataset"
    count = export_traces(find_traces(run, RolloutFilter()), "job", "hf", out, open_table)
    assert {table.path.name: {row["purpose"] for row in table.rows} for table in tables} == {
        f"{purpose}.parquet": {purpose} for purpose in ("train", "validation", "test")
    }
    assert sum(len(table.rows) for table in tables) == count and all(table.closed for table in tables)
    card = (out / "README.md").read_text()
    assert card.startswith("---\nconfigs:\n") and "  - split: train\n    path: data/train.parquet\n" in card
    with pytest.raises(UserError, match="Give a new or empty folder with --out"):
        export_traces([], "job", "hf", out, open_table)


def test_odd_numbers_and_texts_can_be_stored():
    odd = rollout(group_request(), answer="half \ud800", reward=math.nan)
    odd = replace(odd, grade=replace(odd.grade, held_out=math.inf))
    [row] = make_table_rows([Trace("step-000001", group_request(), odd)], "job")
    assert (row["reward"], row["held_out"], row["answer"]) == (None, None, "half ?")


def test_the_manual_describes_each_column():
    manual = (REPO / "docs" / "monitoring.md").read_text()
    for column in COLUMNS:
        assert f"| `{column.name}` | {column.kind} | {column.about} |" in manual


# -- side by side ------------------------------------------------------------------------------------------------------


def shown(pairs):
    console = Console(file=io.StringIO(), width=120, color_system=None)
    return print_pairs(pairs, console), console.file.getvalue()


def test_rows_of_two_files_are_shown_side_by_side(run):
    before, after = (find_traces(run, RolloutFilter(name=name)) for name in ("test-before", "test-after"))
    count, text = shown(pair_traces(before, after))
    assert count == 8 and text.count("row 3-00000003: ") == 1
    both = [line for line in text.splitlines() if line.count("answer") == 2]
    assert both, "the answers are beside each other"
    assert max(map(len, text.splitlines())) <= 120


def test_only_rows_that_both_files_have_are_shown_and_graded_ones_first():
    def trace(row, end=None, **changes):
        request = group_request(row)
        return Trace("x", request, end or rollout(request, **changes))

    lost = DiscardedRollout("t", "1", 0, "tool_failed", "down")
    before, after = [trace(1, lost), trace(1, answer="graded"), trace(2)], [trace(3), trace(1, answer="later")]
    [(first, second)] = pair_traces(before, after)
    assert (first.outcome.answer, second.outcome.answer) == ("graded", "later")
    assert shown([(trace(1, lost), second)])[1].startswith("─")
    assert "discarded → 1.000" in shown([(trace(1, lost), second)])[1]


def test_text_of_models_cannot_control_the_terminal(tmp_path, synthetic):
    run = synthetic.run(tmp_path, steps=1, total=1, hostile=True)
    sides = [list(find_traces(run, RolloutFilter(name="test-after"))) for _ in range(2)]
    _, text = shown(pair_traces(*sides))
    assert "\x1b" not in text and "[bold]red[/bold]" in text
