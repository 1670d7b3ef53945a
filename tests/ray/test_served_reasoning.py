"""Reasoning of a served turn, parsed by vLLM token by token and as a whole, without an engine."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from agent_rft.chat.families.hermes import HERMES
from agent_rft.chat.families.mistral import MISTRAL
from agent_rft.chat.model_family import ModelFamily
from tests.support.paths import BASE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TOOLS = [{"type": "function", "function": {"name": "cat", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "cat", "arguments": {"path": "a"}}\n</tool_call>'
CASES = [
    ("", "42", None, "42", []),
    ("", f"<think>I say {CALL} or not</think>42", f"I say {CALL} or not", "42", []),
    ("", f"<think>look</think>{CALL}", "look", None, ["cat"]),
    ("", CALL, None, None, ["cat"]),
    ("", f"well {CALL}", None, "well", ["cat"]),
    ("<think>old</think>", "42", None, "42", []),
    ("<think>old</think>", f"<think>new</think>{CALL}", "new", None, ["cat"]),
    ("<think>", f"look</think>{CALL}", "look", None, ["cat"]),
    ("", "<think>cut off", "cut off", None, []),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.add_tokens([*HERMES.reasoning_delimiters, *MISTRAL.reasoning_delimiters])
    return tokenizer


@pytest.fixture(scope="module")
def parser_class(tokenizer: Any) -> Any:
    from vllm.parser import ParserManager

    from agent_rft.actors.engine.chat import reasoning_parser

    parser = reasoning_parser.register_parser(HERMES.reasoning_delimiters)
    return ParserManager.get_parser("hermes", parser, enable_auto_tools=True, tokenizer=tokenizer)


@pytest.mark.parametrize("family", [HERMES, MISTRAL], ids=lambda family: family.name)
@pytest.mark.parametrize("tool_parser", ["hermes", None])
def test_reasoning_is_separated_with_and_without_a_tool_parser(
    tokenizer: Any, tool_parser: str | None, family: ModelFamily
) -> None:
    from vllm.parser import ParserManager

    from agent_rft.actors.engine.chat import reasoning_parser

    begin, end = family.reasoning_delimiters
    name = reasoning_parser.register_parser((begin, end))
    enabled = tool_parser is not None
    parser_class: Any = ParserManager.get_parser(tool_parser, name, enable_auto_tools=enabled, tokenizer=tokenizer)
    asked = request(tools=None)
    parser = parser_class(tokenizer, None)
    assert parser.adjust_request(asked).skip_special_tokens is False, "the delimiters may be special tokens"
    for prompt, text in (("", f"{begin}look{end}{CALL}"), (begin, f"look{end}{CALL}")):
        found = parser.parse(text, asked, enabled, tokenizer.encode(text, add_special_tokens=False))
        assert (found[0], (found[1] or "").strip()) == ("look", CALL)
        reasoning, content, _ = streamed(tokenizer, parser_class(tokenizer, None), asked, prompt, text)
        assert (reasoning, content.strip()) == ("look", CALL)


def request(tools: Any = TOOLS) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(model="m", messages=[], tools=tools)


@pytest.mark.parametrize(("prompt", "text", "reasoning", "content", "names"), CASES)
def test_reasoning_ends_where_the_episode_loop_ends_it(
    tokenizer: Any, parser_class: Any, prompt: str, text: str, reasoning: Any, content: Any, names: list[str]
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = parser_class(tokenizer, request().tools).parse(text, request(), True, ids)
    assert (found[0], (found[1] or "").strip() or None) == (reasoning, content)
    assert [made.name for made in found[2] or []] == names


def streamed(tokenizer: Any, parser: Any, asked: Any, prompt: str, text: str) -> tuple[str, str, list[str]]:
    """Parse a text token by token; returns the reasoning, the content and the names of the calls."""
    prompt_ids = tokenizer.encode(f"hi{prompt}", add_special_tokens=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    reasoning, content, called = "", "", list[str]()
    for i, token in enumerate(ids):
        before, after = (tokenizer.decode(ids[:n], skip_special_tokens=False) for n in (i, i + 1))
        delta = parser.parse_delta(after[len(before) :], [token], asked, prompt_ids, finished=i == len(ids) - 1)
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        called += [made.function.name for made in delta.tool_calls or () if made.function and made.function.name]
    return reasoning, content, called


@pytest.mark.parametrize(("prompt", "text", "reasoning", "content", "names"), CASES)
def test_a_stream_is_parsed_equally(
    tokenizer: Any, parser_class: Any, prompt: str, text: str, reasoning: Any, content: Any, names: list[str]
) -> None:
    found = streamed(tokenizer, parser_class(tokenizer, request().tools), request(), prompt, text)
    assert (found[0] or None, found[1].strip() or None, found[2]) == (reasoning, content, names)


def test_reasoning_is_counted_as_in_the_episode_loop(tokenizer: Any, parser_class: Any) -> None:
    ids = tokenizer.encode("<think>look</think>42", add_special_tokens=False)
    parser = parser_class(tokenizer, None)
    assert parser.count_reasoning_tokens(ids) == ids.index(tokenizer.convert_tokens_to_ids("</think>")) + 1
    assert parser.count_reasoning_tokens(tokenizer.encode("42", add_special_tokens=False)) == 0
