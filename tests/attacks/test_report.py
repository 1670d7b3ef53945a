"""Text of rows, models, tools and graders that is an attack on who reads it: in the report, in traces, in `grade`."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.report.report_page import write_report
from agent_rft.cluster.views.traces import print_traces
from agent_rft.events import Evaluated, Notice
from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.types import DiscardedRollout, Grade, Group, ToolCall, ToolResult, Turn
from tests.support.budget import budget
from tests.support.builders import group_request, rollout, task
from tests.support.events import run_event
from tests.support.traces import select_traces

MARKUP = {
    "a script": "<script>alert(1)</script>",
    "an end of the script": "</script><script>alert(1)</script>",
    "an attribute": '" onmouseover="alert(1)" x="',
    "an attribute in single quotes": "' onclick='alert(1)'",
    "an image": "<img src=x onerror=alert(1)><svg/onload=alert(1)>",
    "an address": "<a href=javascript:alert(1)>x</a><iframe src=//example.org></iframe><base href=//example.org>",
    "a style": "</style><style>*{display:none}</style><meta http-equiv=refresh content=0>",
    "a template": "{{ 7 * 191 }}{% for x in range(10) %}",
    "an entity": "&lt;script&gt;&#x3c;script>",
    "a comment": "--><!-- <![CDATA[ ]]>",
}
CONTROL = "\x00\x07\x08\x1b[2J\x1b]0;owned\x07\x9b31m\u202ekcab\u2066\ud800[red]x[/red]"
LONG = "x" * 600_000
ALLOWED = (
    "html head meta title style body main h1 h2 h3 h4 p b i a small div span code pre table thead tbody tr th td dl dt "
    "dd section details summary label input select option button script"
)


class Page(HTMLParser):
    """What a browser would take for tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def attacked(path: Path, text: str) -> RunFolder:
    """A run in which everything that rows, models, tools and graders write is `text`."""
    request = group_request(0, 2, "test", task=task(f"1-{text[:50]}", text, **{text[:1000]: text, "list": [text]}))
    calls = tuple(ToolCall("c", text, json.dumps({"a": text})) for _ in range(2))
    results = tuple(ToolResult("c", text, error) for error in (None, "tool_error"))
    turn = Turn(2, 5, f"<think>{text}</think>{text}", calls, results)
    grade = Grade(0.0, {text[:60]: 0.5}, reason=text[:1000], guard=text[:60], held_out=0.1)
    tried = replace(rollout(request), answer=text, turns=(turn,), trace_id=f"t{text[:50]}", grade=grade)
    lost = DiscardedRollout("t", request.task.row_id, 2, "tool_failed", text)
    group = Group(request, (tried, rollout(request, 1)), (lost,))
    run = RunFolder(path)
    run.handle_groups("test-after", [group])
    run.handle_event(run_event(Evaluated(name="test-after", evaluation=summarize([group], 2, 1.0))))
    run.handle_event(run_event(Notice(text=text)))
    run.close()
    return run


def traces(run: RunFolder) -> str:
    page = io.StringIO()
    print_traces(select_traces(run), Console(file=page, width=100, color_system=None))
    return page.getvalue()


@pytest.mark.parametrize("text", MARKUP.values(), ids=MARKUP.keys())
def test_markup_is_shown_and_never_part_of_the_page(tmp_path: Path, text: str) -> None:
    html = write_report(attacked(tmp_path, text)).read_text()
    page = Page(html)
    assert set(page.tags) <= set(ALLOWED.split()) and page.tags.count("script") == 2 and page.tags.count("meta") == 4
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "srcdoc", "action")]
    assert all(value is not None and value.startswith("#row-") for name, value in page.attributes if name == "href")
    assert "1337" not in html.partition("<script")[0]
    assert "unsafe-eval" not in html and "script-src 'nonce-" in html
    assert text in traces(attacked(tmp_path / "again", text)).replace("\n", " ") or len(text) > 60


def test_control_characters_reach_neither_page_nor_terminal(tmp_path: Path) -> None:
    run = attacked(tmp_path, CONTROL)
    page, shown = write_report(run).read_text().partition("<script")[0], traces(run)
    for text in (page, shown):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
        assert "[red]x[/red]" in text
    shown.encode()


def test_very_long_lines_are_cut(tmp_path: Path) -> None:
    run = attacked(tmp_path, LONG)
    with budget(cpu_s=6.0, mib=300.0):
        path = write_report(run)
    plotly = 5_000_000
    assert path.stat().st_size < plotly + 100_000
    assert len(traces(run)) < 40_000
