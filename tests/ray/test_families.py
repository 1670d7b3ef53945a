"""Model families beside Hermes on a real engine: what is sampled is trained, and what is trained is served."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoTokenizer

from agent_rft.actors.engine.chat.chat_engine import ChatEngine
from agent_rft.actors.engine.chat.chat_model import ChatModel, Refusal
from agent_rft.actors.engine.chat.dialect_detection import find_dialect, run_round_trip, without_tools_renderer
from agent_rft.actors.engine.chat.turn_parsers import TurnParser, load_parser
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.grammar.structural_tags import build_required_calls_structure
from agent_rft.actors.engine.vllm_engine import Completion, Engine
from agent_rft.actors.rollout.episode import EpisodeRunner, EpisodeSpec, RolloutRequest
from agent_rft.chat.conversation import split_conversation
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.spec.job import RewardSpec, RolloutLimits
from agent_rft.trainer.model.grammar_masks import GrammarMasks
from agent_rft.trainer.model.micro_batches import pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, load_policy
from agent_rft.types import Grade, Rollout, Task, ToolCall, ToolResult
from tests.support.builders import task
from tests.support.families import OTHER, TINY
from tests.support.harmony import write_gpt_oss
from tests.support.tiny_model import WITHOUT_TOOLS

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

CONTEXT = 2048
TEMPERATURE = 0.8
THINKING_TOKENS = 8
LIMITS = RolloutLimits(max_tool_calls=100, max_completion_tokens=800, max_tool_output_tokens=12)
RESULT = "a result that is longer than twelve tokens"
ORDER_ID = "[1-9][0-9]{3}"
PARAMETERS = {
    "type": "object",
    "properties": {
        "order_id": {"type": "integer", "minimum": 1000, "maximum": 9999},
        "limit": {"$ref": "#/$defs/Limit"},
    },
    "required": ["order_id", "limit"],
    "additionalProperties": False,
    "$defs": {"Limit": {"type": "integer", "minimum": 10, "maximum": 99}},
}
TOOLS = ({"type": "function", "function": {"name": "find_order", "description": "x", "parameters": PARAMETERS}},)
TASK = task("1-a", "Where is my order?", TOOLS)
NUMBER = {"type": "integer", "minimum": 1000, "maximum": 9999}
CALL = ("find_order", {"order_id": 1234, "limit": 42})


@dataclass
class Sampled:
    """A rollout, and what the engine saw and sampled for each of its turns."""

    turns: list[tuple[list[int], Completion]] = field(default_factory=list)
    rollout: Any = None


async def sample(
    engine: Engine, renderer: Renderer, parse: TurnParser, number: int, forced: str | None = None, task: Task = TASK
) -> Sampled:
    """A rollout as workers run it. `forced` is the structure of each turn instead of that of a response format."""
    sampled = Sampled()

    async def generate(prompt: Sequence[int], *, structure: str | None, **options: Any) -> Completion:
        completion = await engine.generate(
            prompt, stop_token_ids=list(renderer.stop_tokens), structure=forced or structure, **options
        )
        sampled.turns.append((list(prompt), completion))
        return completion

    async def call_tools(trace_id: str, item: Any, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return [ToolResult(call.call_id, RESULT) for call in calls]

    async def grade(sample: Any, item: Any, trace_id: str) -> Grade:
        return Grade(0.0)

    spec = EpisodeSpec("job", LIMITS, RewardSpec(), 16, CONTEXT, THINKING_TOKENS, None if forced else NUMBER)
    runner = EpisodeRunner(spec, renderer, parse, generate, call_tools, grade)
    sampled.rollout = await runner.run(RolloutRequest(task, 0, number, 0, TEMPERATURE))
    assert isinstance(sampled.rollout, Rollout), sampled.rollout
    if forced:
        sampled.rollout = replace(sampled.rollout, structure=forced)
    return sampled


def assert_sampled_is_trained(sampled: Sequence[Sampled], renderer: Renderer) -> None:
    """Each turn is in a segment that is what the engine saw, and nothing else is trained."""
    for one in sampled:
        segments = one.rollout.segments
        masks = [np.zeros(len(segment.token_ids), bool) for segment in segments]
        for turn, (prompt, completion) in zip(one.rollout.turns, one.turns, strict=True):
            ids = segments[turn.segment].token_ids.tolist()
            assert ids[: turn.start] == prompt
            assert ids[turn.start : turn.stop] == completion.token_ids
            assert not completion.stopped or completion.token_ids[-1] in renderer.stop_tokens
            masks[turn.segment][turn.start : turn.stop] = True
        assert all((s.loss_mask == mask).all() for s, mask in zip(segments, masks, strict=True))


def assert_calls_are_those_sampled(sampled: Sequence[Sampled]) -> None:
    turns = [turn for one in sampled for turn in one.rollout.turns]
    assert any(turn.calls for turn in turns) and not any(result.error for turn in turns for result in turn.results)
    for turn in (turn for turn in turns if turn.calls):
        made = [str(json.loads(call.arguments)["order_id"]) for call in turn.calls]
        assert made == re.findall(ORDER_ID, turn.text.rpartition("</think>")[2])


def assert_the_learner_agrees(sampled: Sequence[Sampled], folder: Path, renderer: Renderer) -> None:
    sequences = [sequence for one in sampled for sequence in one.rollout.to_train_segments(1.0)]
    [[batch]] = pack_sequences(sequences, num_ranks=1, budget=1 << 20)
    kept, masks = GrammarMasks(folder, tuple(renderer.stop_tokens)).constrain(batch)
    assert (kept.weights > 0).all() and (kept.weights == batch.weights).all()
    policy = load_policy(folder, torch.float32, temperature=TEMPERATURE)
    with torch.no_grad():
        learner = policy(DeviceBatch.from_micro_batch(kept, torch.device("cpu"), masks))[0].numpy()
    assert np.exp(learner - batch.logprobs) == pytest.approx(1.0, abs=0.02)


# -- one family, whose calls have a grammar, and a template that rewrites history --------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY["qwen3_coder"].write(tmp_path_factory.mktemp("qwen3_coder"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(folder: Path) -> AsyncIterator[ChatEngine]:
    """Served as its folder says, which no setting names."""
    settings = ServeSettings(
        context_length=CONTEXT,
        max_completion_tokens=200,
        max_tool_output_tokens=LIMITS.max_tool_output_tokens,
        max_reasoning_tokens=THINKING_TOKENS,
    )
    served = ChatEngine(EngineConfig(str(folder), "float32", CONTEXT, max_num_seqs=16, seed=0), settings)
    assert await served.start() is None
    yield served
    await served.shutdown()


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    renderer, mistake = find_dialect(AutoTokenizer.from_pretrained(folder), DEFAULT_DIALECT)
    assert mistake is None and renderer.dialect.family == "qwen3_coder" and renderer.reasoning_mode == "opened"
    return renderer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sampled(served: ChatEngine, renderer: Renderer) -> list[Sampled]:
    engine, parse = served._engine, load_parser(renderer.family, renderer.tokenizer)
    assert engine is not None
    return list(await asyncio.gather(*(sample(engine, renderer, parse, number) for number in range(16))))


async def test_each_segment_is_what_the_engine_saw_and_the_learner_agrees_with_it(
    sampled: list[Sampled], folder: Path, renderer: Renderer
) -> None:
    assert max(len(one.rollout.segments) for one in sampled) > 2
    assert_sampled_is_trained(sampled, renderer)
    assert_calls_are_those_sampled(sampled)
    assert_the_learner_agrees(sampled, folder, renderer)


async def test_prompts_of_later_turns_are_those_of_the_rollout(served: ChatEngine, sampled: list[Sampled]) -> None:
    later = 0
    for one in sampled:
        messages: list[Any] = list(TASK.messages)
        for turn, (prompt, _) in zip(one.rollout.turns, one.turns, strict=True):
            assert (await served._get_chat_model(served._own_model))._render_prompt(messages, TOOLS) == prompt
            later += len(messages) > 1
            calls = [
                {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in turn.calls
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]
    assert later


async def test_served_turns_are_calls_or_answers_of_the_schema(served: ChatEngine) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": NUMBER}}
    common = {"messages": list(TASK.messages), "tools": list(TOOLS), "response_format": form}
    bodies = [common | {"seed": seed} for seed in range(8)]
    answers: list[Any] = await asyncio.gather(*map(served.chat, bodies))
    streams = await asyncio.gather(*(streamed(served, body) for body in bodies))
    seen = set()
    for answer, stream in zip(answers, streams, strict=True):
        message = answer["choices"][0]["message"]
        made, text = message.get("tool_calls") or [], message["content"]
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= THINKING_TOKENS + 1
        if answer["choices"][0]["finish_reason"] == "length":
            assert not made
            continue
        assert answer["choices"][0]["finish_reason"] == ("tool_calls" if made else "stop")
        if made:
            assert all(1000 <= json.loads(call["function"]["arguments"])["order_id"] <= 9999 for call in made)
        else:
            assert 1000 <= int(text) <= 9999
        if (
            "<tool_call>" in stream[1]
        ):  # random weights may spell the mark by letters, which a stream is not searched for
            continue
        assert stream == ([c["function"] for c in made], (text or "").strip())
        seen.add(bool(made))
    assert seen == {True, False}


async def test_a_turn_that_is_cut_off_in_a_call_makes_no_calls(served: ChatEngine) -> None:
    """As in a rollout. vLLM's parser returns the incomplete call with the arguments {}."""
    common = {"messages": list(TASK.messages), "tools": list(TOOLS), "tool_choice": "required"}
    bodies = [common | {"max_completion_tokens": 60, "seed": seed} for seed in range(8)]
    answers: list[Any] = await asyncio.gather(*map(served.chat, bodies))
    for choice in (answer["choices"][0] for answer in answers):
        assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
    reasons = set()
    async for chunk in served.stream(bodies[0]):
        assert isinstance(chunk, dict), chunk
        reasons |= {choice["finish_reason"] for choice in chunk["choices"]}
    assert reasons == {None, "length"}


async def streamed(served: ChatEngine, body: dict[str, Any]) -> tuple[list[dict[str, str]], str]:
    """The calls and the text of a stream."""
    calls: dict[int, dict[str, str]] = {}
    text = ""
    async for chunk in served.stream(body):
        assert isinstance(chunk, dict), chunk
        for delta in (choice["delta"] for choice in chunk["choices"]):
            text += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                made = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                for key in made:
                    made[key] += call["function"].get(key) or ""
    return [calls[index] for index in sorted(calls)], text.strip()


async def test_tool_choice_is_obeyed_in_the_familys_form(served: ChatEngine) -> None:
    common = {"messages": list(TASK.messages), "tools": list(TOOLS), "temperature": 1.5, "max_completion_tokens": 120}

    async def choices(tool_choice: Any) -> list[Any]:
        bodies = [{**common, "tool_choice": tool_choice, "seed": seed} for seed in range(4)]
        return [answer["choices"][0] for answer in await asyncio.gather(*map(served.chat, bodies))]

    for wanted in ("required", {"type": "function", "function": {"name": "find_order"}}):
        ended = [choice for choice in await choices(wanted) if choice["finish_reason"] != "length"]
        assert ended and all(choice["message"]["tool_calls"] for choice in ended)
        assert wanted == "required" or {len(choice["message"]["tool_calls"]) for choice in ended} == {1}
    for choice in await choices("none"):
        assert "tool_calls" not in choice["message"] and "<tool_call>" not in (choice["message"]["content"] or "")


def without_calls(folder: Path, copy: Path) -> Path:
    """Copy a model; its template renders no calls and opens the reasoning; its vocabulary has no token for calls."""
    shutil.copytree(folder, copy)
    for file in copy.glob("tokenizer*.json"):
        file.write_text(file.read_text().replace('"<tool_call>"', '"<unused>"'))
    opened = WITHOUT_TOOLS.replace("assistant\\n", "assistant\\n<think>\\n")
    (copy / "chat_template.jinja").write_text(opened)
    return copy


async def test_a_model_whose_template_renders_no_calls_is_sampled_trained_and_served_without_tools(
    served: ChatEngine, folder: Path, tmp_path: Path
) -> None:
    """On the engine of `served`: each turn is reasoning and an answer."""
    model = without_calls(folder, tmp_path / "model")
    found, mistake = find_dialect(AutoTokenizer.from_pretrained(model), DEFAULT_DIALECT)
    renderer, engine = without_tools_renderer(found), served._engine
    assert mistake is not None and renderer is not None and engine is not None
    assert (renderer.dialect.tool_parser, renderer.reasoning_mode) == (None, "opened")
    parse = load_parser(renderer.family, renderer.tokenizer)
    without_tools = task("1-a", "Where is my order?")
    sampled = await asyncio.gather(*(sample(engine, renderer, parse, n, task=without_tools) for n in range(4)))
    assert all(len(one.rollout.turns) == 1 for one in sampled)
    assert_sampled_is_trained(sampled, renderer)
    assert_the_learner_agrees(sampled, model, renderer)

    chat = ChatModel(model, ServeSettings(max_completion_tokens=200, max_reasoning_tokens=THINKING_TOKENS), CONTEXT)
    chat.connect(engine.async_llm_client, served._delimiters)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": NUMBER}}
    body = {"messages": list(without_tools.messages), "response_format": form}
    for seed in range(4):
        answer: Any = await chat.chat({**body, "seed": seed}, None)
        message = answer["choices"][0]["message"]
        assert 1000 <= int(message["content"]) <= 9999 and "tool_calls" not in message
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    free: Any = await chat.chat({"messages": body["messages"], "seed": 0}, None)
    chunks: list[Any] = [chunk async for chunk in chat.stream({"messages": body["messages"], "seed": 0}, None)]
    texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(texts) == free["choices"][0]["message"]["content"]
    assert isinstance(await chat.chat({**body, "tools": list(TOOLS)}, None), Refusal)


@pytest.mark.nightly
async def test_a_model_of_no_known_family_is_served_and_refuses_a_schema(tmp_path: Path) -> None:
    served = ChatEngine(
        EngineConfig(str(OTHER.write(tmp_path)), "float32", CONTEXT, max_num_seqs=16, seed=0),
        ServeSettings(context_length=CONTEXT, max_completion_tokens=40),
    )
    assert await served.start() is None
    try:
        body = {"messages": list(TASK.messages), "tools": list(TOOLS)}
        answers: list[Any] = await asyncio.gather(*(served.chat({**body, "seed": seed}) for seed in range(4)))
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": NUMBER}}
        refused = await served.chat({**body, "response_format": form})
    finally:
        await served.shutdown()
    assert all(answer["choices"][0]["finish_reason"] in ("length", "stop", "tool_calls") for answer in answers)
    assert isinstance(refused, Refusal) and (refused.status, refused.param) == (400, "response_format")
    assert "hunyuan_a13b" in refused.message and "Remove response_format or the tools" in refused.message


@pytest.mark.nightly
async def test_a_family_whose_turns_are_messages_is_served_with_a_schema(tmp_path: Path) -> None:
    folder, settings = TINY["muse_glimmer"].write(tmp_path), ServeSettings(max_completion_tokens=500)
    served = ChatEngine(EngineConfig(str(folder), "float32", CONTEXT, max_num_seqs=16, seed=0), settings)
    assert await served.start() is None
    try:
        common = {"messages": list(TASK.messages), "tools": list(TOOLS), "reasoning_effort": "low"}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": NUMBER}}
        bodies = [{**common, "response_format": form, "seed": seed} for seed in range(16)]
        answers: list[Any] = await asyncio.gather(*map(served.chat, bodies))
        streams = await asyncio.gather(*(streamed(served, body) for body in bodies))
        required: list[Any] = await asyncio.gather(
            *(served.chat({**common, "tool_choice": "required", "seed": seed}) for seed in range(4))
        )
    finally:
        await served.shutdown()
    seen = set()
    for answer, stream in zip(answers, streams, strict=True):
        [choice] = answer["choices"]
        if choice["finish_reason"] == "length":
            continue
        made, text = choice["message"].get("tool_calls") or [], choice["message"]["content"]
        assert choice["finish_reason"] == ("tool_calls" if made else "stop")
        assert all(1000 <= json.loads(call["function"]["arguments"])["order_id"] <= 9999 for call in made)
        assert made or 1000 <= int(text) <= 9999
        assert stream == ([call["function"] for call in made], (text or "").strip())
        seen.add(bool(made))
    assert seen == {True, False}
    assert any(answer["choices"][0]["message"].get("reasoning") for answer in answers)
    ended = [answer["choices"][0] for answer in required if answer["choices"][0]["finish_reason"] != "length"]
    assert ended and all(choice["message"]["tool_calls"] for choice in ended)


@pytest.mark.nightly
async def test_a_gpt_oss_of_the_real_architecture_is_served_in_harmonys_format(tmp_path: Path) -> None:
    """VLLM has a way of its own for this architecture: it reads token ids, and knows of no other structure."""
    settings = ServeSettings(max_completion_tokens=200, max_reasoning_tokens=THINKING_TOKENS)
    served = ChatEngine(
        EngineConfig(str(write_gpt_oss(tmp_path / "gpt_oss")), "float32", CONTEXT, max_num_seqs=16, seed=0), settings
    )
    assert await served.start() is None
    try:
        common = {"messages": list(TASK.messages), "tools": list(TOOLS)}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": NUMBER}}
        bodies = [{**common, "response_format": form, "seed": seed} for seed in range(32)]
        answers: list[Any] = await asyncio.gather(*map(served.chat, bodies))
        streams = await asyncio.gather(*(streamed(served, body) for body in bodies))
        required: list[Any] = await asyncio.gather(
            *(served.chat({**common, "tool_choice": "required", "seed": seed}) for seed in range(32))
        )
        none: list[Any] = await asyncio.gather(
            *(served.chat({**common, "tool_choice": "none", "max_completion_tokens": 20, "seed": i}) for i in range(4))
        )
    finally:
        await served.shutdown()
    seen = set()
    for answer, stream in zip(answers, streams, strict=True):
        [choice] = answer["choices"]
        made, text = choice["message"].get("tool_calls") or [], choice["message"]["content"]
        is_cut = answer["usage"]["completion_tokens"] == settings.max_completion_tokens
        if is_cut or not (made or (text or "").isdigit()):
            continue  # random weights write white space for long, and end an answer as if it were a call
        assert choice["finish_reason"] == ("tool_calls" if made else "stop")
        arguments = [json.loads(call["function"]["arguments"]) for call in made]
        assert all(1000 <= given["order_id"] <= 9999 for given in arguments)
        assert made or 1000 <= int(text) <= 9999
        assert [json.loads(call["arguments"]) for call in stream[0]] == arguments and stream[1] == (text or "").strip()
        seen.add(bool(made))
    assert seen == {True, False}
    messages = [answer["choices"][0]["message"] for answer in required]
    assert any(message.get("tool_calls") for message in messages)
    assert not any((message["content"] or "").isdigit() for message in messages)
    assert any(answer["choices"][0]["message"].get("reasoning") for answer in answers)
    assert not any("tool_calls" in answer["choices"][0]["message"] for answer in none)


# -- the list of families, whose turns are forced to what their templates write ----------------------------------------


def forced_turns(renderer: Renderer, parse: TurnParser) -> str:
    """The structure of turns that are a call or an answer as the template writes them; numbers are free."""
    reasoning = "" if renderer.reasoning_mode == "none" else "hm"
    call = run_round_trip(renderer, parse, TOOLS, [CALL], reasoning).rendered_text
    [answer] = split_conversation(renderer, [*TASK.messages, {"role": "assistant", "content": "It is there."}], TOOLS)
    said = renderer.decode_turn([token for token, kept in zip(answer.token_ids, answer.mask, strict=True) if kept])
    elements = [{"type": "sequence", "elements": _pieces(renderer, text)} for text in (call, call, said)]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": elements}})


def _pieces(renderer: Renderer, text: str) -> list[dict[str, Any]]:
    """Special tokens as tokens, the number of the call as any number, and the rest as it is."""
    special = {token: id for id, token in renderer._special.items()}
    known = [*sorted(special, key=len, reverse=True), str(CALL[1]["order_id"])]
    pieces: list[dict[str, Any]] = []
    for piece in re.split(f"({'|'.join(map(re.escape, known))})", text):
        if piece in special:
            pieces.append({"type": "token", "token": special[piece]})
        elif piece == known[-1]:
            pieces.append({"type": "regex", "pattern": ORDER_ID})
        elif piece:
            pieces.append({"type": "const_string", "value": piece})
    return pieces


@pytest.mark.nightly
@pytest.mark.parametrize("name", TINY)
async def test_every_family_trains_what_it_sampled(name: str, tmp_path: Path) -> None:
    folder = TINY[name].write(tmp_path / name)
    renderer, mistake = find_dialect(AutoTokenizer.from_pretrained(folder), DEFAULT_DIALECT)
    assert (mistake, renderer.dialect.family) == (None, name)
    parse = load_parser(renderer.family, renderer.tokenizer)
    marks = renderer.dialect.reasoning_delimiters
    engine = Engine(EngineConfig(str(folder), "float32", CONTEXT, max_num_seqs=16, seed=0, reasoning_delimiters=marks))
    await engine.start()
    try:
        forced = forced_turns(renderer, parse)
        sampled = await asyncio.gather(*(sample(engine, renderer, parse, number, forced) for number in range(16)))
    finally:
        engine.shutdown()
    assert any(len(one.turns) > 1 for one in sampled)
    assert_sampled_is_trained(sampled, renderer)
    assert_calls_are_those_sampled(sampled)
    assert_the_learner_agrees(sampled, folder, renderer)
    ends = {completion.token_ids[-1] for one in sampled for _, completion in one.turns if completion.stopped}
    assert len(renderer.stop_tokens) == 1 or len(ends) > 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["gpt_oss", "kimi_k2", "gemma4", "lfm2", "mistral", "muse_glimmer"])
async def test_turns_in_forms_of_their_own_follow_a_schema(name: str, tmp_path: Path) -> None:
    folder = TINY[name].write(tmp_path / name)
    renderer, _ = find_dialect(AutoTokenizer.from_pretrained(folder), DEFAULT_DIALECT)
    parse = load_parser(renderer.family, renderer.tokenizer)
    calls = build_required_calls_structure(renderer, TOOLS, THINKING_TOKENS, one_call=False)
    marks = renderer.dialect.reasoning_delimiters
    engine = Engine(EngineConfig(str(folder), "float32", CONTEXT, max_num_seqs=16, seed=0, reasoning_delimiters=marks))
    await engine.start()
    try:
        free = await asyncio.gather(*(sample(engine, renderer, parse, number) for number in range(16)))
        forced = await asyncio.gather(*(sample(engine, renderer, parse, number, calls) for number in range(4)))
    finally:
        engine.shutdown()
    answers = [one.rollout.answer for one in free if one.rollout.finish == "answer"]
    assert answers and all(1000 <= int(answer) <= 9999 for answer in answers)
    made = [call for one in forced for turn in one.rollout.turns for call in turn.calls]
    assert made and all(call.name == "find_order" for call in made)
    assert all(type(json.loads(call.arguments)["order_id"]) is int for call in made)
