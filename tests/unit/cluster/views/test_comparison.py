"""Evaluations are compared row by row: what is joined, what the numbers are, what pages and terminals show."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from agent_rft.cluster.checks.resumption.recorded_run import digest_job
from agent_rft.cluster.records.redaction import to_plain_json
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.comparison import comparison_charts
from agent_rft.cluster.views.comparison.comparison_charts import make_histogram, make_interval_bar, make_scatter
from agent_rft.cluster.views.comparison.comparison_page import write_page, write_png
from agent_rft.cluster.views.comparison.comparison_stats import (
    NO_TOOL,
    EvaluationComparison,
    MeasureChange,
    compare_evaluations,
    comparison_json,
)
from agent_rft.cluster.views.comparison.comparison_table import print_comparison
from agent_rft.cluster.views.comparison.evaluation_selection import find_recorded_evaluation, load_evaluations
from agent_rft.cluster.views.comparison.loaded_evaluation import (
    MEASURES,
    LoadedEvaluation,
    group_by_row,
    load_evaluation,
)
from agent_rft.errors import UserError
from agent_rft.events import Evaluated
from agent_rft.metrics import EVALUATION_METRICS
from agent_rft.metrics.confidence_intervals import Interval, paired_interval
from agent_rft.spec.step_plan import resolve_plan
from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.types import Grade, Group, Rollout, ToolCall, ToolResult, Turn
from tests.support.builders import group, group_request, rollout, task
from tests.support.events import run_event, stream_of
from tests.support.synthetic import Synthetic

BROWSER = """#!/bin/sh
for a; do case $a in --screenshot=*) out=${a#*=};; file:*) in=${a#file://};; esac; done
cp "$in" "$out"
"""
"""Copies the page instead of rendering it."""


def group_of(row: str, rewards: Sequence[float], calls: Sequence[tuple[str, str]] = ()) -> Group:
    """A row's rollouts, one per reward, each with the same calls, one a turn; a tool named `bad` fails."""
    turns = [
        Turn(
            2,
            5,
            "",
            (ToolCall(f"c{i}", name, arguments),),
            (ToolResult(f"c{i}", "out", "x" if name == "bad" else None),),
        )
        for i, (name, arguments) in enumerate(calls)
    ]
    turns.append(Turn(2, 5, "answer", model_s=0.5))
    request = group_request(task=task(row, row), purpose="test")
    made = [
        rollout(request, sample, reward, turns=tuple(turns), trace_id=f"trace_{row}_{sample}")
        for sample, reward in enumerate(rewards)
    ]
    return Group(request, tuple(made))


def side(label: str, *groups: Group) -> LoadedEvaluation:
    found = [(g.request, r, partial(_itself, r)) for g in groups for r in (*g.rollouts, None)]
    return LoadedEvaluation(label, f"runs/{label}", "test-after", group_by_row(found))


def _itself(rollout: Rollout | None) -> Rollout:
    assert rollout is not None
    return rollout


def compared(before: Mapping[str, Sequence[float]], *others: Mapping[str, Sequence[float]]) -> EvaluationComparison:
    """Sides named a, b, ... with the rewards of rows."""
    sides = zip("abcd", (before, *others), strict=False)
    return compare_evaluations([side(name, *(group_of(row, r) for row, r in rows.items())) for name, rows in sides], 2)


def change_of(comparison: EvaluationComparison, name: str, other: int = 0) -> MeasureChange:
    return next(change for change in comparison.side_comparisons[other].changes if change.name == name)


def shown(comparison: EvaluationComparison) -> str:
    file = io.StringIO()
    print_comparison(comparison, Console(file=file, width=120))
    return file.getvalue()


# -- what is compared --------------------------------------------------------------------------------------------------


def test_a_row_counts_once_by_the_mean_of_its_samples() -> None:
    comparison = compared({"r1": [0.0, 1.0], "r2": [0.0]}, {"r1": [1.0, 1.0, 1.0, 1.0], "r2": [0.25]})
    reward = change_of(comparison, "reward")
    assert (reward.before, reward.after) == (0.25, 0.625)
    assert reward.interval == paired_interval([0.5, 0.0], [1.0, 0.25])
    assert [summary.num_rollouts for summary in comparison.summaries] == [3, 5]


def test_the_best_of_k_is_compared_where_each_row_has_k_samples() -> None:
    before = {"r1": [0.0, 0.5, 0.25], "r2": [0.0, 0.0, 0.0]}
    comparison = compared(before, {"r1": [0.5, 0.0, 1.0, 1.0], "r2": [0.5, 0.75, 0.0]})
    best = change_of(comparison, "best_of_3")
    assert (best.before, best.after, best.label) == (0.25, 0.875, "best of 3")
    assert "best of 3" in shown(comparison)
    found = comparison_json(comparison)
    assert found["changes"][0]["measures"]["best_of_3"]["after"] == 0.875
    assert found["rows"][0]["sides"][0].keys() == {*MEASURES, "trace_ids"}  # what the API says that a row has
    alone = compared({"r1": [0.5, 1.0], "r2": [1.0]}, {"r1": [0.5, 1.0], "r2": [1.0, 0.0]})
    assert not any(change.name.startswith("best_of") for change in alone.side_comparisons[0].changes)


def held_out(row: str, *grades: float | None) -> Group:
    """A row whose rollouts have these held-out grades, and all the grade 0.5; None: its held-out grader failed."""
    group = group_of(row, [0.5] * len(grades))
    pairs = zip(group.rollouts, grades, strict=True)
    return replace(group, rollouts=tuple(replace(r, grade=Grade(0.5, held_out=grade)) for r, grade in pairs))


def test_the_held_out_grade_is_compared_over_the_rows_that_have_it_at_all_sides() -> None:
    before = side("a", held_out("r1", 0.25, None), held_out("r2", 0.75), held_out("r3", 1.0))
    after = side("b", held_out("r1", 1.0, 0.5), held_out("r2", 0.5), held_out("r3", None))
    comparison = compare_evaluations([before, after], 2)
    change = change_of(comparison, "held_out")
    assert (change.before, change.after) == (0.5, 0.625)
    assert change.interval == paired_interval([0.25, 0.75], [0.75, 0.5])
    assert "held-out grade" in shown(comparison)
    found = to_plain_json(comparison_json(comparison))
    assert found["sides"][1]["means"]["held_out"] == 0.625
    assert found["rows"][2]["sides"][1]["held_out"] is None
    assert len(comparison.rows) == 3 and change_of(comparison, "grade").before == 0.5


def test_there_is_no_held_out_grade_where_a_side_has_none() -> None:
    comparison = compare_evaluations([side("a", held_out("r1", 0.25)), side("b", group_of("r1", [1.0]))], 2)
    assert all(change.name != "held_out" for change in comparison.side_comparisons[0].changes)
    assert "held-out" not in shown(comparison)
    assert "held_out" not in comparison_json(comparison)["sides"][0]["means"]


def test_rows_of_one_side_and_rows_without_a_grade_are_named_and_not_compared() -> None:
    comparison = compared({"r1": [0.0], "r2": [1.0], "gone": [1.0]}, {"r1": [1.0], "r2": [], "new": [0.0], "n2": [0.0]})
    assert [row.row_id for row in comparison.rows] == ["r1"]
    assert comparison.unshared_rows == (("gone",), ("new", "n2"))
    assert comparison.ungraded == ((), ("r2",))
    text = shown(comparison)
    assert "a: 1 row only in this evaluation: gone" in text and "b: 2 rows only in this evaluation: new, n2" in text
    assert "b: 1 row without a grade in this evaluation: r2" in text


def test_a_grade_that_is_not_finite_is_none() -> None:
    comparison = compared({"r1": [0.5], "r2": [0.5]}, {"r1": [math.nan, 1.0], "r2": [math.inf]})
    assert change_of(comparison, "reward").after == 1.0
    assert comparison.ungraded == ((), ("r2",))


def test_different_rows_are_refused_with_the_fix() -> None:
    with pytest.raises(
        UserError, match=r"a has 1 rows .*; b has 2 rows .*Evaluate both models on the same file: run agent-rft eval"
    ):
        compared({"r1": [0.5]}, {"x": [0.5], "y": [1.0]})
    with pytest.raises(UserError, match="none of the 1 shared rows was graded in all evaluations"):
        compared({"r1": [0.5]}, {"r1": []})


def test_each_further_side_is_compared_with_the_first() -> None:
    comparison = compared({"r1": [0.0]}, {"r1": [0.5]}, {"r1": [1.0]})
    assert [change_of(comparison, "reward", i).interval.mean for i in (0, 1)] == [0.5, 1.0]
    assert len(shown(comparison).splitlines()) > 20


def test_rows_that_changed_most_come_first_and_equal_ones_are_neither() -> None:
    rows = {"same": [0.5], "up": [0.1], "more": [0.1], "down": [0.9]}
    comparison = compared(rows, {"same": [0.5], "up": [0.2], "more": [0.9], "down": [0.0]})
    [against] = comparison.side_comparisons
    assert [row.row_id for row in against.gained] == ["more", "up"]
    assert [row.row_id for row in against.lost] == ["down"]


def test_the_quadrants_count_each_row_once() -> None:
    call = ("search", "{}")
    before = side("a", group_of("r1", [0.0], [call]), group_of("r2", [0.5], [call]), group_of("r3", [1.0]))
    after = side("b", group_of("r1", [1.0]), group_of("r2", [0.5], [call]), group_of("r3", [0.0], [call, call]))
    [against] = compare_evaluations([before, after], 3).side_comparisons
    assert against.quadrants == {(1, -1): 1, (0, 0): 1, (-1, 1): 1}


def test_tools_are_counted_by_calls_repeats_errors_and_places() -> None:
    calls = [("search", '{"q": 1}'), ("search", '{"q": 1}'), ("search", '{"q": 2}'), ("bad", "{}")]
    comparison = compare_evaluations([side("a", group_of("r1", [0.0], calls)), side("b", group_of("r1", [0.0]))], 1)
    before, after = comparison.summaries
    search, bad = before.tools["search"], before.tools["bad"]
    assert (search.calls, search.repeated, search.first, search.last) == (3.0, 1 / 3, 1.0, 0.0)
    assert (bad.failed, bad.first, bad.last) == (1.0, 0.0, 1.0)
    assert (before.repeated, after.repeated) == (1.0, 0.0)
    assert after.tools[NO_TOOL].first == 1.0 and after.tools[NO_TOOL].calls == 0.0
    assert (before.turns_p95, after.turns_p95) == (5.0, 1.0)


def test_a_wanted_latency_adds_the_share_of_slower_rollouts_beside_the_grade(tmp_path: Path) -> None:
    def timed(label: str, seconds: Mapping[str, Sequence[float]]) -> LoadedEvaluation:
        groups = list[Group]()
        for row, taken in seconds.items():
            group = group_of(row, [0.5] * len(taken))
            pairs = zip(group.rollouts, taken, strict=True)
            groups.append(
                replace(group, rollouts=tuple(replace(r, turns=(Turn(2, 5, "", model_s=s),)) for r, s in pairs))
            )
        return side(label, *groups)

    before, after = timed("a", {"r1": [1.0, 3.0], "r2": [5.0]}), timed("b", {"r1": [1.0], "r2": [2.0]})
    comparison = compare_evaluations([before, after], 1, target_s=2.0)
    slow = change_of(comparison, "slow_share")
    assert (slow.before, slow.after) == (0.75, 0.0)
    assert slow.interval == paired_interval([0.5, 1.0], [0.0, 0.0], (0.0, 1.0))
    assert slow.interval.mean < 0 and comparison.rows[0].means[0]["slow_share"] == 0.5
    table = shown(comparison)
    assert "rollouts slower than 2 s" in table and "75.0%" in table and "grade" in table
    write_page(comparison, tmp_path / "page.html")
    assert "Rollouts slower than 2 s" in (tmp_path / "page.html").read_text()
    assert comparison_json(comparison)["sides"][0]["means"]["slow_share"] == 0.75
    assert "slow_share" not in comparison_json(compare_evaluations([before, after], 1))["sides"][0]["means"]


@pytest.mark.parametrize(
    ("name", "interval", "verdict"),
    [
        ("grade", Interval(0.2, 0.1, 0.3, 40), "better"),
        ("grade", Interval(-0.2, -0.3, -0.1, 40), "worse"),
        ("tool_calls", Interval(-2.0, -3.0, -1.0, 40), "better"),
        ("grade", Interval(0.2, -0.1, 0.3, 40), "unclear"),
        ("tool_calls", Interval(0.0, math.nan, math.nan, 3), "same"),
        ("tool_calls", Interval(1.0, math.nan, math.nan, 1), "unclear"),
    ],
)
def test_a_change_is_better_or_worse_only_if_its_interval_excludes_none(
    name: str, interval: Interval, verdict: str
) -> None:
    assert MeasureChange(name, 0.0, 0.0, interval, EVALUATION_METRICS[name]).verdict == verdict


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_json_has_all_numbers_and_is_valid() -> None:
    found = json.loads(
        json.dumps(to_plain_json(comparison_json(compared({"r1": [0.0]}, {"r1": [1.0]}))), allow_nan=False)
    )
    assert found["changes"][0]["measures"]["reward"]["change"] == 1.0
    assert found["changes"][0]["measures"].keys() == MEASURES.keys() - {"held_out"}
    assert found["changes"][0]["quadrants"] == [{"reward": "up", "tool_calls": "same", "rows": 1}]
    assert found["rows"][0]["sides"][1]["trace_ids"] == ["trace_r1_0"]


def test_hostile_text_is_shown_and_neither_executed_nor_obeyed(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[31m[bold]"
    before, after = group_of(evil, [0.0], [(evil, evil)]), group_of(evil, [1.0])
    answers = tuple(replace(r, answer=evil) for r in after.rollouts)
    comparison = compare_evaluations([side("a", before), side("b", replace(after, rollouts=answers))], 1)
    write_page(comparison, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page and "default-src 'none'" in page
    assert "\x1b" not in shown(comparison) and "[bold]" in shown(comparison)


def test_a_page_has_the_traces_and_an_image_has_not(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(BROWSER)
    browser.chmod(0o755)
    comparison = compared({"r1": [0.0], "r2": [1.0]}, {"r1": [1.0], "r2": [1.0]}, {"r1": [0.0], "r2": [0.0]})
    write_page(comparison, tmp_path / "page.html")
    write_png(comparison, tmp_path / "page.png", ("none-such", str(browser)))
    page, image = (tmp_path / "page.html").read_text(), (tmp_path / "page.png").read_text()
    assert "trace_r1_0" in page and "trace_r1_0" not in image
    assert page.count("<svg viewBox") == image.count("<svg viewBox") == 4, "two of rows, one of calls, one of turns"
    with pytest.raises(UserError, match="Install Chromium"):
        write_png(comparison, tmp_path / "page.png", ("none-such",))
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory; choose another file"):
        write_page(comparison, tmp_path)


def test_charts_hold_all_rows_within_their_bounds() -> None:
    comparison = compared({f"r{i}": [i / 9] for i in range(10)}, {f"r{i}": [1.0] for i in range(10)})
    [against] = comparison.side_comparisons
    plot = make_scatter(comparison.rows, 1, against.quadrants)
    assert len(plot.dots) == 10 and all(0 < dot.x < 560 and 0 < dot.y < 340 for dot in plot.dots)
    assert {corner.text for corner in plot.corners} >= {"reward up, fewer calls: 0"}
    assert [bar.side for bar in make_histogram(comparison, "turns").bars] == [0, 1]
    assert make_interval_bar(Interval(1.0, math.nan, math.nan, 1)) is None
    bar = make_interval_bar(Interval(0.5, 0.25, 1.0, 40))
    assert bar is not None and bar.zero < bar.low < bar.mean < bar.high <= 150


def test_the_tail_of_calls_is_drawn_for_each_side() -> None:
    long, short = [("search", "{}")] * 16, [("search", "{}")] * 2
    before = side("a", group_of("r1", [0.0], long), group_of("r2", [0.0], short[:1]))
    after = side("b", group_of("r1", [1.0], short), group_of("r2", [1.0], short))
    calls = make_histogram(compare_evaluations([before, after], 2), "tool_calls")
    assert [bar.title for bar in calls.bars] == [
        "a: 50% of the rollouts take 1 call",
        "b: 100% of the rollouts take 2 calls",
        "a: 50% of the rollouts take 16 calls",
    ]
    assert calls.p95 == pytest.approx((15.25, 2))


# -- where it comes from -----------------------------------------------------------------------------------------------


def sides(*texts: object, name: str | None = None, file: str | None = None) -> list[LoadedEvaluation]:
    return load_evaluations([str(text) for text in texts], name=name, file=file, evaluate=None)


def test_a_run_gives_its_newest_evaluation_of_the_file_that_all_have(tmp_path: Path, synthetic: Synthetic) -> None:
    one, two = synthetic.run(tmp_path / "one"), synthetic.run(tmp_path / "two", test=False)
    assert [s.name for s in sides(one.path, one.path)] == ["test-after"] * 2
    assert [s.name for s in sides(one.path, two.path)] == ["validation-000012"] * 2, "the second has no test file"
    assert [s.name for s in sides(f"{one.path}:validation-4", two.path)] == ["validation-000004", "validation-000012"]
    assert [s.name for s in sides(one.path, two.path, name="validation-8")] == ["validation-000008"] * 2
    assert [s.label for s in sides(f"{one.path}:test-before", f"{one.path}:test-after")] == [
        "test-before",
        "test-after",
    ]
    assert [s.label for s in sides(one.path, two.path)] == ["one", "two"]
    with pytest.raises(UserError, match=r"two has no evaluation of its test_file, only .*validation-000012"):
        sides(one.path, two.path, file="test_file")


def test_the_validations_of_several_runs_are_drawn_as_curves(tmp_path: Path, synthetic: Synthetic) -> None:
    one, two = synthetic.run(tmp_path / "one"), synthetic.run(tmp_path / "two")
    never = synthetic.run(tmp_path / "never", validation_every=0)
    assert comparison_charts.make_curves(sides(f"{one.path}:test-before", f"{one.path}:test-after")) is None, (
        "one run is one curve"
    )
    assert comparison_charts.make_curves(sides(one.path, never.path)) is None
    drawn = comparison_charts.make_curves(compared_sides := sides(one.path, never.path, two.path))
    assert drawn is not None
    assert [curve.side for curve in drawn.curves] == [0, 2]
    for curve, run in zip(drawn.curves, (one, two), strict=True):
        assert [dot.x for dot in curve.dots] == sorted(dot.x for dot in curve.dots)
        assert len(curve.dots) == len(run.validations()) > 2
        assert curve.dots[-1].title.endswith(f"reward {run.validations()[-1][1].reward:.3f}")
        rewards = [found.reward for _, found in run.validations()]
        highest = min(curve.dots, key=lambda dot: dot.y)
        assert curve.dots.index(highest) == rewards.index(max(rewards))
        assert all(
            comparison_charts.TOP <= dot.y <= comparison_charts.HEIGHT - comparison_charts.BOTTOM for dot in curve.dots
        )
        assert all(
            comparison_charts.LEFT <= dot.x <= comparison_charts.WIDTH - comparison_charts.RIGHT for dot in curve.dots
        )
    write_page(compare_evaluations(compared_sides, 2), tmp_path / "page.html", with_traces=False)
    page = (tmp_path / "page.html").read_text()
    assert page.count("<polyline") == 2 and "Validation reward" in page
    write_page(compare_evaluations(sides(one.path, never.path), 2), tmp_path / "page.html", with_traces=False)
    assert "<polyline" not in (tmp_path / "page.html").read_text()


def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path, synthetic: Synthetic) -> None:
    run = synthetic.run(tmp_path / "run", validation_every=0)
    with pytest.raises(UserError, match=r"the folder .*nowhere does not exist"):
        sides(run.path, tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no rollouts named 'validation-000003'; it has .*test-after"):
        sides(f"{run.path}:test-after", f"{run.path}:validation-3")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="and no other rollouts"):
        sides(tmp_path / "empty", tmp_path / "empty")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a model, not a run\. Add --job"):
        sides(run.path, tmp_path / "model")


def test_a_file_that_was_cut_off_is_named(tmp_path: Path, synthetic: Synthetic) -> None:
    run = synthetic.run(tmp_path / "run")
    path = run.path / "rollouts" / "test-after.jsonl.zst"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not compressed", whole[:10]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"test-after.* (is|are) damaged"):
            sides(f"{run.path}:test-before", run.path)


def test_rollouts_that_were_removed_while_they_were_compared_are_said(tmp_path: Path, synthetic: Synthetic) -> None:
    run = synthetic.run(tmp_path / "run")
    (side,) = sides(run.path)
    brief = next(graded.rollouts[0] for graded in side.rows.values())
    assert brief.read_rollout().trace_id == brief.trace_id
    (run.path / "rollouts" / "test-after.jsonl.zst").unlink()
    with pytest.raises(UserError, match=r"test-after of .* were removed"):
        brief.read_rollout()


def test_a_long_question_says_how_much_of_it_is_left_out() -> None:
    request = replace(group_request(), task=replace(task("0"), messages=({"role": "user", "content": "x" * 1000},)))
    (graded,) = group_by_row([(request, None, lambda: rollout(request, 0))]).values()
    assert graded.question == "x" * 300 + " … [700 more characters]"


def test_an_evaluation_of_the_same_model_rows_and_method_is_used_again(tmp_path: Path, synthetic: Synthetic) -> None:
    rows, model = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("{}\n")
    model.mkdir()
    (model / "config.json").write_text("{}")
    job = synthetic.job(model=str(model), test_file=str(rows))
    groups = synthetic.groups(3, 2, "test", 0, 0.5)
    run = RunFolder(tmp_path / "runs" / "one")
    run.write_job(job, resolve_plan(job, 480, 10**9)[0], {"digests": digest_job(job)})
    run.handle_event(run_event(Evaluated(name="eval-test", evaluation=summarize(groups, 2, 1.0))))
    run.close()
    runs = tmp_path / "runs"
    assert find_recorded_evaluation(runs, job, model, "test_file", 2) == run.path
    assert find_recorded_evaluation(runs, job, model, "test_file", 1) is None, "another number of samples"
    assert find_recorded_evaluation(runs, job.model_copy(update={"seed": 5}), model, "test_file", 2) is None
    other = job.model_options.model_copy(update={"template_arguments": {"enable_thinking": False}})
    assert (
        find_recorded_evaluation(runs, job.model_copy(update={"model_options": other}), model, "test_file", 2) is None
    )
    short = job.cluster.model_copy(update={"context_length": 512})
    assert find_recorded_evaluation(runs, job.model_copy(update={"cluster": short}), model, "test_file", 2) is None
    parser = job.model_options.model_copy(update={"tool_parser": "hermes"})
    algorithm = job.reinforcement.algorithm.model_copy(update={"lora": None})
    reinforcement = job.reinforcement.model_copy(update={"algorithm": algorithm})
    method = job.method.model_copy(update={"reinforcement": reinforcement})
    resolved = job.model_copy(update={"model_options": parser, "method": method})
    run.write_job(resolved, resolve_plan(job, 480, 10**9)[0], {"digests": digest_job(job)})
    assert find_recorded_evaluation(runs, job, model, "test_file", 2) == run.path, "auto meant hermes, without LoRA"
    rows.write_text('{"other": 1}\n')
    assert find_recorded_evaluation(runs, job, model, "test_file", 2) is None
    (runs / "broken").mkdir()
    (runs / "broken" / "job.resolved.json").write_text("{")
    assert find_recorded_evaluation(runs, job, model, "test_file", 2) is None


def test_grades_of_any_range_have_no_bounds() -> None:
    request = group_request(task=task("r"), purpose="test")
    made = [Group(request, (rollout(request, 0, value),)) for value in (0.0, 30.0)]
    comparison = compare_evaluations([side("a", made[0]), side("b", made[1])], 1)
    assert math.isnan(change_of(comparison, "grade").interval.low)


def test_a_comparison_names_the_rollouts_without_a_grade(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    groups = [group(group_request(i, 2, "test"), [1.0, 0.0 if i else None]) for i in range(2)]
    stream = stream_of(run, group_sinks=[run])
    stream.emit_groups("eval-test", groups)
    stream.emit(Evaluated(name="eval-test", evaluation=summarize(groups, 2, 1.0)))
    run.close()
    found = compare_evaluations([load_evaluation("a", "a", run, "eval-test"), side("b", *groups)], 2)
    [line] = [line for line in shown(found).splitlines() if "no grade" in line]
    bounds = "the mean grade is 0.500 if all missing rollouts count as wrong, and 0.750 if all count as right"
    assert line.strip() == f"a: 1 of 4 rollouts has no grade: {bounds}"
    missing = [{name: json_side[name] for name in MISSING} for json_side in comparison_json(found)["sides"]]
    assert missing == [dict(zip(MISSING, (1, 0.5, 0.75), strict=True)), dict.fromkeys(MISSING)]


MISSING = ("num_missing", "grade_if_wrong", "grade_if_right")
