import json
import re
from html.parser import HTMLParser

import pytest

from cluster.records.run_folder import RunFolder
from cluster.views.report import write_report
from tests.support.events import run_event, stream_of
from trainer.events import JobEnded, Notice, StepDone


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
    assert f"{after.grade:.3f}" in page.text and f"± {after.ci95:.3f}" in page.text
    quality = {curve["name"]: curve for curve in page.charts["Grade and reward"]["data"]}
    assert set(quality) == {"train grade", "train reward", "validation grade", "validation reward", "test grade"}
    assert quality["validation grade"]["x"] == [0, 4, 8, 12]
    assert quality["validation grade"]["error_y"]["array"][1] == pytest.approx(dict(run.validations())[4].ci95)
    assert quality["test grade"]["x"] == [0, 12] and quality["train grade"]["x"] == list(range(1, 13))
    assert [curve["name"] for curve in page.charts["Tool calls per rollout"]["data"]] == ["cat", "list", "search"]
    assert len(page.charts["Time per step"]["data"]) == 4
    assert page.tags.count("details") == 8 + 1  # one per row, and the job
    assert page.text.count("what was net income of company") == 8
    assert "trace_" in page.text and "vorzen/2013/income" in page.text and "I look at" in page.text


def test_a_report_needs_no_network(tmp_path, synthetic):
    page = Page(write_report(synthetic.run(tmp_path)))
    assert not [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert "default-src 'none'" in page.source and "link" not in page.tags and "img" not in page.tags


def test_hostile_text_is_shown_but_never_executed(tmp_path, synthetic):
    run = synthetic.run(tmp_path, hostile=True)
    run = RunFolder(tmp_path)
    run.event(run_event(JobEnded(outcome="failed", error="<script>alert(2)</script>")))
    metrics = {"step": 13.0, "total_steps": 13.0, "tool/</script><script>alert(3)//calls_mean": 1.0}
    run.event(run_event(StepDone(step=13, total_steps=13, metrics=metrics)))
    run.close()
    page = Page(write_report(run))
    assert page.tags.count("script") == 2 and len(page.scripts) == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script>document.title='owned'</script>" in page.text and "<script>alert(2)</script>" in page.text
    assert any("alert(3)" in curve["name"] for curve in page.charts["Tool calls per rollout"]["data"])


def test_the_report_of_an_aborted_run_says_so_and_why(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    synthetic.play(stream_of(run, group_sinks=[run]), run, steps=5)
    run.event(run_event(JobEnded(outcome="failed", error="search answered 401")))
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
    assert "pass@3" in page.text and "the first of 3" in page.text and "before" not in page.text


def test_rows_without_a_grade_and_lone_surrogates_are_shown(tmp_path, synthetic):
    run = RunFolder(tmp_path)
    groups = synthetic.groups(2, 2, "test", 0, 0.0)
    lost = [type(g)(g.request, (), g.discarded) for g in groups]
    for name, graded in (("test-before", groups), ("test-after", lost)):
        synthetic.evaluate(stream_of(run, group_sinks=[run]), name, graded, 0)
    run.event(run_event(Notice(text="odd \ud800 text")))
    run.close()
    page = Page(write_report(run))
    assert "search answered 503" in page.text and "discarded" in page.text and "odd" in page.text
