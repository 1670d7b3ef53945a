import math
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import RolloutIndex, UnknownRollout, UnknownValue
from agent_rft.cluster.records.row_rewards import compute_row_rewards, rows_after
from agent_rft.cluster.records.run_folder import NAMES, RunFolder
from agent_rft.rows.ownership import claim_folder
from agent_rft.types import DiscardedRollout, Grade, Group, Rollout, ToolCall, ToolResult, Turn
from tests.support.builders import group, group_request, rollout

ROW = "INSERT INTO rollouts VALUES (?, ?, 0, 0, 0, 0, 0, 't', 'r', 0, 0.0, 0.0, 'answer', ?, '', 1, 1, 0.0, '')"


@pytest.fixture
def run(tmp_path, synthetic):
    return synthetic.run(tmp_path / "run", steps=3, total=3, validation_every=3)


def ends(run, **wanted):
    run.index.catch_up()
    return [end for _, _, end in run.index.read_rollouts(run.index.iter_rollouts(RolloutFilter(**wanted), "oldest"))]


def everything(run):
    groups = [group for name in run.rollout_names() for group in run.read_groups(name)]
    return [end for group in groups for end in (*group.rollouts, *group.discarded)]


def ids(found):
    return [end.trace_id for end in found]


def graded(run):
    return [end for end in everything(run) if isinstance(end, Rollout)]


def test_each_filter_selects_what_a_scan_of_the_files_selects(run):
    tried = graded(run)
    assert ids(ends(run)) == ids(everything(run))
    assert ids(ends(run, finish="discarded")) == ids(e for e in everything(run) if isinstance(e, DiscardedRollout))
    assert ids(ends(run, tool="cat")) == ids(r for r in tried if "cat" in {c.name for c in r.calls})
    assert ids(ends(run, min_grade=0.5, max_grade=1)) == ids(r for r in tried if r.grade.value >= 0.5)
    assert ids(ends(run, error="tool_failed")) == ids(e for e in everything(run) if isinstance(e, DiscardedRollout))
    assert {e.row_id for e in ends(run, row="1")} == {"1-00000001"} == {e.row_id for e in ends(run, row="1-00000001")}
    assert len(ends(run, step=3)) == 6 * 4 + 8 * 2  # with its validation
    assert ids(ends(run, max_reward=0.5)) == ids(r for r in tried if r.reward <= 0.5)
    assert ends(run, tool="ca") == [], "no part of a name"


def test_pages_follow_each_other_in_every_order(run):
    run.index.catch_up()
    for order in ("oldest", "newest", "best", "worst"):
        whole = run.index.page(RolloutFilter(), order, 1000)
        pages, after = [], None
        while found := run.index.page(RolloutFilter(), order, 7, after):
            pages, after = [*pages, *found], found[-1].id
        assert pages == whole
    grades = [end.grade.value for _, _, end in run.index.read_rollouts(run.index.page(RolloutFilter(), "worst", 1000))]
    assert grades == sorted(grades) and len(grades) == len(graded(run))


@pytest.mark.parametrize(
    "after", ["", "step-000001", "step-000001.x", "step-000001.1.0", "step-000001.999", "x.1", "\x00.1"]
)
def test_a_bad_cursor_is_refused(run, after):
    with pytest.raises(UnknownRollout, match="start again from the first page"):
        run.index.page(RolloutFilter(), "newest", 5, after)


def test_an_unknown_value_is_refused_with_those_that_there_are(run):
    for wanted, message in (
        (RolloutFilter(tool="serch"), "no rollouts have the tool 'serch'; available: cat, list, search"),
        (RolloutFilter(error="x"), "the error 'x'; available: tool_failed"),
        (RolloutFilter(step=9), "the step 9; available: 0, 1, 2, 3"),
        (RolloutFilter(name="step-9"), "the file 'step-000009'; available: step-000001, "),
    ):
        with pytest.raises(UnknownValue, match=message):
            run.index.check_filter(wanted)


def test_the_writer_keeps_the_index_so_that_readers_need_not_scan(run):
    assert [f.name for f in run.index.files()] == run.rollout_names()
    for name in run.rollout_names():
        assert [f.num_rollouts for f in run.index.files() if f.name == name] == [
            sum(len(g.rollouts) + len(g.discarded) for g in run.read_groups(name))
        ]


@pytest.mark.parametrize("left", ["nothing", "half", "no database", "older"])
def test_an_index_that_is_missing_or_broken_is_made_anew(run, left):
    expected, path = ids(ends(run, tool="cat")), run.path / "rollouts.sqlite"
    if left == "nothing":
        path.unlink()
    elif left == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif left == "no database":
        path.write_text("not a database" * 100)
    else:
        with sqlite3.connect(path) as db:
            db.executescript("DROP TABLE rollouts; PRAGMA user_version = 77")
        db.close()
    again = RunFolder(run.path)
    assert ids(ends(again, tool="cat")) == expected
    again.close()


def test_the_index_catches_up_with_files_that_were_added_replaced_or_removed(run, synthetic):
    other = synthetic.run(run.path.parent / "other", steps=2, total=3, validation_every=0, test=False)
    files = run.path / "rollouts"
    (files / "step-000001.jsonl.zst").write_bytes((other.path / "rollouts" / "step-000001.jsonl.zst").read_bytes())
    (files / "step-000009.jsonl.zst").write_bytes((other.path / "rollouts" / "step-000002.jsonl.zst").read_bytes())
    (files / "step-000002.jsonl.zst").unlink()
    assert ids(ends(run, name="step-000001")) == ids(ends(other, name="step-000001"))
    assert ids(ends(run, name="step-000009")) == ids(ends(other, name="step-000002"))
    assert ends(run, name="step-000002") == []


def test_rollouts_of_a_repeated_step_replace_the_earlier_ones_in_the_index(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    for version in (1, 2):
        run.handle_groups("step-000001", synthetic.groups(1, 2, "train", version, 0.0))
    run.close()
    assert [end.oldest_version for end in ends(run)] == [2, 2]
    assert [f.num_rollouts for f in run.index.files()] == [2]


def test_where_no_index_can_be_written_a_reader_makes_a_temporary_one(run):
    expected, path = ids(ends(run)), run.path / "rollouts.sqlite"
    path.unlink()
    path.mkdir()
    reader = RunFolder(run.path)
    assert ids(ends(reader)) == expected
    reader.close()
    writer = RunFolder(run.path)
    writer.handle_groups("step-000009", run.read_groups("step-000001"))
    writer.close()
    assert writer.problems == [], "a run does not fail for its index"


def test_a_damaged_file_is_indexed_as_far_as_it_goes_and_named(run):
    path = run.path / "rollouts" / "step-000002.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(ends(run, step=1)) == 24
    ends(run)
    assert [f.problem for f in run.index.files() if f.name == "step-000002"] == [
        f"{path} is damaged or truncated. Copy the file again from its source, or delete it"
    ]


def test_indexing_can_be_cut_into_parts(run):
    (run.path / "rollouts.sqlite").unlink()
    reader, calls = RunFolder(run.path), 1
    while not reader.index.catch_up(0.0):
        calls += 1
        assert calls < 100
    assert ids(ends(reader)) == ids(ends(run))
    reader.close()


class Interrupted(RolloutIndex):
    """An index during whose first file another reader begins it again, and reads so many of its rollouts."""

    def __init__(self, run, other, left):
        super().__init__(run)
        self._other, self._left = other, left

    def _begin_file(self, db, name):
        file, other, self._other = super()._begin_file(db, name), self._other, None
        if other is not None:
            other(db, name, self._left)
        return file


def begun_anew(db, name, count):
    """What another reader that is killed, or too slow, leaves of a file."""
    db.execute("DELETE FROM files WHERE name = ?", [name])
    file = db.execute("INSERT INTO files VALUES (NULL, ?, 1, 0, 0, 0, '')", [name]).lastrowid
    db.executemany(ROW, [(file, number, "gone") for number in range(count)])


def test_a_reader_whose_file_another_one_began_anew_ends_with_a_complete_index(run):
    expected = ids(ends(run))
    (run.path / "rollouts.sqlite").unlink()
    index = Interrupted(run.path, begun_anew, 5)
    assert index.catch_up() and ids(ends(run)) == expected
    assert "gone" not in index.list_values("tools"), "no rows of the other reader are left"


def test_a_reader_does_not_say_that_it_is_done_while_another_one_reads(run):
    for name in run.rollout_names()[1:]:
        (run.path / "rollouts" / f"{name}.jsonl.zst").unlink()
    (run.path / "rollouts.sqlite").unlink()
    index = Interrupted(run.path, begun_anew, 0)
    assert not index.catch_up(0.0) and index.catch_up(0.0)


def test_rows_that_a_reader_left_without_a_file_are_removed(run):
    path = run.path / "rollouts.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(ROW, (999, 0, "orphan"))
    db.close()
    (run.path / "rollouts" / "step-000001.jsonl.zst").unlink()
    assert run.index.catch_up() and "orphan" not in run.index.list_values("tools")


def test_several_readers_of_a_fresh_run_all_get_everything(run):
    expected = ids(ends(run))
    for _ in range(5):
        (run.path / "rollouts.sqlite").unlink()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda folder: ids(ends(folder)), [RunFolder(run.path) for _ in range(4)]))
        assert found == [expected] * 4


def test_nothing_is_made_in_a_folder_that_is_no_run(tmp_path):
    index = RolloutIndex(tmp_path)
    assert index.catch_up() and index.files() == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize("breaks", [Path.unlink, lambda path: path.write_bytes(b"no database" * 1000)])
def test_an_index_that_is_lost_does_not_get_in_the_way_of_the_next_owner(tmp_path, breaks):
    """A server opens the index before the run has an owner, and makes it again through its public name."""
    reader = RunFolder(tmp_path)
    with claim_folder(tmp_path, NAMES) as owner:
        writer = RunFolder(tmp_path, owner_folder=owner.folder)
        request = group_request(0, 2)
        writer.handle_groups("step-000001", [Group(request, (rollout(request, 0), rollout(request, 1)))])
        writer.close()
    breaks(tmp_path / "rollouts.sqlite")
    assert reader.index.catch_up() and [file.num_rollouts for file in reader.index.files()] == [2]
    with claim_folder(tmp_path, NAMES) as successor:
        assert [file.num_rollouts for file in RunFolder(tmp_path, owner_folder=successor.folder).index.files()] == [2]


def test_odd_numbers_and_texts_are_indexed(tmp_path):
    request = group_request(0, 2)
    calls = (ToolCall("c", "half \ud800\nname", "{}"),)
    turn = Turn(2, 5, "text", calls, (ToolResult("c", "no", "unknown_tool"),))
    nan = rollout(request, 0, turns=(turn,))
    nan = replace(nan, grade=Grade(math.nan))
    run = RunFolder(tmp_path)
    run.handle_groups("step-000001", [Group(request, (nan, rollout(request, 1)))])
    run.close()
    assert run.problems == [] and [f.num_rollouts for f in run.index.files()] == [2]
    assert len(run.index.page(RolloutFilter(), "best", 9)) == 1, "NaN is not a grade"
    assert len(ends(run, tool="half \ud800 name")) == len(ends(run, error="unknown_tool")) == 1


def test_what_is_listed_of_a_rollout_is_what_is_in_its_file(run):
    for one in run.index.iter_rollouts(RolloutFilter(), "oldest"):
        [(_, _, end)] = run.index.read_rollouts([one])
        shown = one.summary
        assert run.index.find(one.id) == one
        assert (shown.trace_id, shown.row_id, shown.sample) == (end.trace_id, end.row_id, end.sample)
        if isinstance(end, DiscardedRollout):
            assert (shown.finish, shown.errors, shown.reward) == ("discarded", ["tool_failed"], None)
        else:
            assert (shown.grade, shown.reward, shown.answer) == (end.grade.value, end.reward, end.answer)
            assert (shown.num_calls, shown.num_sampled) == (len(end.calls), end.num_sampled)
            assert set(shown.tools) == {call.name for call in end.calls} and shown.wall_s == end.wall_s


def with_text(run, wanted, **filters):
    run.index.catch_up()
    found = run.index.search_text(run.index.iter_rollouts(RolloutFilter(**filters), "newest"), wanted)
    return [one.summary.sample for one, has_text in found if has_text]


def test_a_text_is_found_where_it_can_be_read_and_nowhere_else(tmp_path):
    request = group_request(0, 5)
    call, result = ToolCall("c", "look", '{"path": "rikac/2015"}'), ToolResult("c", "Bilanz: 1\u2007204 \u20ac \ud800")
    rollouts = [
        rollout(request, 0, turns=(Turn(2, 5, "<think>Hm, NOTHING</think>", (call,), (result,)),)),
        rollout(request, 1, answer='a "quoted" \\n line\nnext', token_ids=np.array([77123, 1, 2, 3, 4])),
        replace(rollout(request, 2), grade=Grade(1.0, reason="correct", held_out_error="10.1.2.3 refused")),
    ]
    lost = DiscardedRollout("trace_3", "0", 3, "tool_failed", "10.1.2.3 refused", "http://10.1.2.3")
    run = RunFolder(tmp_path)
    run.handle_groups("step-000001", [Group(request, tuple(rollouts), (lost,))])
    run.close()
    everywhere = [0, 1, 2, 3]
    for wanted, samples in {
        "nothing": [0], "RIKAC/2015": [0], '"path": "rikac': [0], "1\u2007204 \u20ac": [0], "\ud800": [0],
        '"QUOTED" \\n line\nn': [1], "77123": [], "logprobs": [], "correct": [2], "tool_failed": [3],
        "10.1.2.3": [], "refused": [], "question 0": everywhere, "trace_3": [3],
    }.items():  # fmt: skip
        assert with_text(run, wanted) == samples, wanted
    assert with_text(run, "question 0", finish="discarded") == [3]


def test_rewards_are_counted_row_by_row(tmp_path):
    run = RunFolder(tmp_path)
    for step, rewards in ((1, [[0.0, 0.0, None], [0.0, 1.0], [1.0, 1.0], [None, None]]), (2, [[0.55, 0.0]])):
        run.handle_groups(f"step-{step:06d}", [group(group_request(i, len(r)), r) for i, r in enumerate(rewards)])
    run.close()
    worst = compute_row_rewards(run.index, RolloutFilter(), "worst")
    assert [row.row_id for row in worst] == ["0", "1", "2", "3"]
    first, widest, right, lost = worst
    assert (first.bins, first.num_rollouts, first.num_lost) == ([3, 0, 0, 0, 0, 1, 0, 0, 0, 0], 4, 1)
    assert (first.low, first.high, first.range) == (0.0, 0.55, (0.0, 1.0)) and first.mean == pytest.approx(0.1375)
    assert (right.bins[-1], widest.bins[0], widest.bins[-1]) == (2, 1, 1)
    assert (lost.num_rollouts, lost.num_lost, lost.mean, sum(lost.bins)) == (0, 2, None, 0)
    assert [row.row_id for row in compute_row_rewards(run.index, RolloutFilter(), "widest")] == ["1", "0", "2", "3"]
    assert [row.row_id for row in compute_row_rewards(run.index, RolloutFilter(), "best")] == ["2", "1", "0", "3"]
    [alone] = compute_row_rewards(run.index, RolloutFilter(step=2), "best")
    assert alone.range == (0.0, 0.55) and (alone.bins[0], alone.bins[-1]) == (1, 1)
    assert rows_after(worst, "1") == [right, lost] and rows_after(worst, None) == worst
    with pytest.raises(UnknownValue, match="there are no rollouts of the row '7'"):
        rows_after(worst, "7")
