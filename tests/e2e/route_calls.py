"""At least one valid request on every route of a running server, each answer checked against its documented model.

The routes and models come from the server's own OpenAPI page, so a route that nobody calls is found.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
from jsonschema import Draft202012Validator

EXCEPTIONS = {
    ("POST", "/v1/embeddings"): "answers 400: no model of a server makes embeddings",
}
"""Routes without a call below, with the reason."""
PARTS = {
    "log": "outputs",
    "metrics": "data",
    "live_status": "status",
    "rollout_filters": "files",
    "row_rewards": "data",
    "settings": "job",
}
"""Routes below a finished job, each with a part of its body that is not empty."""

Route = tuple[str, str]


class Routes:
    """The documented routes of a server; `seen` are those that were answered with 2xx and a valid body."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = {"components": document["components"]}
        self._operations: dict[Route, dict[str, Any]] = {
            (method.upper(), path): operation
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        }
        self._patterns = [(route, re.compile(re.sub(r"\{\w+\}", "[^/]+", route[1]))) for route in self._operations]
        self.seen: set[Route] = set()

    @property
    def documented(self) -> set[Route]:
        return set(self._operations)

    def record(self, response: httpx.Response) -> None:
        """Check one answer; a hook of the clients, which calls it before the body of a stream is read."""
        method, path = response.request.method, response.request.url.path
        found = [route for route, pattern in self._patterns if route[0] == method and pattern.fullmatch(path)]
        assert found, f"{method} {path} is not documented"
        route = min(found, key=lambda one: one[1].count("{"))  # /jobs/check is not a job
        kind = response.headers["content-type"].partition(";")[0]
        if response.status_code >= 300:
            raise AssertionError(f"{method} {path}: {response.status_code} {response.read().decode()}")
        documented = self._operations[route]["responses"][str(response.status_code)]["content"]
        assert kind in documented, f"{method} {path}: {kind}"
        if kind == "application/json":
            response.read()
            schema = documented[kind]["schema"] | self._components
            errors = [error.message for error in Draft202012Validator(schema).iter_errors(json.loads(response.content))]
            assert not errors, f"{method} {path}: {errors[:3]}"
        self.seen.add(route)


@contextmanager
def clients(url: str, key: str) -> Iterator[tuple[Routes, openai.OpenAI, httpx.Client]]:
    """Yield the routes of the server at `url`, and the official SDK and a plain client that record their calls."""
    root = url.removesuffix("/v1")
    routes = Routes(httpx.get(f"{root}/openapi.json").json())
    hooks: Any = {"response": [routes.record]}
    with (
        httpx.Client(event_hooks=hooks, timeout=300) as transport,
        httpx.Client(
            event_hooks=hooks, timeout=300, base_url=root, headers={"Authorization": f"Bearer {key}"}
        ) as plain,
    ):
        yield routes, openai.OpenAI(api_key=key, base_url=url, http_client=transport, max_retries=0), plain


def call_files(sdk: openai.OpenAI) -> None:
    made = sdk.files.create(file=("rows.jsonl", b'{"messages": []}\n'), purpose="fine-tune")
    assert made.id in {file.id for file in sdk.files.list()}
    assert sdk.files.retrieve(made.id).bytes == 17
    assert sdk.files.content(made.id).read() == b'{"messages": []}\n'
    assert sdk.files.delete(made.id).deleted


def call_job(sdk: openai.OpenAI, plain: httpx.Client, job_id: str, row: dict[str, Any]) -> None:
    """Read everything of a finished job, by the SDK where it has the call."""
    jobs, path = sdk.fine_tuning.jobs, f"/v1/fine_tuning/jobs/{job_id}"
    assert job_id in {job.id for job in jobs.list()}
    assert jobs.retrieve(job_id).status == "succeeded"
    assert jobs.list_events(job_id).data and jobs.checkpoints.list(job_id).data
    assert plain.get(f"{path}/report").text.startswith("<!doctype html>")
    for part, key in PARTS.items():
        assert plain.get(f"{path}/{part}").json()[key], part
    (first, *_) = plain.get(f"{path}/rollouts", params={"limit": 5}).json()["data"]
    assert plain.get(f"{path}/rollouts/{first['id']}").json()["id"] == first["id"]
    assert plain.get(f"{path}/rollouts/{first['id']}/tokens").json()["tokens"]
    evaluations = plain.get(f"{path}/evaluations").json()["data"]
    sides = [f"{job_id}:{evaluation['id']}" for evaluation in (evaluations[0], evaluations[-1])]
    assert plain.get("/v1/fine_tuning/comparison", params={"side": sides}).json()["sides"]
    with plain.stream("GET", f"{path}/stream") as stream:  # it goes on for a minute
        assert any(line.startswith("data:") for line in stream.iter_lines())
    call = {"name": "list", "arguments": json.dumps({"path": ""}), "item": row}
    assert "output" in plain.post(f"{path}/tool/run", json=call).json()


def call_new_jobs(sdk: openai.OpenAI, plain: httpx.Client, request: dict[str, Any]) -> None:
    """Check a job and a readiness check, create both, pause and resume them while they run, and cancel them."""
    checked = plain.post("/v1/fine_tuning/jobs/check", json=request).json()
    assert checked["problems"] == [], checked
    made = sdk.fine_tuning.jobs.create(**request)
    _until(lambda: sdk.fine_tuning.jobs.retrieve(made.id).status == "running")
    assert sdk.fine_tuning.jobs.pause(made.id).status == "paused"
    assert sdk.fine_tuning.jobs.resume(made.id).status == "queued"
    assert sdk.fine_tuning.jobs.cancel(made.id).status == "cancelled"

    path = "/v1/fine_tuning/readiness"
    draft = plain.post(path, params={"samples": 2}, json=request).json()
    assert draft["id"] in {one["id"] for one in plain.get(path).json()["data"]}
    _until(lambda: plain.get(f"{path}/{draft['id']}").json()["status"] == "running")
    assert plain.get(f"{path}/{draft['id']}/events").json()["data"]
    for step, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        assert plain.post(f"{path}/{draft['id']}/{step}").json()["status"] == status


def call_trials(sdk: openai.OpenAI, plain: httpx.Client, tool: dict[str, Any], row: dict[str, Any]) -> None:
    grader: Any = {"type": "string_check", "name": "same", "input": "{{sample.output_text}}", "reference": "17"}
    grader["operation"] = "eq"
    sdk.fine_tuning.alpha.graders.validate(grader=grader)
    assert sdk.fine_tuning.alpha.graders.run(grader=grader, model_sample="17", item={}).reward == 1.0
    body = {**tool, "arguments": json.dumps({"path": ""}), "item": row}
    assert "output" in plain.post("/v1/fine_tuning/alpha/tool/run", json=body).json()


def call_models(sdk: openai.OpenAI, model: str, checkpoint: str) -> None:
    """Let a model answer by both routes, with and without a stream; `checkpoint` is a model to delete."""
    messages: Any = [{"role": "user", "content": "What was revenue in 2015?"}]
    assert model in {one.id for one in sdk.models.list()} and sdk.models.retrieve(model).id == model
    assert sdk.chat.completions.create(model=model, messages=messages, max_completion_tokens=8).choices
    assert list(sdk.chat.completions.create(model=model, messages=messages, max_completion_tokens=8, stream=True))
    assert sdk.responses.create(model=model, input=messages, max_output_tokens=16).output
    assert list(sdk.responses.create(model=model, input=messages, max_output_tokens=16, stream=True))
    assert sdk.models.delete(checkpoint).deleted


def call_keys(plain: httpx.Client) -> None:
    made = plain.post("/v1/api_keys", json={"name": "for a test", "scopes": ["read"]}).json()
    assert made["id"] in {key["id"] for key in plain.get("/v1/api_keys").json()["data"]}
    assert plain.delete(f"/v1/api_keys/{made['id']}").json()["id"] == made["id"]
    assert plain.post("/v1/console/session").json()["key"]["scopes"] == ["admin"]
    assert plain.get("/v1/console/session").json()["read_only"] is False
    assert plain.delete("/v1/console/session").json()["deleted"]


def _until(holds: Callable[[], bool], within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
