import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from agent_rft.cli.main import app
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.report.report_page import write_report
from agent_rft.cluster.views.report.report_rows import MAX_CHARS, SHOWN_ROLLOUTS, SHOWN_ROWS, make_report_rows
from agent_rft.events import AlarmRaised, JobEnded, Notice, StepDone
from agent_rft.types import Grade, Group, Turn
from tests.support.builders import group, group_request, rollout
from tests.support.events import run_event, stream_of


class Page(HTMLParser):
    """The tags, texts, scripts and attributes of a report."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.scripts, self.attributes = [], [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        (self.scripts if self.tags and self.tags[-1] == "script" else self.texts).append(data)

    def handle_endtag(self, tag):
        self.tags.append("/" + tag)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))

    @property
    def charts(self):
        drawing = self.scripts[-1]
        return {c["title"]: c for c in json.loads(re.search(r"const charts = (.*);\n", drawing).group(1))}


def test_a_whole_run_has_headlines_curves_and_rows(tmp_path, synthetic):
    run = synthetic.run(tmp_path / "run")
    page = Page(write_report(run))
    after = run.evaluations()["test-after"]
    assert "ledger" in page.text and "not complete" not in page.text
    assert f"{after.grade:.3f}" in page.text and after.get_interval("grade").format_bounds("{:.3f}") in page.text
    assert "only 8 rows" in page.text
    quality = {curve["name"]: curve for curve in page.charts["Grade and reward"]["data"]}
    assert set(quality) == {"train grade", "train reward", "validation grade", "validation reward", "test grade"}
    assert quality["validation grade"]["x"] == [0, 4, 8, 12]
    found = dict(run.validations())[4].get_interval("grade")
    errors = quality["validation grade"]["error_y"]
    assert (errors["array"][1], errors["arrayminus"][1]) == (found.high - found.mean, found.mean - found.low)
    assert quality["test grade"]["x"] == [0, 12] and quality["train grade"]["x"] == list(range(1, 13))
    assert [curve["name"] for curve in page.charts["Tool calls per rollout"]["data"]] == ["cat", "list", "search"]
    assert len(page.charts["Time per step"]["data"]) == 4
    assert page.tags.count("details") == 8 + 1  # one per row, and the job
    assert page.text.count("what was net income of company") == 8 + 2 * 4  # the rows, and the lists of worst and best
    assert page.text.count("reference_answer") == 8 and "calls in parallel" in page.text
    assert "trace_" in page.text and "vorzen/2013/income" in page.text and "I look at" in page.text


def test_alarms_come_before_the_figures_with_their_fix_and_the_held_out_grade_is_a_headline(tmp_path, synthetic):
    run = synthetic.run(tmp_path)
    assert "may be fooled" not in Page(write_report(run)).text
    run = RunFolder(tmp_path)
    alarm = AlarmRaised(
        rule="diverged", metric="held_out_grade_mean", initial_value=0.4, value=0.0, traces=("trace_<b>",)
    )
    run.handle_event(run_event(alarm))
    held_out = [
        replace(group, rollouts=tuple(replace(r, grade=replace(r.grade, held_out=0.25)) for r in group.rollouts))
        for group in synthetic.groups(4, 1, "test", 0, 0.5)
    ]
    synthetic.evaluate(stream_of(run, group_sinks=[run]), "test-after", held_out, 12)
    run.handle_event(run_event(StepDone(step=13, total_steps=13, metrics={"step": 13.0, "held_out_grade_mean": 0.25})))
    run.close()
    page = Page(write_report(run))
    first, _, figures = page.text.partition("Test file")
    assert "The grader may be fooled." in first and "fix the grader or add a guard" in first
    assert page.text.count("held_out_grade_mean fell from 0.40 to 0.00") == 1 and "trace_<b>" in first
    assert "Held-out grade – → 0.250" in figures.partition("before after")[0]
    assert "held-out grade" in {curve["name"] for curve in page.charts["Grade and reward"]["data"]}


def test_a_report_needs_no_network(tmp_path, synthetic):
    page = Page(write_report(synthetic.run(tmp_path)))
    links = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert links and all(link.startswith("#row-") for link in links)
    assert "default-src 'none'" in page.source and "link" not in page.tags and "img" not in page.tags


def test_hostile_text_is_shown_but_never_executed(tmp_path, synthetic):
    run = synthetic.run(tmp_path, hostile=True)
    run = RunFolder(tmp_path)
    run.handle_event(run_event(JobEnded(outcome="failed", error="<script>alert(2)</script>")))
    metrics = {"step": 13.0, "total_steps": 13.0, "tool/</script><script>alert(3)//calls_mean": 1.0}
    run.handle_event(run_event(StepDone(step=13, total_steps=13, metrics=metrics)))
    run.close()
    page = Page(write_report(run))
    assert page.tags.count("script") == 2 and len(page.scripts) == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script>document.title='owned'</script>" in page.text and "<script>alert(2)</script>" in page.text
    assert any("alert(3)" in curve["name"] for curve in page.charts["Tool calls per rollout"]["data"])


def test_the_report_of_an_aborted_run_says_so_and_why(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    synthetic.play(stream_of(run, group_sinks=[run]), run, steps=5)
    run.handle_event(run_event(JobEnded(outcome="failed", error="search answered 401")))
    run.close()
    page = Page(write_report(tmp_path))
    assert "5 of 12 steps are done" in page.text and "search answered 401" in page.text
    assert "Validation file, step 0 and step 4" in page.text


@pytest.mark.parametrize(
    "how", [{"test": False}, {"validation_every": 0}, {"test": False, "validation_every": 0}, {"steps": 1, "total": 1}]
)
def test_missing_parts_are_left_out(tmp_path, synthetic, how):
    page = Page(write_report(synthetic.run(tmp_path, **how)))
    assert "Grade and reward" in page.charts and "nan" not in page.text.lower().split()
    assert ("Test file" in page.text) == how.get("test", True)


def test_a_run_that_never_started_has_a_report(tmp_path):
    page = Page(write_report(tmp_path))
    assert "0 of 0 steps are done" in page.text and page.charts == {}


def test_a_model_that_was_only_graded_has_a_report(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    groups = synthetic.groups(4, 3, "test", 0, 0.5)
    synthetic.evaluate(stream_of(run, group_sinks=[run]), "eval-test", groups, 0)
    run.close()
    page = Page(write_report(run))
    assert "eval-test" in page.text and "not complete" not in page.text
    assert "pass@3" in page.text and "before" not in page.text
    assert [f"rollout {n} " in page.text for n in (1, 2, 3, 4)] == [True, True, True, False]


def test_rows_without_a_grade_and_lone_surrogates_are_shown(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    groups = synthetic.groups(2, 2, "test", 0, 0.0)
    lost = [type(g)(g.request, (), g.discarded) for g in groups]
    for name, graded in (("test-before", groups), ("test-after", lost)):
        synthetic.evaluate(stream_of(run, group_sinks=[run]), name, graded, 0)
    run.handle_event(run_event(Notice(text="odd \ud800 text")))
    run.close()
    page = Page(write_report(run))
    assert "search answered 503" in page.text and "discarded" in page.text and "odd" in page.text
    bounds = "the mean grade is 0.000 if all missing rollouts count as wrong"
    assert f"After: 4 of 4 rollouts have no grade: {bounds}" in page.text


def test_each_command_of_a_report_works(tmp_path, synthetic):
    run = synthetic.run(tmp_path / "run", steps=1, total=1)
    groups = [group(group_request(3, SHOWN_ROLLOUTS + 4, "test"), [0.5] * (SHOWN_ROLLOUTS + 4))]
    run = RunFolder(run.path)
    run.handle_groups("test-after", groups)
    run.close()
    page = Page(write_report(run))
    commands = re.findall(r"<code>agent-rft (.*?)</code>", page.source)
    assert len(commands) == 2 and "4 more:" in page.text
    for command in commands:
        told = CliRunner().invoke(app, [str(run.path) if part == "RUN" else part for part in command.split()])
        assert told.exit_code == 0 and "sample" in told.output, command


def test_each_chart_has_a_sentence_below_it(tmp_path, synthetic):
    page = Page(write_report(synthetic.run(tmp_path)))
    for title, chart in page.charts.items():
        assert chart["summary"][0].isupper() and chart["summary"].endswith(".") and chart["summary"] in page.text, title
    calls = page.charts["Tool calls per rollout"]
    first, last = (sum(curve["y"][at] + curve["y"][at + 1] for curve in calls["data"]) / 2 for at in (0, -2))
    assert calls["summary"].startswith(f"From {first:.3g} to {last:.3g}: ")


def test_a_trace_has_the_graders_reason_and_the_rows_keys(tmp_path, synthetic):
    run, request = RunFolder(tmp_path), group_request(0, 2, "test")
    grades = [Grade(1.0, reason="reason 0"), Grade(0.0, reason="reason 1")]
    tries = [replace(rollout(request, i), grade=grade) for i, grade in enumerate(grades)]
    synthetic.evaluate(stream_of(run, group_sinks=[run]), "eval-test", [Group(request, tuple(tries))], 0)
    run.close()
    page = Page(write_report(run))
    assert page.text.count("reason 0") == 1 and page.text.count("reason 1") == 2  # the worst rollout represents the row


# -- which rows --------------------------------------------------------------------------------------------------------


def graded(*grades):
    return [group(group_request(i, 1, "test"), [grade]) for i, grade in enumerate(grades)]


def test_the_worst_rows_come_first_and_those_without_a_grade_last():
    rows = make_report_rows(
        ("test-before", graded(1.0, 0.5, 0.0, 0.0, 0.2)), ("test-after", graded(0.5, 0.0, 0.0, None, 1.0))
    )
    assert [row.line for row in rows.shown] == ["1", "2", "0", "4", "3"]
    assert [(heading, [row.line for row in ends]) for heading, ends in rows.extremes] == [
        ("Worst rows", ["1", "2"]),
        ("Best rows", ["4", "0"]),
    ]
    assert make_report_rows(None, ("eval-test", graded(0.5, 0.5, 0.5))).extremes == []
    assert make_report_rows(None, ("eval-test", [])).shown == []


def test_of_many_rows_the_worst_and_the_best_are_shown():
    total = SHOWN_ROWS + 101
    rows = make_report_rows(None, ("eval-test", graded(*(i / total for i in range(total)))))
    lines = [int(row.line) for row in rows.shown]
    assert rows.num_rows == total and len(lines) == SHOWN_ROWS
    assert lines == sorted(lines) and (lines[0], lines[-1]) == (0, total - 1)


def test_traces_have_a_budget_that_the_worst_and_best_rows_get_first():
    long = Turn(2, 5, "x" * 10_000)
    request = group_request(0, 1, "test")
    heavy = tuple(long for _ in range(MAX_CHARS // 700 * 2 // 5))  # 40 % of the budget
    groups = [
        Group(replace(request, task=replace(request.task, row_id=f"{i}-x")), (rollout(request, 0, i / 9, turns=heavy),))
        for i in range(9)
    ]
    rows = make_report_rows(None, ("eval-test", groups)).shown
    assert [row.after.left_out for row in rows] == [0, 1, 1, 1, 1, 1, 1, 1, 0]
