"""The ledger example: its world is the one that `base/` was trained on, and its servers follow the protocol."""

import asyncio
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from transformers import AutoConfig, AutoTokenizer, Qwen3ForCausalLM

from examples.ledger import make_base, make_data
from examples.ledger.app import create_app
from examples.ledger.base_model import build_model
from examples.ledger.clumsy import CLUMSY, play
from examples.ledger.latency import Latency
from examples.ledger.lookup_samples import LookupSamples
from examples.ledger.lookup_training import LearningRate, lookup_score
from examples.ledger.questions import draw_question, grade
from examples.ledger.server import prepare
from examples.ledger.supervised_rows import row
from examples.ledger.tokenizer import CHAT_TEMPLATE, build_tokenizer
from examples.ledger.tools import NOT_FOUND, TOOLS
from examples.ledger.vocabulary import TOKEN_OF, encode
from examples.ledger.world import World
from tests.support.paths import ROOT

EXAMPLE = Path(make_data.__file__).parent
BASE = EXAMPLE / "base"
TOKEN = "a-token"
AUTH = {"Authorization": f"Bearer {TOKEN}"}

# Digests of what the weights in base/ were trained on, taken from the program that trained them.
DOCUMENTS = "bafc142661ce5930ba2820494e806ef6d2dcb46d95455575b77cb2f930cdc719"
CALLS = "feec93aedf14e982d99c4251b556b83ac12035a91fa44343653e8aff83864656"
TEST_QUESTIONS = "39573476bf7efa7ec3c309af78c1a847d8668678663c712caaafee7e323f32ea"
TRACES = "0adcf05cf07695d3d83b224f192436e42280edb3bb584c48ffe3b57af825445b"
LEARNED = "c509a8d4ca827dcb39dc7067ba98b3938fb9e2fd4059a861e38a32350f5f5ca2"
SEVENTH_TRACE = """\
<|im_start|>user
what was net income of vorzen in 2013?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "cat", "arguments": {"path": "vorzen/2013/income"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
vorzen/2013/income
net income 3363
costs 3528
revenue 3905
</tool_response><|im_end|>
<|im_start|>assistant
3363<|im_end|>
"""


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "data" / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="module")
def clumsy_messages(world: World) -> list[list[dict[str, Any]]]:
    rng = random.Random(1)
    companies = world.companies_in("train") + world.companies_in("validation")
    return [play(world, draw_question(world, rng, companies), rng, CLUMSY).messages(world) for _ in range(50)]


# The world


def test_the_documents_are_those_that_the_base_model_was_trained_on(world: World) -> None:
    assert len(world.documents) == 12_000
    assert digest(list(world.documents.items())) == DOCUMENTS


def test_the_tools_answer_as_they_did_in_training(world: World) -> None:
    rng = random.Random(3)
    answered = []
    for _ in range(500):
        conversation = play(world, draw_question(world, rng, world.companies), rng, CLUMSY)
        for tool, argument in itertools.chain.from_iterable(conversation.turns):
            answered.append([tool, argument, TOOLS[tool].run(world, argument)])
    assert digest(answered) == CALLS


@pytest.mark.parametrize(
    ("tool", "argument"), [("list", "nobody"), ("list", "vorzen/1999"), ("search", "revenue 2013"), ("cat", "vorzen")]
)
def test_a_missing_path_is_not_found(world: World, tool: str, argument: str) -> None:
    assert TOOLS[tool].run(world, argument) == NOT_FOUND


def test_slashes_around_a_path_do_not_matter(world: World) -> None:
    assert TOOLS["cat"].run(world, "/vorzen/2013/income/") == TOOLS["cat"].run(world, "vorzen/2013/income")
    assert TOOLS["list"].run(world, "vorzen/2013/") == "income balance cash"


def test_the_same_seed_gives_the_same_world_without_excluded_names(world: World) -> None:
    assert World(seed=5, num_companies=9).documents == World(seed=5, num_companies=9).documents
    excluded = set(world.companies_in("test"))
    assert excluded.isdisjoint(World(seed=5, num_companies=2000, excluded=excluded).companies)


# The dataset


def test_writing_the_data_reproduces_the_committed_files(tmp_path: Path) -> None:
    make_data.write_data(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (EXAMPLE / "data").iterdir()}


def test_the_splits_share_no_document() -> None:
    train, validation, test = (
        {document.split("/")[0] for name in names for row in rows_of(name) for document in row["documents"]}
        for names in (["train.jsonl", "train_10.jsonl"], ["validation.jsonl"], ["test.jsonl"])
    )
    assert train.isdisjoint(validation)
    assert train.isdisjoint(test)
    assert validation.isdisjoint(test)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("train.jsonl", {"one": 144, "two": 72, "higher": 24}),
        ("train_10.jsonl", {"one": 6, "two": 3, "higher": 1}),
        ("validation.jsonl", {"one": 29, "two": 14, "higher": 5}),
        ("test.jsonl", {"one": 139, "two": 76, "higher": 25}),
    ],
)
def test_the_kinds_of_questions_are_mixed_60_30_10(name: str, kinds: dict[str, int]) -> None:
    assert Counter(row["kind"] for row in rows_of(name)) == kinds


def test_the_test_questions_are_those_behind_the_published_figures() -> None:
    asked = [
        [row["messages"][0]["content"], list(map(int, row["reference_answer"].split())), row["documents"]]
        for row in rows_of("test.jsonl")
    ]
    assert digest(asked) == TEST_QUESTIONS


def test_the_documents_of_a_row_contain_its_answer(world: World) -> None:
    for item in rows_of("train.jsonl"):
        shown = " ".join(world.documents[path] for path in item["documents"]).split()
        assert set(item["reference_answer"].split()) <= set(shown)


def test_instructed_rows_differ_only_by_a_system_message(tmp_path: Path) -> None:
    make_data.write_data(tmp_path / "new", make_data.INSTRUCTION)
    lines = (tmp_path / "new" / "train_10.jsonl").read_text().splitlines()
    for line, plain in zip(lines, rows_of("train_10.jsonl"), strict=True):
        instructed = json.loads(line)
        assert instructed["messages"].pop(0)["role"] == "system"
        assert instructed == plain


@pytest.mark.parametrize("name", ["job.yaml", "job_gpu.yaml"])
def test_a_job_names_every_tool_of_the_rows(name: str) -> None:
    job = yaml.safe_load((EXAMPLE / name).read_text())
    tools = job["method"]["reinforcement"]["tools"]
    for item in rows_of("train_10.jsonl"):
        assert [tool["function"]["name"] for tool in item["tools"]] == [tool["name"] for tool in tools]


def test_the_files_of_the_job_exist() -> None:
    job = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    assert all((EXAMPLE / job[key]).exists() for key in ("model", "training_file", "validation_file", "test_file"))


# The grade


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("5000", "5000", 1.0),
        (" 5000\n", "5000", 1.0),
        ("5050", "5000", 0.5),
        ("5051", "5000", 0.0),
        ("5000 6000", "5000 6000", 1.0),
        ("5000 6001", "5000 6000", 0.5),
        ("5000 7000", "5000 6000", 0.0),
        ("6000 5000", "5000 6000", 0.0),
        ("5000", "5000 6000", 0.0),
        ("5000 5000", "5000", 0.0),
        ("about 5000", "5000", 0.0),
        ("\N{SUPERSCRIPT TWO}", "2", 0.0),
        ("9" * 5000, "5000", 0.0),
        ("unknown", "5000", 0.0),
        ("", "5000", 0.0),
    ],
)
def test_the_grade_gives_half_for_a_near_miss(answer: str, reference: str, score: float) -> None:
    assert grade(answer, reference) == score


@pytest.mark.parametrize("reference", ["", "high"])
def test_a_reference_without_numbers_has_no_grade(reference: str) -> None:
    with pytest.raises(ValueError):
        grade("5000", reference)


# The tokenizer and the traces


def test_the_tokenizer_and_template_are_those_of_the_base_model(tokenizer: Any) -> None:
    committed = AutoTokenizer.from_pretrained(BASE)
    assert tokenizer.get_vocab() == committed.get_vocab() == TOKEN_OF
    assert (BASE / "chat_template.jinja").read_text() == committed.chat_template == CHAT_TEMPLATE
    assert json.loads(tokenizer.backend_tokenizer.to_str()) == json.loads((BASE / "tokenizer.json").read_text())


def test_clumsy_conversations_render_to_the_traces_of_training(
    tokenizer: Any, world: World, clumsy_messages: list[list[dict[str, Any]]]
) -> None:
    rendered = [
        tokenizer.apply_chat_template(
            row(messages)["messages"], tools=row(messages)["tools"], tokenize=False
        ).removesuffix("\n")
        for messages in clumsy_messages
    ]
    tokens = [tokenizer.encode(text, add_special_tokens=False) for text in rendered]
    assert rendered[6] + "\n" == SEVENTH_TRACE
    assert digest(tokens) == TRACES
    assert tokens == [encode(text) for text in rendered]
    assert [tokenizer.decode(ids) for ids in tokens] == rendered


def test_only_the_assistants_tokens_have_full_weight(
    tokenizer: Any, world: World, clumsy_messages: list[list[dict[str, Any]]]
) -> None:
    samples = LookupSamples(world, world.companies, tokenizer, random.Random(0))
    rendered = [samples.render(messages) for messages in clumsy_messages]
    assert digest([[int(learned) for learned in sample.learned[:-1]] for sample in rendered]) == LEARNED


def test_each_tool_call_has_its_own_result(clumsy_messages: list[list[dict[str, Any]]]) -> None:
    for messages in clumsy_messages:
        called = [call["id"] for message in messages for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert called == answered
        assert len(set(called)) == len(called)


# Making the base model


def test_the_untrained_model_has_the_base_models_shape() -> None:
    model = build_model(seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 560_608
    committed = AutoConfig.from_pretrained(BASE).to_diff_dict()
    assert model.config.to_diff_dict() | {"architectures": ["Qwen3ForCausalLM"]} == committed


def test_the_base_model_reads_values_of_companies_it_never_saw(world: World, tokenizer: Any) -> None:
    samples = LookupSamples(world, world.companies_in("test"), tokenizer, random.Random(0))
    model = Qwen3ForCausalLM.from_pretrained(BASE)
    assert lookup_score(model, samples.scored_conversations(40)) > 0.6


def test_the_learning_rate_falls_if_the_score_takes_long_to_rise() -> None:
    rate = LearningRate(limit_s=100.0)
    assert rate.factor(0, 0.0) == pytest.approx(1 / 30)
    assert rate.factor(100, 40.0) == 1.0
    assert rate.factor(100, 70.0) == pytest.approx(0.55)
    assert rate.factor(100, 100.0) == pytest.approx(0.1)
    assert rate.end_s == 100.0


def test_training_ends_soon_after_the_target_is_reached() -> None:
    rate = LearningRate(limit_s=100.0, reached_s=20.0)
    assert rate.end_s == 25.0
    assert rate.factor(100, 22.5) == pytest.approx(0.5)
    assert rate.factor(100, 25.0) == pytest.approx(0.05)


def test_practice_has_no_company_of_validation_or_test(world: World, tokenizer: Any) -> None:
    samples = make_base.practice_samples(world, random.Random(0))
    held_out = world.companies_in("validation") + world.companies_in("test")
    text = " ".join(tokenizer.decode(samples.draw().tokens) for _ in range(100))
    assert not any(company in text.replace("/", " ").split() for company in held_out)


# The servers


def post(app: FastAPI, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ledger") as client:
            return await client.post(path, json=body, headers=AUTH if headers is None else headers)

    return asyncio.run(send())


def call(arguments: str, **changes: Any) -> dict[str, Any]:
    item = {"reference_answer": "3363"}
    body = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "cat", "arguments": arguments}
    return body | {"trace_id": "trace_1", "item": item} | changes


@pytest.fixture(scope="module")
def app(world: World) -> FastAPI:
    return create_app(world, TOKEN)


@pytest.mark.parametrize("path", ["/tools/cat", "/grade"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}, {"Authorization": TOKEN}])
def test_every_request_needs_the_token(app: FastAPI, path: str, headers: dict[str, str]) -> None:
    response = post(app, path, call('{"path": "vorzen/2013/income"}'), headers)
    assert response.status_code == 401
    assert "token" in response.text


def test_without_a_token_every_caller_of_this_machine_is_served(world: World) -> None:
    response = post(create_app(world, None), "/tools/cat", call('{"path": "vorzen/2013/income"}'), {})
    assert response.status_code == 200
    command = [sys.executable, "-m", "examples.ledger.server", "--host", "0.0.0.0"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"LEDGER_TOKEN": ""}, capture_output=True, text=True)
    assert done.returncode == 1 and "set LEDGER_TOKEN" in done.stderr


def test_an_empty_token_is_rejected(world: World) -> None:
    with pytest.raises(ValueError, match="token"):
        create_app(world, "")


def test_a_tool_responds_in_the_protocols_format(app: FastAPI, world: World) -> None:
    response = post(app, "/tools/cat", call('{"path": "vorzen/2013/income"}'))
    assert response.status_code == 200
    assert response.json() == {
        "type": "function_call_output",
        "id": "fc_1",
        "call_id": "call_1",
        "output": "vorzen/2013/income\nnet income 3363\ncosts 3528\nrevenue 3905",
    }


def test_list_and_search_respond_too(app: FastAPI) -> None:
    assert post(app, "/tools/list", call('{"path": "vorzen/2013"}')).json()["output"] == "income balance cash"
    found = post(app, "/tools/search", call('{"query": "vorzen net income 2013"}')).json()["output"]
    assert "vorzen/2013/income" in found.split("\n")


def test_a_missing_document_is_an_ordinary_output(app: FastAPI) -> None:
    response = post(app, "/tools/cat", call('{"path": "vorzen/2013/nothing"}'))
    assert (response.status_code, response.json()["output"]) == (200, NOT_FOUND)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/tools/cat", call("not JSON"), 422, "arguments"),
        ("/tools/cat", call("[]"), 422, "arguments"),
        ("/tools/cat", call("{}"), 422, "path"),
        ("/tools/cat", call('{"path": 5}'), 422, "path"),
        ("/tools/cat", call('{"path": "a", "depth": 2}'), 422, "path"),
        ("/tools/search", call('{"path": "a"}'), 422, "query"),
        ("/tools/cat", call("{}", call_id=None), 400, "call_id"),
        ("/tools/cat", {"call_id": "call_1", "arguments": {}}, 400, "arguments"),
        ("/tools/cat", ["a list"], 400, "body"),
        ("/tools/rm", call("{}"), 404, "rm"),
        ("/grade", {"sample": {}, "item": {"reference_answer": "1"}}, 422, "output_text"),
        ("/grade", {"sample": None, "item": {"reference_answer": "1"}}, 422, "sample"),
        ("/grade", {"sample": {"output_text": "1"}, "item": {}}, 422, "reference_answer"),
        ("/grade", {"sample": {"output_text": "1"}, "item": {"reference_answer": "x"}}, 422, "reference_answer"),
    ],
)
def test_a_bad_request_is_rejected_with_a_sentence(app: FastAPI, path: str, body: Any, status: int, word: str) -> None:
    response = post(app, path, body)
    assert response.status_code == status
    assert response.text.startswith("error: ")
    assert word in response.text


@pytest.mark.parametrize(("answer", "score"), [("3363", 1.0), ("3360", 0.5), ("unknown", 0.0), ("", 0.0)])
def test_the_grader_gives_partial_credit(app: FastAPI, answer: str, score: float) -> None:
    body = {"sample": {"output_text": answer}, "item": {"reference_answer": "3363"}, "trace_id": "trace_1"}
    response = post(app, "/grade", body)
    assert (response.status_code, response.json()) == (200, {"score": score})
    assert f'"score":{score}' in response.text


def test_latency_has_the_requested_median_and_tail() -> None:
    latency = Latency(0.2, 2.0)
    drawn = sorted(latency.draw_s() for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(0.2, rel=0.05)
    assert drawn[19_800] == pytest.approx(2.0, rel=0.15)
    with pytest.raises(ValueError):
        Latency(2.0, 0.2)


def test_tools_and_grader_listen_where_the_ports_file_says(app: FastAPI, tmp_path: Path) -> None:
    ports_file = tmp_path / "ports.json"
    server, listeners = prepare(app, {"tools_port": ("127.0.0.1", 0), "grader_port": ("127.0.0.1", 0)}, ports_file)
    serving = threading.Thread(target=server.run, args=(listeners,))
    serving.start()
    try:
        deadline_s = time.monotonic() + 10
        while not ports_file.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        ports = json.loads(ports_file.read_text())
        with httpx.Client(headers=AUTH) as client:
            listed = client.post(f"http://127.0.0.1:{ports['tools_port']}/tools/list", json=call('{"path": "vorzen"}'))
            body = {"sample": {"output_text": "1"}, "item": {"reference_answer": "1"}, "trace_id": "trace_1"}
            graded = client.post(f"http://127.0.0.1:{ports['grader_port']}/grade", json=body)
    finally:
        server.should_exit = True
        serving.join()
    assert (listed.status_code, graded.status_code) == (200, 200)
    assert not ports_file.exists()
