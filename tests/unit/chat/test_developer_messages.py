"""Developer messages, rendered in their place with any model's chat template: unchanged or as system messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent_rft.actors.engine.chat.chat_model import ChatModel, Refusal
from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.chat.conversation import split_conversation
from agent_rft.chat.families import find_family
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.chat.template import RenderFailed
from agent_rft.chat.template_format import TemplateFormat
from agent_rft.cluster.checks.row_checks import CheckedRow, check_row_lengths
from agent_rft.serve.stores.sealed_secrets import FixedSecrets, MasterSecret, SecretBox
from agent_rft.types import Message, Task, ToolSchema
from agent_rft.wire.chat_schema import ChatRequest
from agent_rft.wire.responses_chat import to_chat_body
from agent_rft.wire.responses_schema import ResponsesRequest
from tests.support.episodes import TASK, ScriptedEpisode, graded
from tests.support.templates import NAMES, WITHOUT_TOOLS, found, template, tokenizer_for
from tests.support.tiny_model import WITHOUT_TOOLS as PLAIN
from tests.support.tiny_model import write_tiny_model

OMITS = PLAIN.replace("{%- for m in messages %}", "{%- for m in messages if m.role != 'developer' %}")
ONE_SYSTEM = """\
{%- for m in messages %}{%- if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('role') }}{% endif %}\
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('one system message') }}{% endif %}\
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
NO_SYSTEM = ONE_SYSTEM.replace("('system', 'user', 'assistant')", "('user', 'assistant')")
MOVES = """\
{%- for m in messages if m.role == 'system' %}{{ m.content + '<|im_end|>\\n' }}{% endfor %}\
{%- for m in messages if m.role in ('user', 'assistant') %}{{ m.content + '<|im_end|>\\n' }}{% endfor %}"""
LATER = "does not render developer messages after the first turn: move its text to the first system or user message"
NEITHER = "does not render developer or system messages: move its text to the first system or user message"

SYSTEM: Message = {"role": "system", "content": "You work for a bank."}
DEVELOPER: Message = {"role": "developer", "content": "Answer in cents."}
QUESTION: Message = {"role": "user", "content": "What is the debt?"}
ANSWER: Message = {"role": "assistant", "content": "It is seven."}
NEXT: Message = {"role": "user", "content": "And the profit?"}
MERGED: Message = {"role": "system", "content": "You work for a bank.\n\nAnswer in cents."}
PART = {"type": "text", "text": "Answer in cents."}
AS_SYSTEM: Message = {"role": "system", "content": "Answer in cents."}


@cache
def renderer_of(text: str) -> Renderer:
    return Renderer(tokenizer_for(text))


def rendered(renderer: Renderer, *messages: Message, tools: Sequence[ToolSchema] = ()) -> str:
    return renderer.render_text(messages, tools, add_generation_prompt=True)


def written(renderer: Renderer, *messages: Message) -> str:
    """Text of messages that the template gets as they are."""
    return renderer._render(messages, (), generate=True)


# -- templates of real models ------------------------------------------------------------------------------------------

ALWAYS_AS_SYSTEM = {"glm4moe", "muse_glimmer", "qwen2_5", "qwen3", "qwen3_instruct_2507", "raw phi3", "raw phi3_5"}
AS_FIRST_SYSTEM = {
    *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"),
    *("raw cohere", "raw cohere2", "raw deepseek_r1_distill", "raw deepseekv3", "raw gemma3"),
}
"""Templates that place a system message only at the start."""
ONLY_FIRST = {"cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma3", "gptoss"}
"""Templates, some with the prelude, that render developer messages only at the start."""
NEVER = {"raw gemma"}
TEMPLATES = (*NAMES, *(f"raw {name}" for name in WITHOUT_TOOLS))


def renderer_named(name: str) -> Renderer:
    return found(name)[0] if name in NAMES else renderer_of(template(name.removeprefix("raw ")))


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_real_template_renders_a_first_developer_message_in_its_place(name: str) -> None:
    renderer = renderer_named(name)
    is_rewritten = name in ALWAYS_AS_SYSTEM | AS_FIRST_SYSTEM
    if name in NEVER:
        for messages in ([DEVELOPER, QUESTION], [SYSTEM, DEVELOPER, QUESTION]):
            with pytest.raises(RenderFailed, match=NEITHER):
                rendered(renderer, *messages)
        return
    assert renderer.rewrites_developer([DEVELOPER, QUESTION]) == is_rewritten
    assert rendered(renderer, DEVELOPER, QUESTION) == written(
        renderer, AS_SYSTEM if is_rewritten else DEVELOPER, QUESTION
    )
    merges = is_rewritten or name == "gptoss"  # which renders one such message
    both = (MERGED,) if merges else (SYSTEM, DEVELOPER)
    assert rendered(renderer, SYSTEM, DEVELOPER, QUESTION) == written(renderer, *both, QUESTION)
    for messages in ([SYSTEM, DEVELOPER, QUESTION], [DEVELOPER, SYSTEM, QUESTION], [DEVELOPER, QUESTION]):
        for tools in ((), TASK.tools) if name in NAMES else ((),):
            text = rendered(renderer, *messages, tools=_described(tools))
            places = [text.find(message["content"]) for message in messages]
            assert min(places) >= 0 and places == sorted(places), text
            assert all(text.count(message["content"]) == 1 for message in messages)


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_real_template_renders_or_refuses_a_later_developer_message(name: str) -> None:
    renderer = renderer_named(name)
    if name in AS_FIRST_SYSTEM | ONLY_FIRST | NEVER:
        with pytest.raises(RenderFailed, match=LATER) as refused:
            rendered(renderer, QUESTION, ANSWER, DEVELOPER, NEXT)
        assert (refused.value.kind, refused.value.code) == ("misplaced", "template_error")
        return
    as_written = AS_SYSTEM if name in ALWAYS_AS_SYSTEM else DEVELOPER
    text = rendered(renderer, QUESTION, ANSWER, DEVELOPER, NEXT)
    assert text == written(renderer, QUESTION, ANSWER, as_written, NEXT)
    places = [text.find(message["content"]) for message in (QUESTION, ANSWER, DEVELOPER, NEXT)]
    assert min(places) >= 0 and places == sorted(places)


def _described(tools: Sequence[ToolSchema]) -> list[ToolSchema]:
    """Tools with descriptions, which some templates need."""
    return [{**tool, "function": {**tool["function"], "description": "Shows a file."}} for tool in tools]


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([DEVELOPER, QUESTION], [AS_SYSTEM, QUESTION]),
        ([SYSTEM, DEVELOPER, QUESTION], [MERGED, QUESTION]),
        ([DEVELOPER, SYSTEM, QUESTION], [{**SYSTEM, "content": "Answer in cents.\n\nYou work for a bank."}, QUESTION]),
        ([DEVELOPER, DEVELOPER, QUESTION], [{**SYSTEM, "content": "Answer in cents.\n\nAnswer in cents."}, QUESTION]),
        ([SYSTEM, {**DEVELOPER, "content": ""}, QUESTION], [SYSTEM, QUESTION]),
        (
            [SYSTEM, {**DEVELOPER, "content": [{"type": "text", "text": "Answer in cents."}]}, QUESTION],
            [MERGED, QUESTION],
        ),
        ([SYSTEM, QUESTION], [SYSTEM, QUESTION]),
        ([QUESTION], [QUESTION]),
    ],
)
@pytest.mark.parametrize("text", [OMITS, ONE_SYSTEM])
def test_leading_messages_become_one_system_message(text: str, given: list[Message], expected: list[Message]) -> None:
    renderer = renderer_of(text)
    assert rendered(renderer, *given) == written(renderer, *expected)
    assert renderer.rewrites_developer(given) == any(message["role"] == "developer" for message in given)


def test_a_later_message_becomes_a_system_message_only_where_the_template_renders_it_in_its_place() -> None:
    later = [SYSTEM, QUESTION, ANSWER, DEVELOPER, NEXT]
    renderer = renderer_of(OMITS)
    assert rendered(renderer, *later) == written(renderer, SYSTEM, QUESTION, ANSWER, AS_SYSTEM, NEXT)
    assert rendered(renderer, QUESTION, DEVELOPER) == written(renderer, QUESTION, AS_SYSTEM)
    for text in (ONE_SYSTEM, MOVES):
        with pytest.raises(RenderFailed, match=LATER):
            rendered(renderer_of(text), *later)


def test_a_template_that_renders_the_role_gets_the_messages_unchanged() -> None:
    renderer = renderer_of(PLAIN)
    conversation = [SYSTEM, DEVELOPER, QUESTION, ANSWER, DEVELOPER, NEXT]
    assert rendered(renderer, *conversation) == written(renderer, *conversation)
    assert not renderer.rewrites_developer(conversation)


def test_system_messages_of_conversations_without_a_developer_message_are_unchanged() -> None:
    conversation = [SYSTEM, SYSTEM, QUESTION, ANSWER, SYSTEM, NEXT]
    assert rendered(renderer_of(OMITS), *conversation) == written(renderer_of(OMITS), *conversation)


def test_a_template_is_probed_once() -> None:
    probes: list[Sequence[Message]] = []

    def render(messages: Sequence[Message], tools: Sequence[ToolSchema], *, generate: bool) -> str:
        probes.append(messages)
        return "".join(message["content"] for message in messages if message["role"] != "developer")

    form = TemplateFormat(render, find_family("hermes"), ("<eos>",), ())
    for _ in range(3):
        assert form.find_instruction_roles(("developer",), is_first=True) == ("system",)
    assert len(probes) == 2


# -- where it applies --------------------------------------------------------------------------------------------------


async def test_rollouts_show_the_message() -> None:
    renderer = renderer_of(OMITS)
    episode = ScriptedEpisode(renderer, [*renderer.encode("7"), renderer.tokenizer.eos_token_id])
    task = replace(TASK, messages=(SYSTEM, DEVELOPER, QUESTION), tools=())
    await graded(episode.runner(), RolloutRequest(task, epoch=0, sample=0, attempt=0, temperature=1.0))
    assert episode.prompts == [renderer.encode(written(renderer, MERGED, QUESTION))]


def test_supervised_samples_show_the_message_without_training_it() -> None:
    renderer = renderer_of(OMITS)
    (sample,) = split_conversation(renderer, [SYSTEM, DEVELOPER, QUESTION, ANSWER, DEVELOPER, NEXT, ANSWER], ())
    text = renderer.tokenizer.decode(sample.token_ids)
    assert text.startswith(written(renderer, MERGED, QUESTION, ANSWER, AS_SYSTEM, NEXT))
    trained = [token for token, is_on in zip(sample.token_ids, sample.mask, strict=True) if is_on]
    assert renderer.tokenizer.decode(trained).count("It is seven.") == 2
    assert "cents" not in renderer.tokenizer.decode(trained)


@pytest.mark.parametrize("conversations", [False, True])
async def test_the_check_accepts_rows_that_the_template_can_place_and_names_the_others(conversations: bool) -> None:
    last = [ANSWER] if conversations else []
    tasks = [
        Task("1-a", (SYSTEM, DEVELOPER, QUESTION, *last), (), {}),
        Task("2-a", (QUESTION, ANSWER, DEVELOPER, NEXT, *last), (), {}),
    ]
    rows = [CheckedRow("training_file", "train.jsonl", task) for task in tasks]
    assert await check_row_lengths(rows, renderer_of(OMITS), 2048, conversations=conversations) == []
    (problem,) = await check_row_lengths(rows, renderer_of(ONE_SYSTEM), 2048, conversations=conversations)
    assert (problem.code, problem.line, problem.field) == ("unrenderable_row", 2, "training_file.messages")
    assert f"{problem.message}: {problem.fix}".removeprefix("the chat template ").startswith(LATER)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), template=ONE_SYSTEM)
    return ChatModel(folder, ServeSettings(), 2048)


def _responses_body(**request: Any) -> dict[str, Any]:
    box = SecretBox(FixedSecrets((MasterSecret("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),)))
    return to_chat_body(ResponsesRequest.model_validate({"model": "m", **request}), box.sealer("reasoning", "key"))


def test_both_routes_show_the_message_to_a_served_model(served: ChatModel) -> None:
    bodies = [
        ChatRequest.model_validate({"model": "m", "messages": [SYSTEM, DEVELOPER, QUESTION]}).to_chat_body(),
        _responses_body(instructions=SYSTEM["content"], input=[DEVELOPER, QUESTION]),
        _responses_body(input=[SYSTEM, {"type": "message", **DEVELOPER}, QUESTION]),
    ]
    expected = served._renderer.encode(written(served._renderer, MERGED, QUESTION))
    for body in bodies:
        assert served._render_prompt(body["messages"], ()) == expected


async def test_a_served_model_refuses_a_message_that_its_template_cannot_place(
    served: ChatModel, tmp_path: Path
) -> None:
    body = {"messages": [QUESTION, ANSWER, DEVELOPER, NEXT]}
    refused = await served.chat(body, None)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.param) == (400, "messages") and LATER in refused.message
    assert [chunk async for chunk in served.stream(body, None)] == [refused]
    never = ChatModel(write_tiny_model(tmp_path / "model", template=NO_SYSTEM), ServeSettings(), 2048)
    refused = await never.chat({"messages": [DEVELOPER, QUESTION]}, None)
    assert isinstance(refused, Refusal) and NEITHER in refused.message
