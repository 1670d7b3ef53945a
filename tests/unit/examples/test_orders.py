"""The example of a shop: its rows can be answered, its server follows the protocol, its template only appends."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from transformers import AutoTokenizer

from agent_rft.chat.conversation import split_conversation
from agent_rft.chat.renderer import Renderer
from agent_rft.spec.job_file import load_job
from examples.common.agent import converse, shown
from examples.orders import make_data
from examples.orders.questions import draw_question, grade
from examples.orders.server import app
from examples.orders.shop import NOT_FOUND, TOOLS, Shop, Split
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tiny_model

EXAMPLE = ROOT / "examples" / "orders"
VARIABLES = {"ORDERS_MODEL": "model", "ORDERS_URL": "http://127.0.0.1:8010", "ORDERS_SEED": "3"}


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "data" / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").write_text((ROOT / "examples" / "common" / "chat_template.jinja").read_text())
    return AutoTokenizer.from_pretrained(folder)


# The rows


def test_writing_the_data_reproduces_the_committed_files(tmp_path: Path) -> None:
    make_data.write_data(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (EXAMPLE / "data").iterdir()}


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_calls_of_a_question_find_its_values(split: Split) -> None:
    shop, rng = Shop(), random.Random(5)
    for _ in range(200):
        for part in draw_question(shop, rng, split).parts:
            assert part.value in TOOLS[part.call.tool].run(shop, part.call.argument)


def test_training_and_test_share_no_product_country_and_order() -> None:
    shop = Shop()
    for split_of in (shop.products, shop.countries, shop.numbers):
        assert set(split_of["train"]).isdisjoint(split_of["test"])
    asked = [{row["messages"][1]["content"] for row in rows_of(f"{name}.jsonl")} for name in ("warm_start", "train")]
    assert asked[0].isdisjoint(asked[1])


def test_the_conversations_of_the_warm_start_answer_everything_and_call_together_what_they_can() -> None:
    at_once = 0
    for row in rows_of("warm_start.jsonl"):
        question, answer = row["messages"][1]["content"], row["messages"][-1]["content"]
        turns = [message["tool_calls"] for message in row["messages"] if message.get("tool_calls")]
        outputs = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        assert sum(map(len, turns)) == len(outputs)
        assert NOT_FOUND not in outputs
        named = [word for word in answer.replace(".", "").split() if word in " ".join(outputs)]
        assert grade(answer, question, [word for word in named if word.isdigit() or word.endswith("day")]) == 1
        at_once += any(len(turn) > 1 for turn in turns)
    assert at_once > len(rows_of("warm_start.jsonl")) / 4


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("It ships on Friday. The price is 40 dollars.", 1),
        ("Order 4711 ships on Friday, and you pay $40.", 1),
        ("It ships on Friday.", 0.5),
        ("It ships on Friday. The price is 41 dollars.", 0.5),
        ("It ships on Friday or Monday, for 40 or 41 dollars.", 0.5),
        ("4711", 0),
        ("", 0),
    ],
)
def test_a_grade_is_the_share_of_the_right_values_and_guessing_lowers_it(answer: str, expected: float) -> None:
    assert grade(answer, "When does order 4711 ship, and what does it cost?", ["Friday", "40"]) == expected


# The server


def test_a_tool_answers_what_it_finds_and_the_grader_grades_the_answer(client: TestClient) -> None:
    row = next(row for row in rows_of("test.jsonl") if len(row["values"]) == 1)
    product = Shop().products["test"][0]
    output = client.post("/tools/product", json={"arguments": json.dumps({"item": product})}).json()["output"]
    assert output == f"price: {Shop().prices[product]}"
    assert client.post("/tools/product", json={"arguments": '{"item": "nothing"}'}).json()["output"] == NOT_FOUND
    sample = {"output_text": f"It is {row['values'][0]}."}
    assert client.post("/grade", json={"sample": sample, "item": row}).json() == {"score": 1.0}


@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [
        ("order", "{}", 422),
        ("order", "[1]", 422),
        ("order", "4711", 422),
        ("order", "{", 422),
        ("order", "[" * 100_000, 422),
        ("refund", "{}", 404),
    ],
)
def test_a_wrong_call_is_refused_and_the_model_reads_why(
    client: TestClient, tool: str, arguments: str, status: int
) -> None:
    answer = client.post(f"/tools/{tool}", json={"arguments": arguments})
    assert answer.status_code == status
    assert status == 404 or answer.json()["detail"] == "give number, a text"


# The jobs and the template


@pytest.mark.parametrize("name", ["warm_start", "job"])
def test_the_jobs_are_valid(name: str) -> None:
    job = load_job(EXAMPLE / f"{name}.yaml", VARIABLES)
    assert Path(job.training_file).exists()
    assert job.seed == 3


def test_the_template_shows_the_tools_and_only_appends(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    row = next(row for row in rows_of("warm_start.jsonl") if len(row["messages"][2].get("tool_calls", ())) == 2)
    prompt = tokenizer.decode(renderer.render_prompt(row["messages"][:2], row["tools"]))
    assert "\norder(number): the day an order ships, and its item\nproduct(item): " in prompt
    (sample,) = split_conversation(
        renderer, row["messages"], row["tools"]
    )  # one for each turn if history were rewritten
    trained = tokenizer.decode([token for token, mask in zip(sample.token_ids, sample.mask, strict=True) if mask])
    turns = [message for message in row["messages"] if message["role"] == "assistant"]
    calls = sum(len(message.get("tool_calls", ())) for message in turns)
    assert trained.count("<tool_call>{") == calls and trained.count("<|im_end|>") == len(turns)
    assert tokenizer.decode(sample.token_ids).count("<|im_start|>tool\n") == calls


# The agent's loop


class FakeChat:
    """Chat completions of a model that makes two calls, then answers; `asked` has the messages of each request."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.chat = SimpleNamespace(completions=self)

    def create(self, *, messages: list[dict[str, Any]], **_: Any) -> Any:
        self.asked.append(list(messages))
        message = {"role": "assistant", "content": "It ships on Friday."}
        if len(self.asked) == 1:
            calls = [{"id": str(i), "function": {"name": "order", "arguments": f'{{"number": "{i}"}}'}} for i in (1, 2)]
            message = {"role": "assistant", "tool_calls": calls}
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(model_dump=lambda **_: message))])


def test_the_loop_makes_the_calls_of_a_turn_and_shows_the_model_their_results() -> None:
    client: Any = FakeChat()
    question = {"role": "user", "content": "When do orders 1 and 2 ship?"}
    messages = list(converse(client, "support", [question], [], lambda name, arguments: f"{name} {arguments}"))
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "assistant"]
    assert [(m["tool_call_id"], m["content"]) for m in messages[1:3]] == [
        ("1", 'order {"number": "1"}'),
        ("2", 'order {"number": "2"}'),
    ]
    assert client.asked[1] == [question, *messages[:3]]
    assert shown(messages[0]).splitlines() == ["  assistant  -> order(1)", "  assistant  -> order(2)"]
