"""What examples share: figures of a run as a table, and when a case counts as learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cluster.views.traces import Trace, trace_json
from examples.common.learn import main
from examples.common.results import gain, paired_gain, results, rows_part, table
from examples.common.way import stage
from tests.support.builders import group_request, rollout

FIGURES = {"num_rows": 60, "grade": 0.5, "ci95": 0.1, "pass_rate": 0.25, "tool_calls": 2, "completion_tokens": 70}
ROWS = [str(row) for row in range(20)]


def summary(grades: list[float], held_out: list[float] | None = None, seed: int = 7) -> dict[str, Any]:
    """A run that begins at 0 with each row and reaches `grades`."""

    def stage_of(name: str, reached: list[float], held: list[float] | None, scores: dict[str, float]) -> dict[str, Any]:
        parts = {"grades": dict(zip(ROWS, reached, strict=True)), "scores": scores}
        parts["held_out"] = {} if held is None else dict(zip(ROWS, held, strict=True))
        parts["seconds"] = {row: float(row) for row in ROWS}
        return stage(name, FIGURES, 1.5) | parts

    none = [0.0] * len(ROWS)
    stages = [
        stage_of("before", none, held_out and none, {"late": 1.5}),
        stage_of("after", grades, held_out, {}),
    ]
    return {"seed": seed, "settings": [], "cores": 2, "minutes": 20, "load": [0.5, 2.0], "stages": stages}


BETTER, MIXED = [1.0] * 15 + [0.0] * 5, [1.0, -1.0] * 10


def test_the_rows_of_an_evaluation_have_grades_held_out_grades_and_means_of_scores() -> None:
    done = rollout(group_request(), 0, grade=0.75)
    done = replace(done, grade=replace(done.grade, held_out=0.5, scores={"false_citations": 1.0}))
    lines = [json.loads(trace_json(Trace("test-after", group_request(), done))), {"kind": "discarded", "row_id": "2"}]
    assert done.busy_s == 0.1
    assert rows_part(lines) == {
        "grades": {done.row_id: 0.75},
        "held_out": {done.row_id: 0.5},
        "seconds": {done.row_id: done.busy_s},
        "turns": 1.0,
        "scores": {"false_citations": 1.0},
    }
    assert rows_part([]) == {"grades": {}, "held_out": {}, "seconds": {}, "turns": None, "scores": {}}


def test_a_row_with_several_rollouts_counts_by_their_mean_and_has_a_best_one() -> None:
    grades = [("a", 0.0, 0.5), ("a", 1.0, None), ("b", 0.5, 0.25), ("b", 0.0, 0.75)]
    lines = [
        {"kind": "rollout", "row_id": row, "grade": {"value": value, "held_out": held_out, "scores": {}}, "turns": []}
        for row, value, held_out in grades
    ]
    assert rows_part(lines) == {
        "grades": {"a": 0.5, "b": 0.25},
        "held_out": {"a": 0.5, "b": 0.5},
        "seconds": {"a": 0, "b": 0},
        "turns": 0,
        "scores": {"best of 2": 0.75},
    }


def test_the_gain_is_paired_over_the_rows_that_both_stages_have() -> None:
    before, after = {"a": 0.0, "b": 0.5, "c": 0.0, "gone": 1.0}, {"a": 1.0, "b": 0.5, "c": 0.5}
    assert paired_gain(before, after) == pytest.approx((0.5, 0.566), abs=1e-3)


def test_the_held_out_grader_decides_where_there_is_one() -> None:
    assert gain(summary(BETTER))[0] == 0.75
    assert gain(summary(BETTER, MIXED))[0] == 0.0


def test_the_table_has_each_stage_the_gain_and_the_load() -> None:
    lines = table([summary(BETTER, BETTER)]).splitlines()
    assert lines[0] == (
        "| seed | stage | grade | right | held out | late | tool calls | sampled tokens | minutes | load |"
    )
    assert lines[2] == "| 7 | before | 0.500 ± 0.100 | 25% | 0.000 | 1.50 | 2.00 | 70 | 1.5 |  |"
    assert lines[3] == "| 7 | after | 0.500 ± 0.100 | 25% | 0.750 |  | 2.00 | 70 | 1.5 |  |"
    assert lines[4] == "| 7 | gain |  |  | **+0.750 ± 0.195** |  |  |  | 20.0 in all | 0.5 to 2.0 |"


def test_turns_are_in_the_table_where_a_run_has_them() -> None:
    run = summary(BETTER)
    run["stages"][1]["turns"] = 2.25
    lines = [line.split(" | ") for line in table([run]).splitlines()]
    at = lines[0].index("turns")
    assert [line[at] for line in lines[2:]] == ["", "2.25", ""]


def test_a_wanted_latency_shows_the_share_of_slower_rollouts_beside_the_grades() -> None:
    run = summary(BETTER, BETTER)
    run["stages"][1]["seconds"] = dict.fromkeys(ROWS, 1.0) | {"0": 6.0}
    lines = [line.split(" | ") for line in table([run], target_s=5.0).splitlines()]
    at = lines[0].index("slow")
    assert lines[0][at - 1] == "held out"
    assert [line[at] for line in lines[2:]] == ["70%", "5%", "**-65% ± 26%**"]
    text = results("icd10", [run])
    assert "`slow`: share of rollouts with over 20 s of model and tool time" in text and "| held out | slow |" in text
    assert "slow" not in results("filings", [run])


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([BETTER, BETTER, MIXED], "Learned"),
        ([BETTER, MIXED, MIXED], "Not shown to be learned"),
        ([BETTER], "Too few runs to tell"),
    ],
)
def test_a_case_is_learned_if_two_of_three_intervals_lie_above_zero(runs: list[list[float]], verdict: str) -> None:
    text = results("filings", [summary(run, run, seed) for seed, run in enumerate(runs)])
    assert text.startswith("# Results\n\n`python -m examples.common.results filings` writes this file from runs of")
    assert f"**{verdict}**: the interval" in text
    assert "over the 60 unseen rows" in text


def test_runs_with_other_settings_are_shown_and_do_not_count() -> None:
    runs = [summary(BETTER, BETTER, seed) for seed in (1, 2)]
    hacked = [summary(MIXED, MIXED, seed) | {"settings": ["RUBRIC=first"]} for seed in (1, 2)]
    text = results("filings", [*runs, *hacked])
    assert "**Learned**: the interval of the gain lies above 0 in 2 of 2 runs." in text
    assert "| 2 RUBRIC=first | after |" in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["filings", "MODEL/nothing"], "nothing is not the folder of a model: it has no config.json"),
        (["filings", "MODEL", "--set", "RUBRICS=first"], "--set RUBRICS: the settings of filings are RUBRIC"),
        (["finqa", "MODEL", "--set", "RUBRIC=first"], "--set RUBRIC: the settings of finqa are none"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(
    tmp_path: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit):
        main([argument.replace("MODEL", str(tmp_path)) for argument in arguments])
    assert error in capsys.readouterr().err
