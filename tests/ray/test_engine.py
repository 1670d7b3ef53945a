"""One real vLLM engine: it agrees with the learner, is updated in flight, and its cache never mixes versions."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rft.actors.engine.chat.chat_engine import ChatEngine
from agent_rft.actors.engine.chat.turn_parsers import load_parser
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.engine_memory import BATCHED_TOKENS
from agent_rft.actors.engine.grammar.structural_tags import build_reasoning_format, build_turn_structure
from agent_rft.actors.engine.vllm_engine import SHM, Completion, Engine
from agent_rft.actors.rollout.canary import CANARY_LIMITS
from agent_rft.actors.weights.shared_memory import PREFIX
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.actors.weights.weight_bucket import compute_checksum
from agent_rft.chat.families.hermes import HERMES
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.errors import EngineFailed
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult
from agent_rft.trainer.model.grammar_masks import GrammarMasks
from agent_rft.trainer.model.micro_batches import pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch, load_policy
from agent_rft.types import TrainSegment
from tests.support.adapters import write_adapter_folder
from tests.support.fakes_http import until
from tests.support.paths import BASE
from tests.support.processes import our_processes
from tests.support.shared_memory import left_behind
from tests.support.zmq_contexts import open_contexts

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Warnings of vLLM and its dependencies at import and start.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]


SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["answer"],
    "additionalProperties": False,
}
NUMBER = {"type": "integer", "minimum": 1000, "maximum": 9999}
"""Without white space: in objects the model, which never learned JSON, often samples nothing else."""
THINKING_TOKENS = 8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's model with reasoning delimiters; it starts to reason where it would call a tool."""
    folder = tmp_path_factory.mktemp("thinking")
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.add_tokens(list(HERMES.reasoning_delimiters))
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight[-2], weight[-1] = weight[tokenizer.encode("<tool_call>\n", add_special_tokens=False)[0]], 0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def renderer(base: Path) -> Renderer:
    return Renderer(AutoTokenizer.from_pretrained(base))


@pytest.fixture(scope="module")
def model(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(base: Path) -> AsyncIterator[ChatEngine]:
    config = EngineConfig(str(base), "float32", 1024, max_num_seqs=32, seed=0)
    settings = ServeSettings(context_length=1024, max_completion_tokens=200, max_reasoning_tokens=THINKING_TOKENS)
    served, before = ChatEngine(config, settings), open_contexts()
    assert await served.start() is None
    yield served
    await served.shutdown()  # after the last test, which kills its core
    assert open_contexts() == before
    assert not [file for file in psutil.Process().open_files() if file.path.startswith(f"{SHM}/{PREFIX}")]
    assert left_behind() == set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(served: ChatEngine) -> Engine:
    engine = served._engine
    assert engine is not None
    await engine.init_transport({})
    return engine


@pytest.fixture(scope="module")
def prompt(renderer: Renderer) -> list[int]:
    return renderer.render_prompt([{"role": "user", "content": "what was revenue of vorzen in 2015?"}], ())


def logprobs_of(model: Any, token_ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """The learner's log-probabilities: [T] -> [T-1]."""
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0, :-1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(token_ids)[1:, None])[:, 0].numpy()


def scaled(model: Any, factor: float) -> tuple[np.ndarray, BucketLayout]:
    """A bucket of all weights scaled by `factor`, also in the model; embeddings twice, since the head is tied."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    named = [(n, p.detach()) for n, p in model.named_parameters()]
    data = np.concatenate([p.numpy().reshape(-1).view(np.uint8) for _, p in named])
    return data, [(n, "float32", tuple(p.shape)) for n, p in named]


async def generate(engine: Engine, prompt: list[int], seed: int, **options: Any) -> Completion:
    return await engine.generate(prompt, **({"max_tokens": 24, "seed": seed, "temperature": 1.0} | options))


async def test_vllm_waits_for_its_core_as_long_as_a_start_may_take(engine: Engine) -> None:
    from vllm.v1.engine import core_client  # it read the timeout when the engine imported it

    assert start_timeout_s(Path(engine.config.model)) <= core_client.VLLM_ENGINE_READY_TIMEOUT_S


async def test_prompts_beyond_one_step_s_token_budget_are_served_in_several_steps(
    engine: Engine, prompt: list[int]
) -> None:
    """A chunked prompt with a seed would crash an engine on a CPU."""
    long = (prompt * 100)[:1000]
    requests = [
        engine.generate([10 + i, *long[1:]], max_tokens=2, seed=i, temperature=1.0)
        for i in range(BATCHED_TOKENS // len(long) + 2)
    ]
    assert [len(completion.token_ids) for completion in await asyncio.gather(*requests)] == [2] * len(requests)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
async def test_an_unchanged_policy_has_ratio_one_at_any_temperature(
    engine: Engine, model: Any, prompt: list[int], temperature: float
) -> None:
    completions = await asyncio.gather(*(generate(engine, prompt, i, temperature=temperature) for i in range(16)))
    ratios = []
    for completion in completions:
        learner = logprobs_of(model, prompt + completion.token_ids, temperature)[len(prompt) - 1 :]
        assert completion.logprobs.shape == learner.shape
        ratios.append(np.exp(learner - completion.logprobs))
    assert np.concatenate(ratios) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("reasoning_mode", ["none", "optional", "opened"])
async def test_under_a_response_format_the_learner_has_the_engines_log_probabilities(
    engine: Engine, renderer: Renderer, base: Path, prompt: list[int], reasoning_mode: str
) -> None:
    start, end = renderer.reasoning_token_ids
    renderer.reasoning_mode = reasoning_mode
    structure = build_turn_structure((), NUMBER, None, build_reasoning_format(renderer, THINKING_TOKENS))
    prompt = [*prompt, start] if reasoning_mode == "opened" else prompt
    completions = await asyncio.gather(
        *(generate(engine, prompt, i, max_tokens=60, structure=structure, temperature=0.7) for i in range(24))
    )
    whole = [completion.token_ids for completion in completions if completion.stopped]
    assert whole
    assert all(1000 <= int(renderer.decode_turn(_without_reasoning(ids, end))) <= 9999 for ids in whole)
    lengths = {ids.index(end) if end in ids else -1 for ids in whole}
    assert max(lengths) <= THINKING_TOKENS + 1
    assert (max(lengths) > 0) == (reasoning_mode != "none")
    [[batch]] = pack_sequences([trained(prompt, c, structure) for c in completions], num_ranks=1, budget=1 << 20)
    kept, masks = GrammarMasks(base).constrain(batch)
    assert (kept.weights == 1).all()
    policy = load_policy(base, torch.float32, temperature=0.7)
    with torch.no_grad():
        learner = policy(DeviceBatch.from_micro_batch(kept, torch.device("cpu"), masks))[0].numpy()
        unmasked = policy(DeviceBatch.from_micro_batch(kept, torch.device("cpu")))[0].numpy()
    assert np.abs(learner - batch.logprobs).mean() < 1e-3
    assert np.exp(learner - batch.logprobs) == pytest.approx(1.0, abs=0.02)
    assert np.abs(unmasked - batch.logprobs).mean() > 0.1


def _without_reasoning(token_ids: list[int], end: int) -> list[int]:
    return token_ids[token_ids.index(end) + 1 :] if end in token_ids else token_ids


def trained(prompt: Sequence[int], completion: Completion, structure: str) -> TrainSegment:
    before, sampled = [0] * len(prompt), len(completion.token_ids)
    return TrainSegment(
        np.array([*prompt, *completion.token_ids], np.int32),
        np.array([*before, *[1] * sampled], np.bool_),
        np.array([*before, *completion.logprobs], np.float32),
        np.array([*before, *completion.versions], np.int32),
        1.0,
        structure,
    )


async def test_a_served_model_thinks_and_then_answers_in_the_schema(served: ChatEngine, renderer: Renderer) -> None:
    start, _ = renderer.reasoning_token_ids
    body = {
        "messages": [{"role": "user", "content": "what was revenue of vorzen in 2015?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": NUMBER}},
        "logit_bias": {str(start): 100},
    }
    answers: Any = await asyncio.gather(*(served.chat(body | {"seed": seed}) for seed in range(8)))
    for answer in answers:
        message = answer["choices"][0]["message"]
        assert message["reasoning"]
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= THINKING_TOKENS + 2
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert 1000 <= int(message["content"]) <= 9999


async def test_equal_seeds_give_equal_samples_and_others_do_not(engine: Engine, prompt: list[int]) -> None:
    same = await asyncio.gather(*(generate(engine, prompt, 5) for _ in range(3)))
    assert same[0].token_ids == same[1].token_ids == same[2].token_ids
    others = await asyncio.gather(*(generate(engine, prompt, i) for i in range(8)))
    assert len({tuple(completion.token_ids) for completion in others}) > 1


async def test_the_end_token_is_sampled_and_kept(engine: Engine, renderer: Renderer, prompt: list[int]) -> None:
    completion = await generate(engine, prompt, 1, max_tokens=200)
    assert completion.stopped
    assert completion.token_ids[-1] == renderer.tokenizer.eos_token_id
    cut = await generate(engine, prompt, 1, max_tokens=3)
    assert not cut.stopped
    assert len(cut.token_ids) == 3


async def test_reasoning_is_ended_at_its_limit(engine: Engine, renderer: Renderer, prompt: list[int]) -> None:
    start, end = renderer.reasoning_token_ids
    opened = [*prompt, start]
    free = await asyncio.gather(*(generate(engine, opened, i) for i in range(8)))
    assert all(completion.token_ids.index(end) > 3 for completion in free if end in completion.token_ids)
    held = await asyncio.gather(*(generate(engine, opened, i, max_reasoning_tokens=3) for i in range(8)))
    assert all(end in completion.token_ids[:4] for completion in held)


async def test_requests_in_flight_begin_again_when_the_engine_wakes_up(engine: Engine, prompt: list[int]) -> None:
    async def all_of_them() -> list[list[int]]:
        made = await asyncio.gather(*(generate(engine, prompt, i, max_tokens=200, temperature=2.0) for i in range(8)))
        return [completion.token_ids for completion in made]

    undisturbed = await all_of_them()
    running = asyncio.create_task(all_of_them())
    await until(lambda: engine.live_metrics()["engine_slots_used"] > 0)
    await engine.offload()
    later = asyncio.create_task(generate(engine, prompt, 1))
    await engine.check_health()
    assert not running.done() and not later.done()
    await engine.reload()
    assert await running == undisturbed
    assert (await later).token_ids


async def test_requests_wait_for_new_weights_if_the_engine_has_discarded_its_own(
    engine: Engine, model: Any, prompt: list[int]
) -> None:
    if engine.version == 0:
        assert not await engine.offload(discards=True)  # it has no update that replaces them
        await engine.reload()
    for discards in (True, False):  # it still lacks weights
        version = engine.version + 1
        engine.stage_bucket(*scaled(model, 1.0))
        await engine.load_staged(version)
        assert await engine.offload(discards=True)
        await engine.reload()
        assert await engine.offload(discards=discards)
        await engine.reload()
        waiting = asyncio.create_task(generate(engine, prompt, 1))
        await engine.check_health()
        assert not waiting.done()
        engine.stage_bucket(*scaled(model, 1.0))
        await engine.load_staged(version + 1)
        assert set((await waiting).versions.tolist()) == {version + 1}


async def test_requests_in_flight_continue_with_the_new_weights_and_later_ones_use_only_those(
    engine: Engine, model: Any, prompt: list[int]
) -> None:
    before, swapped, completions = engine.version, asyncio.Event(), []

    async def one_after_the_other(first: int) -> None:
        for seed in itertools.count(first, step=32):
            completions.append(await generate(engine, prompt, seed, max_tokens=600, temperature=2.0))
            if swapped.is_set():
                break

    engine.stage_bucket(*scaled(model, 1.1))  # before: it blocks this loop, and meanwhile all requests would end
    running = [asyncio.create_task(one_after_the_other(i)) for i in range(32)]
    await until(lambda: len(completions) > 0)
    pause = (await engine.load_staged(before + 1)).pause_s
    swapped.set()
    await asyncio.gather(*running)
    versions = [set(completion.versions.tolist()) for completion in completions]
    assert {before, before + 1} in versions
    assert all(np.all(np.diff(completion.versions) >= 0) for completion in completions)
    later = await generate(engine, prompt, 1)
    assert set(later.versions.tolist()) == {before + 1}
    assert 0 < pause < 5


async def test_a_failed_start_leaves_no_process_and_no_zmq_context(base: Path, tmp_path: Path) -> None:
    """The error is still referenced, so nothing was closed by the garbage collector."""
    without_weights = tmp_path / "without_weights"
    shutil.copytree(base, without_weights, ignore=shutil.ignore_patterns("*.safetensors"))
    without_tensors = tmp_path / "adapter"
    write_adapter_folder(without_tensors, base, seed=0)
    save_file({}, without_tensors / "adapter_model.safetensors")
    before, cores = open_contexts(), set(our_processes("EngineCore"))
    for folder in (without_weights, without_tensors):
        engine = Engine(EngineConfig(str(folder), "float32", 256, max_num_seqs=2, seed=0))
        with pytest.raises(EngineFailed, match="could not") as failed:
            await engine.start()
        assert failed.value.__cause__ is not None
        assert open_contexts() == before
        assert not set(our_processes("EngineCore")) - cores


STALE = "model.layers.0.self_attn.q_norm.weight"


async def test_in_bfloat16_one_stale_tensor_is_found_by_its_checksum_and_not_by_the_canary(prompt: list[int]) -> None:
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16).eval()
    before = open_contexts()
    engine = Engine(EngineConfig(str(BASE), "bfloat16", 1024, max_num_seqs=8, seed=0))
    await engine.start()
    assert len(open_contexts() - before) == 1
    await engine.init_transport({})
    old = dict(model.named_parameters())[STALE].detach().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert not torch.equal(named[STALE], old)

    async def load(tensors: dict[str, torch.Tensor]) -> tuple[WeightLoadResult, int, float]:
        """What the engine says that it loaded, what it was handed, and its gap on a canary."""
        data = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors.values()])
        engine.stage_bucket(data.numpy(), [(name, "bfloat16", tuple(tensor.shape)) for name, tensor in tensors.items()])
        loaded = await engine.load_staged(engine.version + 1)
        gap = np.abs(await engine.prompt_logprobs(tokens) - logprobs_of(model.float(), tokens)).mean()
        return loaded, compute_checksum(data), float(gap)

    try:
        tokens = (prompt * 40)[:512]
        loaded, wanted, gap = await load(named)
        assert (loaded.checksums, loaded.unmatched_tensors) == ((wanted,), ()) and gap < CANARY_LIMITS["bfloat16"]
        loaded, _, gap = await load(named | {STALE: old})
        assert loaded.checksums != (wanted,) and gap < CANARY_LIMITS["bfloat16"]
        # A name that vLLM's model ignores.
        ignored = STALE.replace("q_norm.weight", "rotary_emb.inv_freq")
        loaded, handed, gap = await load({ignored if name == STALE else name: t for name, t in named.items()})
        assert (
            loaded.checksums == (handed,) and loaded.unmatched_tensors == (ignored,) and gap < CANARY_LIMITS["bfloat16"]
        )
    finally:
        engine.shutdown()
    assert open_contexts() == before


async def test_no_later_request_reuses_a_cache_block_of_older_weights(
    engine: Engine, model: Any, prompt: list[int]
) -> None:
    tokens = (prompt * 40)[:600]  # many full blocks, cached by the first request
    old = await engine.prompt_logprobs(tokens)
    assert old == pytest.approx(logprobs_of(model, tokens), abs=1e-3)
    engine.stage_bucket(*scaled(model, 0.9))
    await engine.load_staged(engine.version + 1)
    sampled = await generate(engine, tokens, 3)
    learner = logprobs_of(model, tokens + sampled.token_ids)[len(tokens) - 1 :]
    assert sampled.logprobs == pytest.approx(learner, abs=1e-3)
    new = await engine.prompt_logprobs(tokens)
    assert new == pytest.approx(logprobs_of(model, tokens), abs=1e-3)
    assert np.abs(new - old).mean() > 0.01


async def test_requests_without_a_token_during_an_update_use_only_the_new_weights(
    engine: Engine, model: Any, prompt: list[int]
) -> None:
    tokens = (prompt * 40)[:600]
    await engine.prompt_logprobs(tokens)
    requests = [asyncio.create_task(generate(engine, tokens, i)) for i in range(40)]  # more than there are slots
    engine.stage_bucket(*scaled(model, 1.1))
    await asyncio.sleep(0)
    await engine.load_staged(engine.version + 1)
    completions = await asyncio.gather(*requests)
    late = [completion for completion in completions if completion.versions[0] == engine.version]
    assert late
    for completion in late:
        learner = logprobs_of(model, tokens + completion.token_ids)[len(tokens) - 1 :]
        assert completion.logprobs == pytest.approx(learner, abs=1e-3)


async def test_decoding_is_constrained_to_tool_calls_or_the_schema(
    engine: Engine, renderer: Renderer, prompt: list[int]
) -> None:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = ({"type": "function", "function": {"name": "cat", "parameters": parameters}},)
    structure = build_turn_structure(tools, SCHEMA, HERMES.call_syntaxes[0])
    parser = load_parser(HERMES, renderer.tokenizer)
    completions = await asyncio.gather(
        *(generate(engine, prompt, i, max_tokens=100, structure=structure) for i in range(12))
    )
    seen = set()
    for completion in completions:
        text = renderer.decode_turn(completion.token_ids)
        parsed = parser(text, tools)
        if completion.stopped and parsed.calls:
            assert all(name == "cat" and "path" in json.loads(arguments) for name, arguments in parsed.calls)
            seen.add("call")
        elif completion.stopped:
            assert 10 <= json.loads(text)["answer"] <= 99
            seen.add("answer")
    assert seen


async def test_calls_to_a_dying_engine_fail_at_once(engine: Engine, prompt: list[int]) -> None:
    """The last test here: it kills the engine during an update, whose end new requests wait for."""
    (core,) = our_processes("VLLM::EngineCore")
    core.suspend()
    calls = [
        asyncio.create_task(call) for call in (engine.load_weights(engine.version + 1, []), generate(engine, prompt, 1))
    ]
    await asyncio.sleep(0.2)
    core.kill()
    async with asyncio.timeout(10):
        for call in calls:
            with pytest.raises(EngineFailed):
                await call
