"""Each chat template of a real model: its dialect is found, and what is sampled with it is what is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from agent_rft.actors.engine.chat.dialect_detection import ROUND_TRIP_CALLS, ROUND_TRIP_TOOLS
from agent_rft.actors.engine.chat.turn_parsers import load_parser
from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.chat.conversation import SupervisedSample, split_conversation
from agent_rft.chat.renderer import Renderer
from agent_rft.types import Message
from docs.generator.models import FOUND, WITH_TINY_WEIGHTS
from tests.support.episodes import TASK, ScriptedEpisode, graded
from tests.support.families import TINY
from tests.support.templates import NAMES, WITH_TOOLS, all_names, found, real_qwen, row

TOOLS = tuple(
    {"type": "function", "function": {**tool["function"], "description": "Shows a file."}} for tool in TASK.tools
)  # some templates need descriptions
REQUEST = RolloutRequest(replace(TASK, tools=TOOLS), epoch=0, sample=0, attempt=0, temperature=1.0)
SEGMENTS = {"gptoss": 2, "llama3_1": 2, "llama3_2": 2, "deepseek_r1_distill": 3, "deepseekv3": 3}
"""Segments of a rollout with one call, two calls and an answer, where the template does not only append."""
SAVED = json.loads(FOUND.read_text())
QUESTION: Message = {"role": "user", "content": TASK.messages[0]["content"]}


def calling(*paths: str, says: str = "", first: int = 0) -> Message:
    calls = [
        {
            "id": f"c{i}",
            "type": "function",
            "function": {"name": "cat", "arguments": json.dumps({"path": path})},
        }
        for i, path in enumerate(paths, first)
    ]
    return {"role": "assistant", "content": says, "tool_calls": calls}


def result(index: int, content: str) -> Message:
    return {"role": "tool", "tool_call_id": f"c{index}", "content": content}


CONVERSATION: list[Message] = [
    QUESTION,
    calling("first-file"),
    result(0, "result of first-file"),
    calling("second-file", "third-file", first=1),
    result(1, "result of second-file"),
    result(2, "result of third-file"),
    {"role": "assistant", "content": "It was seven."},
]


def test_all_templates_for_text_are_here() -> None:
    assert set(NAMES) == all_names() == SAVED.keys()
    assert len(WITH_TOOLS) == 25 and len(NAMES) == 34


@pytest.mark.parametrize("name", NAMES)
def test_the_manual_says_what_is_found(name: str) -> None:
    assert found(name)[1] is None
    saved = SAVED[name]
    assert json.loads(json.dumps(row(name))) == saved, "run python -m tests.support.templates"
    assert saved["reads_calls"] and saved["shows_tools"] and saved["samples"]


@pytest.mark.parametrize("name", NAMES)
def test_results_come_through_in_the_order_of_their_calls(name: str) -> None:
    renderer, _ = found(name)
    results = [renderer.encode_result(text) for text in ("result of one", "result of two")]
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": tool, "arguments": json.dumps(given)}}
        for i, (tool, given) in enumerate(ROUND_TRIP_CALLS)
    ]
    turn: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    prompt = renderer.render_history([QUESTION, turn, result(0, "x"), result(1, "y")], ROUND_TRIP_TOOLS, results)
    text = renderer.tokenizer.decode(prompt)
    assert text.count("result of one") == text.count("result of two") == 1
    assert text.index("result of one") < text.index("result of two")
    assert "A 17" in text[: text.index("result of one")]


@pytest.mark.parametrize("name", NAMES)
def test_each_turn_of_an_example_is_trained_once(name: str) -> None:
    renderer, _ = found(name)
    samples = split_conversation(renderer, CONVERSATION, TOOLS)
    trained = renderer.tokenizer.decode([id for sample in samples for id in trained_of(sample)])
    assert [trained.count(text) for text in ("first-file", "second-file", "third-file", "It was seven.")] == [1] * 4
    assert QUESTION["content"] not in trained and "result of" not in trained
    ends = [renderer.tokenizer.decode([sample.token_ids[-1]]) for sample in samples]
    assert all(sample.mask[-1] for sample in samples) and set(ends) <= set(renderer.stop_tokens.values())


def trained_of(sample: SupervisedSample) -> list[int]:
    return [id for id, on in zip(sample.token_ids, sample.mask, strict=True) if on]


def turns(renderer: Renderer) -> list[list[int]]:
    """The token ids that a model samples for the turns of the conversation."""
    said = []
    for i, message in enumerate(CONVERSATION):
        if message["role"] == "assistant":
            untrained = [{**earlier, "weight": 0} for earlier in CONVERSATION[:i]]
            said.append(trained_of(*split_conversation(renderer, [*untrained, message], TOOLS)))
    return said


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_sampled_is_what_is_trained(name: str) -> None:
    assert await num_segments(found(name)[0]) == SEGMENTS.get(name, 1)


@pytest.mark.nightly  # each renderer that is tried copies the vocabulary of 248,000 tokens
@pytest.mark.parametrize("name", ["qwen3_5_think", "qwen3_8"])
async def test_what_is_sampled_is_what_is_trained_with_qwens_own_vocabulary(name: str) -> None:
    renderer, mistake = real_qwen(name)
    assert (mistake, renderer.family.name) == (None, "qwen3_coder")
    assert await num_segments(renderer) == 1


async def num_segments(renderer: Renderer) -> int:
    """The segments of a rollout that samples the turns of the conversation, once they are what is trained."""
    script = turns(renderer)
    episode = ScriptedEpisode(renderer, *script)
    episode.parse = load_parser(renderer.family, renderer.tokenizer)
    rollout = await graded(episode.runner(context=16_384), REQUEST)
    called = [json.loads(call.arguments)["path"] for calls in episode.messages for call in calls]
    assert called == ["first-file", "second-file", "third-file"]
    segments = rollout.segments
    trained = [id for segment in segments for id in np.asarray(segment.token_ids)[np.asarray(segment.loss_mask)]]
    assert trained == list(chain.from_iterable(script))
    seen, kept = ([list(ids) for ids in given] for given in (episode.prompts, (one.token_ids for one in segments)))
    assert all(any(ids[: len(prompt)] == prompt for ids in kept) for prompt in seen)
    return len(segments)


def test_the_page_names_the_families_that_an_engine_and_a_learner_run() -> None:
    assert set(WITH_TINY_WEIGHTS) == set(TINY)
