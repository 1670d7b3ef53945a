"""A served model on a real engine: what was trained is what is served, through both of OpenAI's APIs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
import ray
from ray import serve as ray_serve
from transformers import AutoTokenizer

from agent_rft.actors.engine.chat.turn_parsers import load_parser
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import Engine
from agent_rft.actors.rollout.episode import EpisodeRunner, EpisodeSpec, RolloutRequest
from agent_rft.actors.runtime.telemetry.exporter import PORT
from agent_rft.chat.families.hermes import HERMES
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.http.schemas.inference_schemas import ChatCompletionBody, Response
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.inference.model_apps import EngineResources, RayServeModels
from agent_rft.serve.inference.model_server import ServedModels
from agent_rft.serve.routes import model_routes
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.spec.job import RewardSpec, RolloutLimits
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, EngineLimits
from agent_rft.types import Grade, Rollout, Task, ToolCall, ToolResult
from examples.ledger.tools import TOOLS
from examples.ledger.world import World
from tests.support.api import client_of, openai_of
from tests.support.builders import tasks_of
from tests.support.fakes_http import until, unused_port
from tests.support.jobs import database_with_tables
from tests.support.paths import LEDGER

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

BASE_MODEL = str(LEDGER / "base")
TUNED = "ft:gpt-5:org:ledger/one:abc:ckpt-step-5"
CONTEXT = 1024
LIMITS = RolloutLimits(max_tool_calls=12, max_completion_tokens=400, max_tool_output_tokens=12)
"""Shorter than the documents: what is truncated in training must be truncated in serving."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["answer"],
    "additionalProperties": False,
}
WORLD = World()
METRICS_PORT = unused_port()


def run_tool(name: str, arguments: str) -> str:
    tool = TOOLS[name]
    return tool.run(WORLD, json.loads(arguments)[tool.parameter])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rollouts() -> list[tuple[Task, Rollout]]:
    """Greedy rollouts of the rollout engine, without those in which the model made a mistake."""
    engine = Engine(EngineConfig(BASE_MODEL, "float32", CONTEXT, max_num_seqs=8, seed=0))
    await engine.start()
    tokenizer = AutoTokenizer.from_pretrained(BASE_MODEL)

    async def generate(prompt: Sequence[int], **options: Any) -> Any:
        return await engine.generate(prompt, stop_token_ids=[tokenizer.eos_token_id], **options)

    async def call_tools(trace_id: str, item: Any, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return [ToolResult(call.call_id, run_tool(call.name, call.arguments)) for call in calls]

    async def grade(sample: Any, item: Any, trace_id: str) -> Grade:
        return Grade(0.0)

    spec = EpisodeSpec("job", LIMITS, RewardSpec(), max_steps=32, context_length=CONTEXT)
    runner = EpisodeRunner(spec, Renderer(tokenizer), load_parser(HERMES, tokenizer), generate, call_tools, grade)
    tasks = tasks_of(LEDGER / "data" / "test.jsonl")[:16]
    done = await asyncio.gather(*(runner.run(RolloutRequest(task, 0, 0, 0, 0.0)) for task in tasks))
    engine.shutdown()
    pairs = [(task, rollout) for task, rollout in zip(tasks, done, strict=True) if isinstance(rollout, Rollout)]
    clean = [(t, r) for t, r in pairs if r.finish == "answer" and not any(result.error for result in r.results)]
    assert any(result.truncated for _, rollout in clean for result in rollout.results)
    assert any(len(rollout.turns) > 2 for _, rollout in clean)
    return clean[:12]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(rollouts: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[openai.AsyncOpenAI]:
    folder = tmp_path_factory.mktemp("server")
    database = database_with_tables(folder)
    registry = ModelRegistry(database, {"gpt-5": BASE_MODEL})
    settings = ServeSettings(context_length=CONTEXT, max_completion_tokens=400, max_tool_output_tokens=12)
    registry.add(TUNED, BASE_MODEL, "gpt-5", "ftjob-1", settings)
    with pytest.MonkeyPatch.context() as environment:  # inherited by Ray's processes
        environment.setenv(PORT, str(METRICS_PORT))
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray_serve.start(proxy_location="Disabled")
    limits = EngineLimits(max_num_seqs=8, max_start_wait_s=280)
    hosting = RayServeModels(limits, EngineResources.from_limits(limits, ray.cluster_resources()))
    served = ServedModels(registry, hosting, limits)
    box = SecretBox.from_folder(folder, {})
    routers = [
        chat.make_router(served, TrialFactory(DEFAULT_CONFIG)),
        responses.make_router(served, TrialFactory(DEFAULT_CONFIG), box),
        model_routes.make_router(registry),
    ]
    async with client_of(routers) as http:
        yield openai_of(http)
    ray_serve.shutdown()
    ray.shutdown()
    database.close()


async def test_a_chat_loop_repeats_the_greedy_rollout_token_by_token(client: Any, rollouts: Any) -> None:
    async def loop(task: Task, rollout: Rollout) -> None:
        messages: list[Any] = list(task.messages)
        for turn in rollout.turns:
            answer = await client.chat.completions.create(
                model=TUNED, messages=messages, tools=task.tools, temperature=0
            )
            message = answer.choices[0].message
            assert answer.usage.prompt_tokens == turn.start
            assert answer.usage.completion_tokens == turn.stop - turn.start
            assert [(c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
                (c.name, c.arguments) for c in turn.calls
            ]
            messages.append(message)
            for call in reversed(message.tool_calls or ()):
                output = run_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
        assert messages[-1].content.strip() == rollout.answer

    await asyncio.gather(*(loop(task, rollout) for task, rollout in rollouts))


async def test_vllm_s_own_metrics_are_exported_under_the_model_s_name(client: Any, rollouts: Any) -> None:
    await client.chat.completions.create(model=TUNED, messages=list(rollouts[0][0].messages), max_completion_tokens=1)
    sample = f'vllm:generation_tokens_total{{job="{TUNED}",process="engine-0",'
    await until(lambda: sample in httpx.get(f"http://127.0.0.1:{METRICS_PORT}/metrics").text, within_s=60)


async def test_a_responses_loop_on_echoed_items_repeats_it_too(client: Any, rollouts: Any) -> None:
    async def loop(task: Task, rollout: Rollout) -> None:
        items: list[Any] = list(task.messages)
        tools = [{"type": "function", **tool["function"]} for tool in task.tools]
        for turn in rollout.turns:
            answer = await client.responses.create(model=TUNED, input=items, tools=tools, temperature=0, store=False)
            Response.model_validate(answer.model_dump(exclude_unset=True))
            assert (answer.usage.input_tokens, answer.usage.output_tokens) == (turn.start, turn.stop - turn.start)
            calls = [item for item in answer.output if item.type == "function_call"]
            assert [(c.name, c.arguments) for c in calls] == [(c.name, c.arguments) for c in turn.calls]
            items += answer.output
            for call in calls:
                output = run_tool(call.name, call.arguments)
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        assert answer.output_text.strip() == rollout.answer

    await asyncio.gather(*(loop(task, rollout) for task, rollout in rollouts))


async def test_streams_have_the_same_content_as_complete_answers(client: Any, rollouts: Any) -> None:
    for task, rollout in rollouts[:4]:
        common = {"model": TUNED, "temperature": 0, "tools": task.tools, "messages": list(task.messages)}
        names, arguments = dict[int, str](), dict[int, str]()
        stream = await client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **common)
        async for chunk in stream:
            for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                names[call.index] = names.get(call.index, "") + (call.function.name or "")
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
        first = rollout.turns[0]
        assert chunk.usage.completion_tokens == first.stop - first.start
        assert [(names[i], arguments[i]) for i in sorted(names)] == [(c.name, c.arguments) for c in first.calls]
        tools = [{"type": "function", **tool["function"]} for tool in task.tools]
        request = {"model": TUNED, "temperature": 0, "input": list(task.messages), "tools": tools}
        async with client.responses.stream(**request) as events:
            final = await events.get_final_response()
        assert [(i.name, i.arguments) for i in final.output if i.type == "function_call"] == [
            (c.name, c.arguments) for c in first.calls
        ]


async def test_decoding_follows_a_schema_with_and_without_tools(client: Any, rollouts: Any) -> None:
    task, _ = rollouts[0]
    text = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}}

    async def response(seed: int) -> Any:
        return await client.responses.create(
            model=TUNED,
            input=list(task.messages),
            temperature=2,
            text=text,
            extra_body={"seed": seed},
            max_output_tokens=200,
        )

    async def completion(seed: int) -> Any:
        return await client.chat.completions.create(
            model=TUNED,
            messages=list(task.messages),
            tools=task.tools,
            temperature=2,
            seed=seed,
            max_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        )

    # The model never learned JSON: many samples are endless white space, which JSON allows.
    whole = [r for r in await asyncio.gather(*map(response, range(16))) if r.status == "completed"]
    assert whole and all(10 <= json.loads(answer.output_text)["answer"] <= 99 for answer in whole)
    choices = [completion.choices[0] for completion in await asyncio.gather(*map(completion, range(16)))]
    ended = [choice for choice in choices if choice.finish_reason != "length"]
    assert any(choice.message.tool_calls for choice in ended)
    for choice in ended:
        assert choice.message.tool_calls or 10 <= json.loads(choice.message.content)["answer"] <= 99


async def test_samples_logprobs_seeds_and_stops(client: Any, rollouts: Any) -> None:
    task, _ = rollouts[0]
    common = {"model": TUNED, "messages": list(task.messages), "tools": task.tools}
    many, again = [
        await client.chat.completions.create(n=3, logprobs=True, top_logprobs=2, seed=1, temperature=2, **common)
        for _ in range(2)
    ]
    ChatCompletionBody.model_validate(many.model_dump(exclude_unset=True))
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    content = many.choices[0].logprobs.content
    assert content and all(entry.logprob <= 0 and len(entry.top_logprobs) >= 2 for entry in content)
    assert [c.logprobs for c in again.choices] == [c.logprobs for c in many.choices]  # the same tokens
    assert many.choices[1].logprobs != many.choices[0].logprobs
    cut = await client.chat.completions.create(max_tokens=9, max_completion_tokens=2, temperature=0, **common)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 2)

    common |= {"temperature": 0, "tool_choice": "none", "max_tokens": 30}
    whole = (await client.chat.completions.create(**common)).choices[0].message.content
    stopped = await client.chat.completions.create(stop=[whole[1:3], "nowhere"], **common)
    assert stopped.choices[0].message.content == whole[:1] and stopped.choices[0].finish_reason == "stop"


async def test_tool_choice_also_holds_in_streams_and_responses(client: Any, rollouts: Any) -> None:
    task, _ = rollouts[0]
    flat = [{"type": "function", **tool["function"]} for tool in task.tools]

    async def made(choice: Any, **more: Any) -> tuple[list[str], str]:
        """(names called, text), which must be equal for all APIs."""
        request = {"model": TUNED, "messages": list(task.messages), "tools": task.tools, "temperature": 0, **more}
        whole = (await client.chat.completions.create(tool_choice=choice, **request)).choices[0].message
        names, text = [call.function.name for call in whole.tool_calls or ()], whole.content or ""
        streamed, pieces = [], ""
        async for chunk in await client.chat.completions.create(tool_choice=choice, stream=True, **request):
            pieces += chunk.choices[0].delta.content or ""
            streamed += [call.function.name for call in chunk.choices[0].delta.tool_calls or () if call.function.name]
        assert (streamed, pieces.strip()) == (names, text.strip())
        flat_choice = choice if isinstance(choice, str) else {"type": "function", **choice["function"]}
        body = {"model": TUNED, "input": request["messages"], "tools": flat, "temperature": 0, "store": True}
        if "response_format" in more:
            body["text"] = {"format": more["response_format"]}
        items = (await client.responses.create(tool_choice=flat_choice, **body)).output
        assert [item.name for item in items if item.type == "function_call"] == names
        return names, text

    (called, _), object_format = await made("auto"), {"response_format": {"type": "json_object"}}
    assert len(called) == 1
    assert (await made("required"))[0] == (await made("auto", **object_format))[0] == called
    assert (await made("required", **object_format))[0] == called
    for name in ("cat", "search"):
        assert (await made({"type": "function", "function": {"name": name}}))[0] == [name]
    names, text = await made("none", max_tokens=400)
    assert names == [] and text and "<tool_call>" not in text
    names, text = await made("none", max_tokens=400, **object_format)
    assert names == [] and isinstance(json.loads(text), dict)


async def test_parallel_tool_calls_can_be_switched_off(client: Any, rollouts: Any) -> None:
    together, alone, streamed = set[int](), set[int](), set[tuple[int, int]]()
    for task in [task for task, _ in rollouts if " and " in task.messages[-1]["content"]][:3]:
        words = task.messages[-1]["content"].split()
        paths = [words[words.index("and") + side] for side in (-1, 1)]
        calls = [
            {"id": path, "type": "function", "function": {"name": "list", "arguments": json.dumps({"path": path})}}
            for path in paths
        ]  # after two calls in a turn this model sometimes makes two calls again
        results = [{"role": "tool", "tool_call_id": path, "content": TOOLS["list"].run(WORLD, path)} for path in paths]
        messages = [*task.messages, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
        common = {"model": TUNED, "messages": messages, "tools": task.tools, "n": 64, "seed": 3, "temperature": 1}
        for found, options in ((together, {}), (alone, {"parallel_tool_calls": False})):
            answer = await client.chat.completions.create(**options, **common)
            found |= {len(choice.message.tool_calls or ()) for choice in answer.choices}
        async for chunk in await client.chat.completions.create(stream=True, parallel_tool_calls=False, **common):
            for choice in chunk.choices:
                streamed |= {(choice.index, call.index) for call in choice.delta.tool_calls or ()}
    assert max(together) > 1 and max(alone) == 1
    assert {index for _, index in streamed} == {0} and len({sample for sample, _ in streamed}) > 32


async def test_a_responses_stream_has_its_events_in_order(client: Any, rollouts: Any) -> None:
    task, _ = rollouts[0]
    tools = [{"type": "function", **tool["function"]} for tool in task.tools]
    echoed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
    request = {"model": TUNED, "temperature": 0, "input": [*task.messages[:-1], echoed, task.messages[-1]]}
    async with client.responses.stream(tools=tools, include=["reasoning.encrypted_content"], **request) as events:
        kinds = [event.type async for event in events]
    assert list(dict.fromkeys(kind.removeprefix("response.") for kind in kinds)) == [
        *("created", "in_progress", "output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    with pytest.raises(openai.BadRequestError, match="does not store responses"):
        await client.responses.create(previous_response_id="resp_1", **request)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": "what was " * CONTEXT}]}, "context_length_exceeded"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nonsense"}}}}, ""),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/nowhere"}}}}, ""),
    ({"logit_bias": {"nonsense": 1}}, ""),
    ({"logit_bias": {"99999999": 1}}, ""),
]


@pytest.mark.parametrize(("body", "code"), BAD, ids=range(len(BAD)))
async def test_requests_that_only_the_engine_can_reject_are_a_400_too(
    client: Any, body: dict[str, Any], code: str
) -> None:
    for stream in (False, True):
        request = {"model": TUNED, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **body}
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(stream=stream, **request)
        assert raised.value.body["message"]
        assert not code or raised.value.code == code


async def test_models_are_listed_by_their_serving_names(client: Any) -> None:
    assert [model.id async for model in client.models.list()] == ["gpt-5", "gpt-5-2025-08-07", TUNED]
    assert (await client.models.retrieve(TUNED)).id == TUNED
