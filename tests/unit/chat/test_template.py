"""A chat template renders as in transformers, in a process of its own, which ends with its owner."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psutil
import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from agent_rft.chat.template import ChatTemplate, RenderFailed, load_chat_template
from agent_rft.errors import UserError
from agent_rft.problems import find_code
from tests.support.paths import BASE
from tests.support.tiny_model import TEMPLATE

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "the tiny model's": TEMPLATE,
    "blocks of lines": """
{% for m in messages %}
    {% if m.role == 'assistant' %}
        {% generation %}
[{{ m.content | trim }}]
        {% endgeneration %}
    {% else %}
{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
assistant:
{% endif %}
""",
    "JSON in each form": """{{ tools | tojson }}{{ messages | tojson(indent=2) }}
{{ messages | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}""",
    "loops that stop": """{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}
{{ loop.index }}{{ m.content }}{% if m.role == 'tool' %}{% break %}{% endif %}{% endfor %}""",
    "macros and namespaces": """{% set ns = namespace(last=0) %}
{%- macro show(m) %}<{{ m.role }}>{{ m.content if m.content is string else '' }}{% endmacro %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages[ns.last:] %}{{ show(m) }}{% endfor %}""",
    "variables": """{{ documents is none }} {{ tools is none }} {{ tools is defined }} {{ unk_token is defined }}
{{ enable_thinking if enable_thinking is defined else 'unset' }}{{ add_generation_prompt }}{{ eos_token }}""",
    "what Jinja imports late": """{{ messages | pprint }}{{ 'some words here' | wordwrap(5) }}{{ lipsum(0) }}
{{ 'a\\u00e4\\n' }}{{ messages | length }}{{ 'x' | center(9) }}{{ '%s' | format(3) }}{{ 1 / 3 }}""",
}
QUESTION = {"role": "user", "content": "where's <b>order 7</b>? äöü \U0001f600"}
CALL = {
    "id": "c0",
    "type": "function",
    "function": {"name": "order", "arguments": {"id": 7, "note": None, "rate": 0.1}},
}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [QUESTION],
    [
        {"role": "system", "content": "Be brief."},
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c0", "name": "order", "content": '{"state": "sent"}'},
        {"role": "assistant", "content": "<think>\nso\n</think>\n\n It is on its way. "},
        {"role": "user", "content": "thanks"},
    ],
]
TOOL = {"type": "function", "function": {"name": "order", "parameters": {"type": "object", "properties": {"id": {}}}}}
NOON = datetime(2024, 2, 29, 12)


def of_transformers(text: str, messages: list[dict[str, Any]], tools: list[Any], **values: Any) -> str:
    rendered: list[str] = render_jinja_template([messages], tools or None, chat_template=text, **values)[0]
    return rendered[0]


@pytest.mark.parametrize("text", TEMPLATES.values(), ids=TEMPLATES)
def test_the_text_is_that_of_transformers(text: str) -> None:
    with ChatTemplate(text, TOKENS) as template:
        for messages in CONVERSATIONS:
            for tools in ([], [TOOL]):
                for generate in (False, True):
                    for arguments in ({}, {"enable_thinking": False}, {"eos_token": "<end>"}):
                        values = {**TOKENS, **arguments, "add_generation_prompt": generate}
                        wanted = of_transformers(text, messages, tools, **values)
                        assert template.render(messages, tools, generate=generate, **arguments) == wanted


def test_the_time_in_a_template_is_fixed() -> None:
    text = "{{ strftime_now('%d %b %Y %H:%M') }}"
    with ChatTemplate(text, now=NOON) as template:
        first = template.render([QUESTION], (), generate=True)
        template.close()
        assert template.render([QUESTION], (), generate=True) == first == "29 Feb 2024 12:00"
    with ChatTemplate("{{ strftime_now('%Y') }}") as template:
        assert int(template.render([QUESTION], (), generate=True)) >= 2026


FAILS: dict[str, tuple[str, str, int | None, str]] = {
    "an open block": ("a\n{% if x %}", "syntax", 2, "Unexpected end of template"),
    "an unknown filter": ("a\n\n{{ x | nope }}", "syntax", 3, "No filter named 'nope'"),
    "too many loops for Python": ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "syntax", None, "nested blocks"),
    "an error of its own": ("\n{{ raise_exception('Roles must\n alternate') }}", "raised", 2, "Roles must alternate"),
    "a value that is missing": ("\n{% for m in messages %}\n{{ m.x.y }}{% endfor %}", "failed", 3, "no attribute 'x'"),
    "a wrong type": ("{{ messages[0].content + 1 }}", "failed", 1, "can only concatenate str"),
    "another file": ("{% include 'x' %}", "failed", 1, "no loader"),
}


@pytest.mark.parametrize(("text", "kind", "line", "words"), FAILS.values(), ids=FAILS)
def test_an_error_has_its_kind_and_line_in_one_line(text: str, kind: str, line: int | None, words: str) -> None:
    with ChatTemplate(text) as template, pytest.raises(RenderFailed) as caught:
        template.render([QUESTION], (), generate=True)
    error = caught.value
    assert (error.kind, error.line) == (kind, line)
    assert words in error.problem and error.fix and "\n" not in error.message
    assert error.message == f"{error.problem}: {error.fix}"
    assert error.code == error.details["code"] and find_code(error.code) is not None


def test_an_error_crosses_to_another_process() -> None:
    with ChatTemplate("{{ x.y }}") as template, pytest.raises(RenderFailed) as caught:
        template.render([QUESTION], (), generate=True)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.kind, copy.line, copy.message) == (caught.value.kind, caught.value.line, caught.value.message)


def test_a_render_after_an_error_needs_no_new_process() -> None:
    with ChatTemplate("{{ messages[0].content + '.' }}") as template:
        assert template.render([{"role": "user", "content": "a"}], (), generate=True) == "a."
        before = template.pid
        with pytest.raises(RenderFailed):
            template.render([{"role": "user", "content": 1}], (), generate=True)
        assert template.render([{"role": "user", "content": "b"}], (), generate=True) == "b."
        assert template.pid == before is not None


def test_what_is_no_json_is_named() -> None:
    with ChatTemplate("{{ day }}") as template, pytest.raises(RenderFailed, match="datetime is not JSON"):
        template.render([QUESTION], (), generate=True, day=NOON)


def test_the_process_starts_late_and_ends_with_its_owner() -> None:
    template = ChatTemplate("x")
    assert template.pid is None
    template.render([QUESTION], (), generate=True)
    process = psutil.Process(template.pid)
    assert process.is_running()
    del template
    gc.collect()
    assert not process.is_running()


OWNER = """
import os
from agent_rft.chat.template import ChatTemplate

template = ChatTemplate("x")
os.write(1, template.render([], [], generate=True).encode())
os._exit(1)
"""


def test_the_process_ends_when_its_owner_is_killed() -> None:
    """Both write to one standard error, which is read until both have ended."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    owner = subprocess.run([sys.executable, "-c", OWNER], capture_output=True, env=environment, timeout=60)
    assert (owner.stdout, owner.stderr) == (b"x", b"")


@dataclass
class FakeTokenizer:
    chat_template: str | dict[str, str] | None
    special_tokens_map: Mapping[str, str]


def test_a_tokenizers_template_gets_its_special_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    for messages in CONVERSATIONS:
        for tools in ([], [TOOL]):
            wanted = tokenizer.apply_chat_template(
                messages, tools=tools or None, add_generation_prompt=True, tokenize=False
            )
            with load_chat_template(tokenizer) as template:
                assert template.render(messages, tools, generate=True) == wanted
    with load_chat_template(tokenizer, "{{ eos_token }}{{ messages[0].content }}") as template:
        assert template.render(CONVERSATIONS[0], (), generate=True) == tokenizer.eos_token + QUESTION["content"]


def test_those_with_the_same_template_share_it() -> None:
    tokenizer, others = FakeTokenizer("x", TOKENS), [FakeTokenizer("x", {}), FakeTokenizer("y", TOKENS)]
    assert load_chat_template(tokenizer) is load_chat_template(FakeTokenizer("x", TOKENS))
    assert load_chat_template(tokenizer) not in [load_chat_template(other) for other in others]
    assert load_chat_template(tokenizer, "y") is not load_chat_template(others[1])  # it has other limits


def test_of_several_templates_it_is_the_one_for_tools() -> None:
    assert load_chat_template(FakeTokenizer({"default": "a", "tool_use": "b"}, {})).text == "b"
    assert load_chat_template(FakeTokenizer({"default": "a", "rag": "b"}, {})).text == "a"


@pytest.mark.parametrize("missing", [None, "", {}, {"rag": "a"}])
def test_no_template_is_a_problem_with_a_fix(missing: str | dict[str, str] | None) -> None:
    with pytest.raises(UserError, match="no chat template: use an instruction-tuned model") as caught:
        load_chat_template(FakeTokenizer(missing, {}))
    assert caught.value.details["code"] == "no_chat_template"


def test_a_models_own_template_may_be_larger_than_a_users() -> None:
    large = "{# " + "x" * 70_000 + " #}"
    assert load_chat_template(FakeTokenizer(large, {})).text == large
    with pytest.raises(RenderFailed, match="70,006 bytes; at most 64,000") as caught:
        load_chat_template(FakeTokenizer("x", {}), large)
    assert caught.value.kind == "too_large"
    with pytest.raises(RenderFailed):
        load_chat_template(FakeTokenizer(json.dumps("x" * (1 << 20)), {}))
