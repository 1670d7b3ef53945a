"""Templates: what they are rendered to, and which mistakes are found when."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.actors.graders.grader_templates import render, template_problems
from agent_rft.errors import GraderFailed

ITEM: dict[str, Any] = {
    "answer": "Paris",
    "count": 3,
    "none": None,
    "nested": {"list": [{"key-1": "deep"}], "flag": True},
    "trap": "{{ item.answer }}",
}
SAMPLE: dict[str, Any] = {
    "output_text": "It is Paris.",
    "output_tools": [{"function": {"name": "search", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ item.answer }}", "Paris"),
        ("{{item.answer}}/{{  sample.output_text  }}", "Paris/It is Paris."),
        ("{{ sample.output_tools[0].function.name }}", "search"),
        ("{{ item.nested.list[0].key-1 }}", "deep"),
        ("{{ item.count }} {{ item.none }} {{ item.nested.flag }}", "3 null true"),
        ("{{ item.nested }}", '{"list": [{"key-1": "deep"}], "flag": true}'),
        ("{{ item.trap }}", "{{ item.answer }}"),
        ('no template {"a": {"b": 1}}', 'no template {"a": {"b": 1}}'),
        ("", ""),
        ("{{ sample.output_tools[0] }}", '{"function": {"name": "search", "arguments": "{}"}}'),
    ],
)
def test_a_template_is_rendered(template: str, text: str) -> None:
    assert template_problems(template) == []
    assert render(template, "grader 'x', input", item=ITEM, sample=SAMPLE) == text


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("item.missing", "there is no 'missing' in an object with the keys"),
        ("item.nested.list[1]", "there is no 1 in a list of length 1"),
        ("item.answer[0]", "there is no 0 in a value of type str"),
        ("item.nested[0]", "there is no 0 in an object"),
        ("sample.output_json.score", "there is no 'output_json'"),
    ],
)
def test_a_path_without_a_value_is_an_invalid_variable_error_that_names_it(path: str, why: str) -> None:
    assert template_problems(f"{{{{ {path} }}}}") == []
    with pytest.raises(GraderFailed) as failed:
        render(f"a {{{{ {path} }}}} b", "grader 'x', input", item=ITEM, sample=SAMPLE)
    assert failed.value.details == {"code": "invalid_variable_error", "path": path}
    assert all(part in failed.value.message for part in ("grader 'x', input", path, why, "invalid_variable_error"))


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ row.answer }}", "row.answer"),
        ("{{ item }}", "item"),
        ("{{ item.a | upper }}", "upper"),
        ("{{ item.a[x] }}", "item.a[x]"),
        ("{{ item.a[-1] }}", "item.a[-1]"),
        ("{{ }}", "not a path"),
        ("{{ sample.output_txt }}", "output_text"),
        ("{{ sample[0] }}", "a sample has only"),
        ("{{ sample.output_text.length }}", "has no keys"),
        ("{{ sample.output_tools.function }}", "write output_tools[0]"),
        ("{{ sample.choices.message }}", "write choices[0]"),
        ("{{ item.a }} and {{ item.b", "not closed"),
    ],
)
def test_an_invalid_template_is_found_without_a_row(template: str, problem: str) -> None:
    [found] = template_problems(template)
    assert problem in found
