"""One real vLLM engine with LoRA: while its adapter is trained, and with adapters that are served beside their base.

It computes as PEFT does, and a request ends with the adapter with which it began.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rft.actors.engine.chat.chat_engine import ChatEngine
from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.vllm_engine import SHM, Completion, Engine
from agent_rft.actors.weights.weight_bucket import compute_checksum
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.errors import EngineFailed, RftError
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.inference.model_apps import to_served_model
from agent_rft.serve.inference.model_server import Answers, AppState, ServedModels
from agent_rft.serve.stores.model_registry import ModelRecord, ModelRegistry
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.trainer.learner.adapter import AdapterConfig
from agent_rft.trainer.learner.checkpoint_weights import concat_bytes
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult
from tests.support.adapters import ALPHA, RANK, adapted, change, tensors_of, write_adapter_folder
from tests.support.api import client_of, openai_of
from tests.support.jobs import database_with_tables
from tests.support.tiny_model import TEMPLATE, write_tiny_model

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Warnings of vLLM and its dependencies at import and start.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

SLOTS = 3
QUESTION = [{"role": "user", "content": "where is order A 17?"}]
ADAPTERS = {"ft:one": TEMPLATE, "ft:two": TEMPLATE, "ft:polite": "<|im_start|>Please: " + TEMPLATE}
DAMAGED = ("ft:truncated", "ft:narrow", "ft:lost", "ft:card")
BASE = "gpt-5"
TOP = 5
PROMPT = list(b"what was revenue of vorzen in 2015?" * 4)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return write_tiny_model(tmp_path_factory.mktemp("models") / "base", context=1024)


@pytest.fixture(scope="module")
def peft(base: Path) -> Any:
    """The learner's model; tests change its adapter."""
    return adapted(base, seed=0, size=0.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(base: Path) -> AsyncIterator[ChatEngine]:
    lora = AdapterConfig(RANK, ALPHA)
    config = EngineConfig(str(base), "float32", 1024, max_num_seqs=16, seed=0, lora=lora, adapter_slots=SLOTS)
    served = ChatEngine(config, ServeSettings())
    assert await served.start() is None
    yield served
    await served.shutdown()


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """In place of shared memory, which other tests use too."""
    with tempfile.TemporaryDirectory(dir=SHM, prefix="test-") as folder:
        yield Path(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(served: ChatEngine, memory: Path) -> Engine:
    engine = served._engine
    assert engine is not None
    engine._shm = memory
    await engine.init_transport({})
    return engine


def logprobs_of(peft: Any, token_ids: list[int]) -> np.ndarray:
    """The learner's log-probabilities: [T] -> [T-1]."""
    with torch.no_grad():
        logits = peft(torch.tensor([token_ids])).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(token_ids)[1:, None])[:, 0].numpy()


async def publish(engine: Engine, peft: Any, *, buckets: int = 2) -> tuple[WeightLoadResult, int]:
    """Load the learner's adapter as the next version; what the engine loaded, and the checksum of what it was sent."""
    named, total = list(tensors_of(peft).items()), 0
    for part in np.array_split(np.arange(len(named)), buckets):
        tensors = [named[i] for i in part]
        data = concat_bytes([tensor for _, tensor in tensors])
        layout: BucketLayout = [(name, "float32", tuple(tensor.shape)) for name, tensor in tensors]
        engine.stage_bucket(data, layout)
        total += compute_checksum(torch.from_numpy(data))
    return await engine.load_staged(engine.version + 1), total & ((1 << 64) - 1)


async def generate(engine: Engine, seed: int, **options: Any) -> Completion:
    return await engine.generate(PROMPT, **({"max_tokens": 24, "seed": seed, "temperature": 1.0} | options))


def gap(peft: Any, completion: Completion) -> float:
    learner = logprobs_of(peft, PROMPT + completion.token_ids)[len(PROMPT) - 1 :]
    return float(np.abs(learner - completion.logprobs).max())


async def test_an_adapter_that_was_just_made_is_the_base(engine: Engine, peft: Any) -> None:
    before = await engine.prompt_logprobs(PROMPT)
    sampled = await generate(engine, 1)
    loaded, sent = await publish(engine, peft)
    assert (loaded.checksums, loaded.unmatched_tensors) == ((sent,), ())
    after = await engine.prompt_logprobs(PROMPT)
    assert after == pytest.approx(before, abs=1e-5)
    assert after == pytest.approx(logprobs_of(peft, PROMPT), abs=1e-4)
    again = await generate(engine, 1)
    assert again.token_ids == sampled.token_ids
    assert (set(sampled.versions.tolist()), set(again.versions.tolist())) == ({0}, {1})


async def test_after_an_update_the_engine_has_the_learners_log_probabilities(engine: Engine, peft: Any) -> None:
    before = logprobs_of(peft, PROMPT)
    change(peft, seed=1)
    await publish(engine, peft)
    now = logprobs_of(peft, PROMPT)
    assert np.abs(now - before).mean() > 0.1
    assert await engine.prompt_logprobs(PROMPT) == pytest.approx(now, abs=1e-4)
    completions = await asyncio.gather(*(generate(engine, seed) for seed in range(16)))
    assert max(gap(peft, completion) for completion in completions) < 1e-4


async def test_requests_in_flight_end_with_their_adapter_and_later_ones_have_the_new_one(
    engine: Engine, base: Path, peft: Any
) -> None:
    first = engine.version
    before = adapted(base, seed=1)
    running = [asyncio.create_task(generate(engine, seed, max_tokens=300)) for seed in range(6)]
    await until_sampling(engine)
    change(peft, seed=2)
    loaded, _ = await publish(engine, peft)
    later = await asyncio.gather(*(generate(engine, seed) for seed in range(6)))
    assert not all(task.done() for task in running)
    assert 0 < loaded.pause_s < 5
    assert {version for c in later for version in c.versions.tolist()} == {first + 1}
    assert max(gap(peft, completion) for completion in later) < 1e-4
    ended = await asyncio.gather(*running)
    assert {version for c in ended for version in c.versions.tolist()} == {first}
    assert max(gap(before, completion) for completion in ended) < 1e-4


async def until_sampling(engine: Engine) -> None:
    """Wait until requests have begun: one that came later has ended."""
    await generate(engine, 99, max_tokens=2)


async def test_with_all_slots_in_use_a_version_waits_for_requests_of_an_older_one(engine: Engine, peft: Any) -> None:
    with ExitStack() as oldest, ExitStack() as older:
        for requests in (oldest, older):
            newest = engine._tenants[""].adapter
            assert newest is not None
            requests.enter_context(engine.adapters.use(newest))
            await publish(engine, peft)
        waiting = asyncio.create_task(publish(engine, peft))
        meanwhile = await generate(engine, 5)
        assert not waiting.done()
        assert set(meanwhile.versions.tolist()) == {engine.version}
        oldest.close()
        await waiting
        assert len(await engine.async_llm_client.list_loras()) == SLOTS
    await publish(engine, peft)
    assert len(await engine.async_llm_client.list_loras()) == 2  # the newest, and the one before until the next update


async def test_a_changed_byte_is_reported_and_a_module_that_the_model_lacks_is_an_error(
    engine: Engine, peft: Any, memory: Path
) -> None:
    tensors = tensors_of(peft)
    data = concat_bytes(list(tensors.values()))
    sent = compute_checksum(torch.from_numpy(data.copy()))
    data[5] ^= 1
    engine.stage_bucket(data, [(name, "float32", tuple(tensor.shape)) for name, tensor in tensors.items()])
    assert (await engine.load_staged(engine.version + 1)).checksums != (sent,)
    other = [(name.replace("layers.0", "layers.7"), "float32", tuple(tensor.shape)) for name, tensor in tensors.items()]
    engine.stage_bucket(data, other)
    with pytest.raises(EngineFailed, match=r"layers\.7"):
        await engine.load_staged(engine.version + 1)
    assert os.listdir(memory) == []
    await publish(engine, peft)
    assert gap(peft, await generate(engine, 3)) < 1e-4


# -- served ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(base: Path) -> dict[str, Any]:
    """The models by name, as transformers and PEFT compute them; their folders are written."""
    made = {
        name: write_adapter_folder(base.parent / name, base, seed, template=template)
        for seed, (name, template) in enumerate(ADAPTERS.items())
    }
    return {BASE: AutoModelForCausalLM.from_pretrained(base).eval(), **made}


def damaged(folder: Path, base: Path) -> dict[str, Path]:
    """Folders that cannot be served: a truncated file, an adapter of a narrower base, no weights, a damaged card."""
    found = {name: folder / name for name in DAMAGED}
    for name in ("ft:truncated", "ft:lost", "ft:card"):
        write_adapter_folder(found[name], base, 7)
    (found["ft:card"] / "agent_rft.json").write_text("{")
    weights = found["ft:truncated"] / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (found["ft:lost"] / "adapter_model.safetensors").unlink()
    narrow = write_tiny_model(folder / "narrow", hidden_size=32)
    write_adapter_folder(found["ft:narrow"], narrow, 7)
    config = found["ft:narrow"] / "adapter_config.json"
    config.write_text(config.read_text().replace(str(narrow), str(base)))
    return found


class OneEngine:
    """A Hosting of one application, whose engine is in this process."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine

    def app_names(self, record: ModelRecord) -> list[str]:
        return ["engine"]

    async def states(self) -> dict[str, AppState]:
        return {"engine": AppState.RUNNING}

    async def answer(self, name: str, record: ModelRecord, body: Mapping[str, Any], *, stream: bool) -> Answers:
        yield None
        model = to_served_model(record)
        if not stream:
            yield _unless_error(await self._engine.chat(body, model))
        else:
            async for chunk in self._engine.stream(body, model):
                yield _unless_error(chunk)


def _unless_error(answer: Any) -> Any:
    if isinstance(answer, RftError):
        raise answer
    return answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(served: ChatEngine, base: Path, models: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    folder = base.parent
    database = database_with_tables(folder)
    registry = ModelRegistry(database, {BASE: str(base)})
    for name in ADAPTERS:
        registry.add(name, folder / name, BASE, "ftjob-1", ServeSettings(max_completion_tokens=8, context_length=256))
    for name, path in damaged(folder, base).items():
        registry.add(name, path, BASE, "ftjob-1")
    hosting: Any = OneEngine(served)
    models, trials, box = (
        ServedModels(registry, hosting),
        TrialFactory(DEFAULT_CONFIG),
        SecretBox.from_folder(folder, {}),
    )
    async with client_of([chat.make_router(models, trials), responses.make_router(models, trials, box)]) as http:
        yield openai_of(http)
    database.close()


def best(models: Any, base: Path, name: str) -> tuple[int, np.ndarray]:
    """The length of the question's prompt, and the log-probabilities of the likeliest first tokens."""
    tokenizer = AutoTokenizer.from_pretrained(base.parent / name if name in ADAPTERS else base)
    prompt = Renderer(tokenizer).render_prompt(QUESTION, ())
    with torch.no_grad():
        logits = models[name](torch.tensor([prompt])).logits[0, -1]
    return len(prompt), torch.log_softmax(logits, -1).topk(TOP).values.numpy()


async def ask(client: Any, name: str, **options: Any) -> Any:
    return await client.chat.completions.create(model=name, messages=QUESTION, **options)


async def test_three_adapters_and_their_base_answer_at_once_with_two_slots_beside_the_trained_one(
    client: Any, models: Any, base: Path, engine: Engine
) -> None:
    wanted = {name: best(models, base, name) for name in models}
    assert len({length for length, _ in wanted.values()}) == 2  # one adapter has a template of its own

    async def compare(name: str, seed: int) -> None:
        answer = await ask(client, name, logprobs=True, top_logprobs=TOP, temperature=0, max_tokens=8 + seed)
        top = [entry.logprob for entry in answer.choices[0].logprobs.content[0].top_logprobs]
        length, logprobs = wanted[name]
        assert (answer.model, answer.usage.prompt_tokens) == (name, length)
        assert sorted(top, reverse=True) == pytest.approx(logprobs.tolist(), abs=1e-4)

    await asyncio.gather(*(compare(name, seed) for seed in range(4) for name in models))
    assert len(await engine.async_llm_client.list_loras()) == SLOTS


async def test_an_adapter_has_all_forms_of_answers(client: Any) -> None:
    assert (await ask(client, "ft:one", seed=1)).usage.completion_tokens <= 8  # its own default
    pieces = [chunk async for chunk in await ask(client, "ft:two", stream=True, seed=1)]
    assert {chunk.model for chunk in pieces} == {"ft:two"} and pieces[-1].choices[0].finish_reason
    response = await client.responses.create(model="ft:polite", input="hi", store=False)
    assert response.model == "ft:polite" and response.usage.output_tokens > 0
    grader = {"type": "string_check", "name": "any", "input": "{{sample.output_text}}", "operation": "ne"}
    graded = await ask(client, "ft:two", n=3, extra_body={"grader": {**grader, "reference": ""}})
    assert len(graded.metadata["scores"]) == 3 and len(graded.choices) == 1


async def test_a_damaged_adapter_is_its_own_callers_error_and_no_one_else_s(client: Any) -> None:
    async def refused(name: str, stream: bool) -> None:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client, name, stream=stream)
        assert raised.value.code == "model_damaged" and name in raised.value.body["message"]  # type: ignore[index]
        assert "/" not in raised.value.body["message"]  # type: ignore[index]

    bad = [refused(name, stream) for name in DAMAGED for stream in (False, True)]
    good = [ask(client, name, max_tokens=30) for name in (*ADAPTERS, BASE)]
    await asyncio.gather(*good, *bad)
    assert (await ask(client, "ft:one")).choices


async def test_an_adapter_s_own_context_is_its_limit(client: Any) -> None:
    long = [{"role": "user", "content": "x" * 300}]
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(model="ft:one", messages=long)
    assert raised.value.code == "context_length_exceeded"
    assert (await client.chat.completions.create(model=BASE, messages=long, max_tokens=2)).choices
