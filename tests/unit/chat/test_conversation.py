"""Supervised samples: what is trained, and when a conversation becomes several samples."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from agent_rft.chat.conversation import SupervisedSample, split_conversation
from agent_rft.chat.renderer import Renderer
from tests.support.paths import BASE

CALLS = [
    {"id": "a", "type": "function", "function": {"name": "cat", "arguments": '{"path": "a"}'}},
    {"id": "b", "type": "function", "function": {"name": "cat", "arguments": '{"path": "b"}'}},
]
TRACE: list[dict[str, Any]] = [
    {"role": "user", "content": "what was debt of vorzen in 2015?"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "b", "content": "5678"},
    {"role": "tool", "tool_call_id": "a", "content": "1234"},
    {"role": "assistant", "content": "6912"},
    {"role": "user", "content": [{"type": "text", "text": "and in "}, {"type": "text", "text": "2016?"}]},
    {"role": "assistant", "content": "42"},
]
FIRST = (
    '<tool_call>\n{"name": "cat", "arguments": {"path": "a"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "cat", "arguments": {"path": "b"}}\n</tool_call><|im_end|>'
)
KEEPS_LAST = """
{%- for m in messages %}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}
{%- if m.role == 'assistant' and loop.index0 == messages | length - 1 %}{{ '<think>\n\n</think>\n' }}{% endif %}
{{- m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' + c.function.name + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
OPENS = KEEPS_LAST.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")


def renderer_of(template: str | None = None) -> Renderer:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    if template is not None:
        tokenizer.chat_template = template
    return Renderer(tokenizer)


def trained(renderer: Renderer, sample: SupervisedSample) -> str:
    ids = [token for token, chosen in zip(sample.token_ids, sample.mask, strict=True) if chosen]
    return renderer.tokenizer.decode(ids, skip_special_tokens=False)


def whole(renderer: Renderer, sample: SupervisedSample) -> str:
    return renderer.tokenizer.decode(sample.token_ids, skip_special_tokens=False)


def test_a_conversation_is_one_sample_that_trains_the_assistants_turns_and_their_ends() -> None:
    renderer = renderer_of()
    (sample,) = split_conversation(renderer, TRACE, ())
    assert trained(renderer, sample) == f"{FIRST}6912<|im_end|>42<|im_end|>"
    text = whole(renderer, sample)
    assert text.index("1234") < text.index("5678") < text.index("and in 2016?"), "results in the order of their calls"
    assert text == renderer.render_text(TRACE, (), add_generation_prompt=False).rstrip("\n")


def test_where_the_template_rewrites_turns_each_is_trained_once_in_a_sample_of_its_own() -> None:
    renderer = renderer_of(KEEPS_LAST)
    samples = split_conversation(renderer, TRACE, ())
    assert [trained(renderer, sample).count("<think>\n\n</think>\n") for sample in samples] == [1, 1, 1]
    assert [whole(renderer, sample).count("<think>") for sample in samples] == [1, 1, 1]
    assert trained(renderer, samples[1]).endswith("6912<|im_end|>")


def test_a_turn_without_reasoning_closes_the_reasoning_that_the_prompt_opens() -> None:
    renderer = renderer_of(OPENS.replace("{{ '<think>\n\n</think>\n' }}", ""))
    samples = split_conversation(renderer, TRACE[:1] + TRACE[-1:], ())
    assert [trained(renderer, sample) for sample in samples] == ["\n</think>\n\n42<|im_end|>"]
    assert whole(renderer, samples[0]).count("<think>\n\n</think>\n\n42") == 1


def test_a_message_of_weight_0_is_history_only() -> None:
    renderer = renderer_of()
    messages = [TRACE[0], TRACE[1] | {"weight": 0}, *TRACE[2:4], TRACE[4] | {"weight": 1}]
    (sample,) = split_conversation(renderer, messages, ())
    assert trained(renderer, sample) == "6912<|im_end|>"
    assert FIRST in whole(renderer, sample)


def test_a_template_that_starts_turns_otherwise_than_its_generation_prompt_is_refused() -> None:
    renderer = renderer_of(KEEPS_LAST.replace("'<|im_start|>assistant\n'", "'<|im_start|>bot\n'"))
    with pytest.raises(ValueError, match="generation prompt"):
        split_conversation(renderer, TRACE[:1] + TRACE[-1:], ())


@pytest.mark.parametrize("none", ["", " ", None])
def test_a_supervised_call_without_arguments_trains_an_empty_object(none: str | None) -> None:
    renderer, call = renderer_of(), {"id": "a", "type": "function", "function": {"name": "cat", "arguments": none}}
    (sample,) = split_conversation(
        renderer, [TRACE[0], {"role": "assistant", "content": None, "tool_calls": [call]}], ()
    )
    assert trained(renderer, sample) == '<tool_call>\n{"name": "cat", "arguments": {}}\n</tool_call><|im_end|>'
