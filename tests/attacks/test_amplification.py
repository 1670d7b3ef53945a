"""Small requests that cost much: many graders, long templates, slow comparisons, many samples, large numbers.

Costs of sandboxes and of the process that compares texts are not the API's; they have limits of their own.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from pydantic import BaseModel

from agent_rft.actors.graders.grader_templates import MAX_CHARS, render, template_problems
from agent_rft.actors.graders.hacks.python_source import CodeTooLarge
from agent_rft.actors.graders.kinds.code_check import find_hack
from agent_rft.actors.graders.kinds.grade_expression import expression_problems
from agent_rft.actors.graders.kinds.judge import Judge
from agent_rft.actors.grading.trial_slots import TrialSlots
from agent_rft.errors import GraderFailed
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.routes import job_routes, trial_routes
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.spec.graders import ScoreModelGrader
from agent_rft.spec.job import ClusterSpec
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig
from tests.support.api import client_of
from tests.support.budget import budget
from tests.support.fake_models import FakeModels, turn
from tests.support.fakes_http import until
from tests.support.jobs import BODY, StoredJobs, database_with_tables, job_service

BOX = SecretBox("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
LIMIT, SHARE = 4, 3
"""Slots of the server, and those that one key may have."""
PYTHON = {"type": "python", "source": "def grade(sample, item): return 0.5"}
LONG = ".a" * 25_000


def multi(part: dict[str, Any], count: int) -> dict[str, Any]:
    return {"type": "multi", "graders": {f"p{i}": part for i in range(count)}, "calculate_output": "p0"}


def similarity(**changes: Any) -> dict[str, Any]:
    texts = {"input": "{{ sample.output_text }}", "reference": "{{ item.x }}", "evaluation_metric": "meteor"}
    return {"type": "text_similarity"} | texts | changes


class Server:
    """The routes that grade, with few slots, and the route that creates jobs."""

    def __init__(self, folder: Path) -> None:
        self.slots = TrialSlots(LIMIT)
        self.jobs = StoredJobs(database_with_tables(folder))
        trials, models = TrialFactory(DEFAULT_CONFIG, self.slots), FakeModels(turn("an answer"))
        self._client = client_of(
            [
                trial_routes.make_router(trials),
                chat.make_router(models, trials),
                responses.make_router(models, trials, BOX),
                job_routes.make_router(job_service(self.jobs.store, OperatorConfig(), lambda: None)),
            ]
        )

    async def run(self, grader: Any, sample: str = "an answer", **item: Any) -> httpx.Response:
        body = {"grader": grader, "model_sample": sample, "item": item}
        return await self._post("fine_tuning/alpha/graders/run", body)

    async def validate(self, grader: Any) -> httpx.Response:
        return await self._post("fine_tuning/alpha/graders/validate", {"grader": grader})

    async def chat(self, grader: Any, n: int = 1, **item: Any) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "grader": grader, "n": n, "item": item}
        return await self._post("chat/completions", body)

    async def respond(self, grader: Any, n: int = 1) -> httpx.Response:
        return await self._post("responses", {"model": "m", "input": "a", "grader": grader, "n": n})

    async def create_job(self, **changes: Any) -> httpx.Response:
        return await self._post("fine_tuning/jobs", BODY | changes)

    async def _post(self, path: str, body: Any) -> httpx.Response:
        text = json.dumps(body)
        assert len(text) < 1 << 20
        return await self._client.post(f"/v1/{path}", content=text, headers={"Content-Type": "application/json"})

    async def close(self) -> None:
        await self._client.aclose()
        self.jobs.database.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    yield server
    await server.close()


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    return dict(response.json()["error"])


def children(program: str) -> list[psutil.Process]:
    """The processes that this one started with `program` on their command line and that still run."""
    return [child for child in psutil.Process().children() if program in " ".join(_command(child))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has just ended
        return []


async def most_alive(program: str, *work: asyncio.Task[httpx.Response]) -> int:
    """The highest number of such processes at a time until all the work is done."""
    most, pending = 0, set(work)
    while pending:
        _, pending = await asyncio.wait(pending, timeout=0.05)
        most = max(most, len(children(program)))
    return most


# -- many graders ------------------------------------------------------------------------------------------------------


async def test_forty_python_parts_are_refused_on_every_route_and_start_nothing(server: Server) -> None:
    attack = multi(PYTHON, 40)
    method = json.loads(json.dumps(BODY["method"]))
    method["reinforcement"]["grader"] = attack
    with budget():
        answers = [await send(attack) for send in (server.validate, server.run, server.chat, server.respond)]
        answers.append(await server.create_job(method=method))
        assert children("actors") == []
    fields = ["grader.graders"] * 4 + ["method.reinforcement.grader.graders"]
    for response, field in zip(answers, fields, strict=True):
        error = error_of(response)
        assert (error["code"], error["param"]) == ("grader_too_large", field)
        assert "more than 16 graders that start a process" in error["message"] and "combine" in error["message"]


@pytest.mark.parametrize("route", ["validate", "job"])
async def test_thousands_of_parts_or_guards_cost_no_more_than_their_form(server: Server, route: str) -> None:
    length = {"type": "length", "max_chars": 1}
    method = json.loads(json.dumps(BODY["method"]))
    method["reinforcement"]["guards"] = [{"name": f"g{i}", "grader": length} for i in range(4_000)]
    with budget():
        attack = server.validate(multi(length, 5_000)) if route == "validate" else server.create_job(method=method)
        assert error_of(await attack)["code"] == "grader_too_large"


@pytest.mark.parametrize(
    ("source", "parts", "status"),
    [
        ("f()\n" * 10_000 + "def grade(sample, item): return 1", 4, 200),
        ("x = [" + "a," * 120_000 + "]", 1, 200),
        ("#" * 60_000, 16, 400),
    ],
    ids=["calls", "a list", "too much"],
)
async def test_long_sources_are_parsed_within_the_budget(server: Server, source: str, parts: int, status: int) -> None:
    with budget(mib=120):  # the parser's memory
        answer = await server.validate(multi(PYTHON | {"source": source}, parts))
    assert answer.status_code == status
    if status == 400:
        error = error_of(answer)
        assert error["code"] == "grader_too_large" and "256,000 bytes" in error["message"]


# -- templates and texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["{{item.x}}" * 90_000, "{{" * 450_000, "}}{{" * 225_000, "{{ " + "a" * 900_000 + "}}"]
)
async def test_a_template_of_a_megabyte_is_refused(server: Server, text: str) -> None:
    with budget():
        error = error_of(await server.validate({"type": "length", "input": text, "max_chars": 1}))
    assert error["param"] == "grader.input" and len(error["message"]) < 3_000


def test_a_text_is_never_put_together_beyond_the_limit() -> None:
    value = "x" * 900_000
    with budget(mib=20), pytest.raises(GraderFailed, match=r"g, input: .* more than 1,000,000 characters"):
        render("{{item.x}}" * 1_000, "g, input", item={"x": value}, sample={})
    assert len(render("{{item.x}}", "g, input", item={"x": "x" * MAX_CHARS}, sample={})) == MAX_CHARS


async def test_the_messages_to_a_judge_have_the_limit_together() -> None:
    messages = [{"role": "user", "content": "{{ item.x }}"}] * 1_000
    client: Any = SimpleNamespace(uses_logprobs=False)  # which is not asked
    judge = Judge(ScoreModelGrader(type="score_model", model="m", input=messages), "j", client)
    with budget(mib=20), pytest.raises(GraderFailed, match=r"input\[11\]\.content: .* more than 1,000,000"):
        await judge.grade({}, {"x": "x" * 90_000}, "t")


@pytest.mark.parametrize(
    "template", ["{{" * 500_000, "{{item." + "a." * 400_000 + "}}", "{{item" + "[0]" * 300_000 + "}}"]
)
def test_templates_are_read_in_linear_time(template: str) -> None:
    with budget():
        template_problems(template)


async def test_slow_comparisons_run_in_one_process_that_is_not_the_apis(server: Server) -> None:
    with budget(children=False):
        work = asyncio.create_task(server.run(multi(similarity(), 2), sample=LONG, x=LONG + " b"))
        assert await most_alive("agent_rft.actors.grading.text_trial_process", work) == 1
    answer = work.result().json()
    assert 0.5 < answer["reward"] <= 1.0 and len(answer["sub_rewards"]) == 2
    assert children("actors") == [] and server.slots.num_held == 0


async def test_texts_that_are_long_with_all_samples_are_compared_in_processes(server: Server) -> None:
    part = similarity(input="{{ item.y }}", evaluation_metric="rouge_l")
    work = asyncio.create_task(server.chat(part, 4, x=LONG[:20_000], y=LONG[:20_000]))
    assert 1 <= await most_alive("agent_rft.actors.grading.text_trial_process", work) <= SHARE, (
        "the first of them is compared here"
    )
    assert work.result().json()["metadata"]["scores"] == [1.0] * 4
    assert children("actors") == [] and server.slots.num_held == 0


async def test_rendering_a_long_text_many_times_costs_the_api_nothing(server: Server) -> None:
    attack = multi({"type": "length", "input": "{{ item.x }}" * 900, "max_chars": 1}, 60)
    with budget(children=False):
        response = await server.run(attack, x="x" * 200_000)
    assert response.json()["metadata"]["errors"]["other_error"] is True


def test_patterns_of_files_have_a_limit() -> None:
    with budget(cpu_s=2):
        with pytest.raises(CodeTooLarge, match="patterns"):
            find_hack("tests_edited", "", "a*," * 300_000)
        patch = "".join(f"+++ b/{i}\n" for i in range(70_000))
        assert "cannot be checked" in str(find_hack("tests_edited", patch, ",".join(f"z{i}*" for i in range(10))))
        assert find_hack("tests_edited", "+++ " + "a" * 900_000, "*a" * 1_000 + "b") is None


@pytest.mark.parametrize("text", ["max(" + "1/1," * 480 + "a)", "+".join(["1"] * 900) + "+a", "9^9^9^9^9+a"])
def test_expressions_are_checked_in_little_time(text: str) -> None:
    with budget(cpu_s=0.5):
        expression_problems(text, ["a"])


# -- sandboxes ---------------------------------------------------------------------------------------------------------


async def test_samples_times_parts_never_run_more_sandboxes_than_slots(server: Server) -> None:
    attack = multi(PYTHON, 3)
    with budget(cpu_s=3, children=False):
        work = [
            asyncio.create_task(each)
            for each in (server.chat(attack, 4), server.respond(attack, 2), server.run(attack))
        ]
        most = await most_alive("sandbox_launcher.py", *work)
    assert most == SHARE, "all keys together have 4, and this is one key"
    answers = [task.result().json() for task in work]
    assert answers[0]["metadata"]["scores"] == [0.5] * 4 and answers[2]["reward"] == 0.5
    assert children("actors") == [] and server.slots.num_held == 0


async def test_a_failed_grade_starts_no_further_sandbox_in_its_slot(server: Server) -> None:
    endless = PYTHON | {"source": "def grade(sample, item):\n    while True: pass", "timeout_s": 0.2}
    work = asyncio.create_task(server.run(multi(endless, 2)))
    assert await most_alive("sandbox_launcher.py", work) <= 2
    assert work.result().json()["metadata"]["errors"]["python_grader_server_error_type"] == "timeout"
    assert children("actors") == [] and server.slots.num_held == 0


async def test_a_client_that_leaves_takes_its_sandboxes_with_it(server: Server) -> None:
    sleeps = PYTHON | {"source": "import time\ndef grade(sample, item): time.sleep(100)"}
    work = asyncio.create_task(server.chat(sleeps, 20))
    while len(children("sandbox_launcher.py")) < SHARE:
        await asyncio.wait([work], timeout=0.01)
    work.cancel()
    await asyncio.wait([work])
    assert children("actors") == [] and (server.slots.num_held, server.slots.num_waiting) == (0, 0)


async def test_grades_that_are_cancelled_together_take_no_place_from_those_that_wait() -> None:
    """A judge's grade ends at once when its client leaves, and the next in the queue may be its own."""
    slots, go_on = TrialSlots(1), asyncio.Event()

    async def grade() -> None:
        async with slots.hold_slot("a key"):
            await go_on.wait()

    leaves, stays = [asyncio.create_task(grade()) for _ in range(3)], asyncio.create_task(grade())
    await until(lambda: slots.num_waiting == 3)
    for task in leaves:
        task.cancel()
    await asyncio.wait(leaves)
    assert all(task.cancelled() for task in leaves) and (slots.num_held, slots.num_waiting) == (1, 0)
    go_on.set()
    await stays
    assert slots.num_held == 0


# -- numbers -----------------------------------------------------------------------------------------------------------


def numbers_of(model: type[BaseModel], at: str = "") -> list[str]:
    """The paths of all numbers below a model."""
    found = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += numbers_of(kind, f"{at}{name}.")
        elif re.search(r"\b(int|float)\b", str(kind)):
            found.append(f"{at}{name}")
    return found


@pytest.mark.parametrize("path", numbers_of(ClusterSpec))
async def test_a_number_of_the_cluster_has_an_upper_bound(server: Server, path: str) -> None:
    *parents, name = path.split(".")
    cluster: dict[str, Any] = {name: 10**9}
    for parent in reversed(parents):
        cluster = {parent: cluster}
    with budget():
        error = error_of(await server.create_job(cluster=cluster))
    assert error["param"] == f"cluster.{path}" and "less than or equal to" in error["message"]
