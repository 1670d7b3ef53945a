"""Answers of every route of a server, with its own ids, times and durations replaced, for comparison with a recording.

`python -m tests.support.recorded_answers` writes the recording again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from fastapi.routing import APIRoute

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import Problem
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import make_routers
from agent_rft.serve.http.api_app import create_app
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.routes.job_stream import StreamLimits
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobError
from agent_rft.serve.stores.key_store import KeyStore
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Grade, Group
from tests.support.api import TOKEN, FakeKeys
from tests.support.builders import EXACT, group_request, raw_job, rollout
from tests.support.fake_models import FakeModels, call, turn
from tests.support.fakes_http import FakeEndpoint, says
from tests.support.synthetic import Synthetic

RECORDING = Path(__file__).parents[1] / "fixtures" / "answers" / "answers.json"
HEADERS = (
    *("content-type", "content-disposition", "content-security-policy", "cache-control", "referrer-policy"),
    *("retry-after", "set-cookie", "x-accel-buffering", "x-content-type-options"),
)
JOBS, READINESS = "/v1/fine_tuning/jobs", "/v1/fine_tuning/readiness"
HALF = "half \ud83d, caf\u00e9 \u2028"
"""Half of a surrogate pair, which UTF-8 cannot encode, and letters that ASCII cannot."""
FINDINGS = {
    "verdict": "fix_first",
    "reasons": [{"code": "too_easy", "decides": True, "message": "caf\u00e9", "fix": "r"}],
    "rows": 3,
    "share": 1e-7,
}
STATE = {
    "at": 1_000.0,
    "engines": [{"name": "engine-0", "state": "ready", "rollouts": 3}],
    "actors": [
        {"name": "learner-0", "work": [{"trace_id": "", "stage": HALF, "duration_s": 1e-05}], "silent_s": 0.0},
    ],
    "endpoints": [
        {
            **{"name": "search", "limit": 16.0, "in_flight": 1, "queued": 0, "breaker": "half_open", "down_s": 2.5},
            **{"delayed_calls": 4, "calls": 9, "failed": 1, "retries": 2, "recent_s": 60.0, "recent_calls": 3},
            **{"recent_errors": {"timeout": 1}, "errors": {"timeout": 2}},
            **{"latency_p50_s": 0.25, "latency_p95_s": None},
        }
    ],
}
_IDS = re.compile(
    r"\b(?:(file)-[\w-]{24}|(ft\w+)-[0-9a-f]{24}|(sk-rft)-[0-9a-f]{16}-[\w-]{43}"
    r"|(call|fc|msg|resp|rs|trace)_(?:[0-9a-f]{8}){2,6})"
)
_KEY_ID = re.compile(r"(?<![.\d])\b[0-9a-f]{16}\b")
_TIMES = re.compile(r"\b(?!1000000)1\d{9}(\.\d+)?\b")
_DURATIONS = re.compile(r'("(?:execution_time|latency_s|age_s)":)[\d.e-]+')
_SEALED = re.compile(r'("encrypted_content":)"[^"]*"')
_SESSION = re.compile(r"(session=)[^;\"]+")
_LAST_DIGITS = re.compile(r"(\.\d{9})\d+")
"""They depend on the processor."""
_EXPIRY = re.compile(r"expires=[^;]+ GMT")


class FindsProblem:
    async def check_request(self, draft: CheckRequest) -> list[Problem]:
        problem = Problem("too_few_rows", "training_file", "caf\u00e9", "add rows", line=3, rows="1-7, 9")
        return [] if draft.samples else [problem]


class RecordedServer:
    """A server with jobs in different states; one of them has a run."""

    def __init__(self, folder: Path) -> None:
        operator = OperatorConfig(aliases={"gpt-5": "base"}, allowed_networks=["127.0.0.0/8"])
        self.state = ServerState(StateLocations(folder), operator)
        self.runs, self.logs, self.store = folder / "runs", JobLogs(folder), JobStore(self.state.database)
        calls = turn("I look.", call("call_a", "cat", "{}"), reasoning="hm caf\u00e9")
        models = FakeModels(*[calls, turn("caf\u00e9", finish="length")] * 8)
        jobs = JobService(self.store, self.state.models, self.state.files, self.state.secrets, operator, self.logs)
        routers = make_routers(
            self.state, operator, jobs, FindsProblem(), models, stream_limits=StreamLimits(max_polls=1)
        )
        self.app = create_app(routers, FakeKeys(), sessions=self.state.sessions)
        self.found: dict[str, list[dict[str, Any]]] = {}
        self._names: dict[str, str] = {}
        self._counters: dict[str, itertools.count[int]] = {}

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(self.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        await self.client.aclose()
        self.state.close()

    def routes(self) -> set[str]:
        routes = [route for route in self.app.routes if isinstance(route, APIRoute) and route.include_in_schema]
        return {f"{method} {route.path_format}" for route in routes for method in route.methods}

    async def call(self, method: str, template: str, *, status: int = 200, **options: Any) -> Any:
        """Make a request and record its answer; `options` are the path's values, or httpx's."""
        values = {name: options.pop(name) for name in re.findall(r"{(\w+)}", template)}
        answer = await self.client.request(method, template.format(**values), **options)
        assert answer.status_code == status, f"{method} {template}: {answer.status_code} {answer.text}"
        headers = {name: self._plain(answer.headers[name]) for name in HEADERS if name in answer.headers}
        is_page = headers["content-type"].startswith("text/html")
        body = "" if is_page else self._plain(answer.content.decode())
        record = {"status": status, "headers": headers, "body": body}
        self.found.setdefault(f"{method} {template}", []).append(record)
        return answer.json() if headers["content-type"] == "application/json" else None

    def _plain(self, text: str) -> str:
        text = _IDS.sub(lambda found: self._name(found[0], found[found.lastindex or 0]), text)
        text = _KEY_ID.sub(lambda found: self._name(found[0], "key"), text)
        text = _TIMES.sub("<time>", _DURATIONS.sub(r"\1<s>", text))
        text = _EXPIRY.sub("expires=<time>", _SESSION.sub(r"\1<token>", text))
        return _LAST_DIGITS.sub(r"\1", _SEALED.sub(r'\1"<sealed>"', text))

    def _name(self, id: str, kind: str) -> str:
        if id not in self._names:
            self._names[id] = f"<{kind} {next(self._counters.setdefault(kind, itertools.count(1)))}>"
        return self._names[id]

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def files(self) -> str:
        form: Any = {"files": {"file": ("caf\u00e9.jsonl", b"{}\n")}}
        one = await self.call("POST", "/v1/files", **form, data={"purpose": "fine-tune"})
        expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        two = await self.call("POST", "/v1/files", **form, data={"purpose": "evals"} | expiry)
        await self.call("POST", "/v1/files", **form, status=400)
        for query in ({}, {"limit": 1}, {"purpose": "vision"}, {"after": two["id"]}, {"order": "asc"}):
            await self.call("GET", "/v1/files", params=query)
        await self.call("GET", "/v1/files", params={"after": "file-0"}, status=400)
        await self.call("GET", "/v1/files/{file_id}", file_id=one["id"])
        await self.call("GET", "/v1/files/{file_id}", file_id="caf\u00e9", status=404)
        await self.call("GET", "/v1/files/{file_id}/content", file_id=one["id"])
        await self.call("DELETE", "/v1/files/{file_id}", file_id=two["id"])
        return str(one["id"])

    async def jobs(self, file_id: str, tool_url: str) -> None:
        tools = [{"name": "search", "server_url": tool_url, "headers": {"X-Key": "hunter2-is-a-secret"}}]
        body = raw_job(tools=tools) | {"model": "gpt-5", "training_file": file_id, "seed": 5}
        options = {"suffix": "caf", "metadata": {"team": "caf\u00e9"}, "model_options": {"stop_tokens": ["<|eom|>"]}}
        job = (await self.call("POST", JOBS, json=body | options))["id"]
        failed = (await self.call("POST", JOBS, json=body | {"seed": 6}))["id"]
        supervised = body | {"seed": 7, "method": {"type": "supervised"}}
        await self.call("POST", JOBS, json=supervised)
        await self.call("POST", JOBS, json=body | {"model": "none"}, status=400)
        await self.call("POST", f"{JOBS}/check", json=body)
        await self.call("POST", f"{JOBS}/check", json=body, params={"samples": 4})
        await self.call("POST", f"{JOBS}/check", json=body | {"training_file": "file-0", "suffix": "x" * 100})
        await self.call("POST", JOBS + "/{job_id}/tool/run", job_id=job, json={"name": "search"})
        await self.call("GET", JOBS + "/{job_id}/settings", job_id=job)
        await self.call("GET", JOBS + "/{job_id}/live_status", job_id=job)
        await self.call("GET", JOBS + "/{job_id}/report", job_id=job, status=404)
        self.prepare(job, failed)
        for query in ({}, {"limit": 1}, {"include": "progress"}, {"metadata[team]": "b"}):
            await self.call("GET", JOBS, params=query)
        for query in ({}, {"include": "progress"}):
            await self.call("GET", JOBS + "/{job_id}", job_id=job, params=query)
        await self.call("GET", JOBS + "/{job_id}", job_id=failed)
        await self.call("GET", JOBS + "/{job_id}", job_id="ftjob-0", status=404)
        for query in ({}, {"limit": 1}):
            await self.call("GET", JOBS + "/{job_id}/events", job_id=job, params=query)
        await self.call("GET", JOBS + "/{job_id}/checkpoints", job_id=job)
        await self.call("GET", JOBS + "/{job_id}/checkpoints", job_id=failed)
        for attempt in ({}, {"attempt": 0}):
            await self.call("GET", JOBS + "/{job_id}/log", job_id=failed, params=attempt)
        await self.call("GET", JOBS + "/{job_id}/log", job_id=job)
        await self.call("GET", JOBS + "/{job_id}/live_status", job_id=job)
        await self.call("GET", JOBS + "/{job_id}/stream", job_id=job)
        await self.records(job)
        for action in ("pause", "resume", "cancel"):
            await self.call("POST", JOBS + "/{job_id}/" + action, job_id=job)
            await self.call("POST", JOBS + "/{job_id}/" + action, job_id=failed, status=400)
        await self.readiness(body)

    def prepare(self, job: str, failed: str) -> None:
        """Give one job a run and let the other one fail."""
        scores = {"step": 1, "total_steps": 9, "train_mean_reward": 1e-05, "scores": {"a": None}}
        self.store.add_event(job, "info", "Step 1/9", type="metrics", data=scores)
        self.store.add_event(job, "warn", "caf\u00e9", data={"text": HALF, "\u00e9": [1, 2.0, 1e16]})
        self.store.add_checkpoint(job, 1, "ft:gpt-5:ckpt-step-1", {"step": 1.0, "full_valid_mean_reward": 1e-07})
        self.logs.add(failed, 0, "validated caf\u00e9")
        self.logs.add(failed, 1, "Traceback")
        for id in (job, failed):
            self.store.move(id, "queued")
            self.store.move(id, "running")
        error = JobError("invalid_training_file", "caf\u00e9", "training_file", log="line 3: caf\u00e9")
        self.store.move(failed, "failed", error=error)
        self.store.next_attempt(job, 0, "driver", failures=0)
        self.store.update_for_driver(job, 1, trained_tokens=12, estimated_finish=1_900_000_000.5)
        run = Synthetic().run(self.runs / job, steps=2, total=2, validation_every=2, rows=2)
        request = group_request(7, 2)
        special = replace(rollout(request, 0, 1e-07, answer=HALF), grade=Grade(1e-07, {"exact": float("nan")}))
        whole = rollout(request, 1, answer="caf\u00e9")
        folder = RunFolder(run.path)
        folder.handle_groups("step-000009", [Group(request, (special, whole))])
        folder.close()
        run.status_file.write_text(json.dumps(STATE))

    async def records(self, job: str) -> None:
        evaluations = [f"{job}:test-before", f"{job}:test-after"]
        await self.call("GET", "/v1/fine_tuning/comparison", params={"side": evaluations})
        await self.call("GET", "/v1/fine_tuning/comparison", params={"side": [job, "x"]}, status=404)
        rollouts = JOBS + "/{job_id}/rollouts"
        for query in ({"file": "step-9"}, {"limit": 1, "tool": "cat"}, {"finish": "discarded", "limit": 1}):
            await self.call("GET", rollouts, job_id=job, params=query)
            await self.call("GET", rollouts, job_id=job, params=query | {"view": "summary"})
        await self.call("GET", rollouts, job_id=job, params={"row": "none"})
        await self.call("GET", rollouts, job_id=job, params={"after": "none"}, status=400)
        await self.call("GET", rollouts + "/{rollout_id}", job_id=job, rollout_id="step-000009.0")
        await self.call("GET", rollouts + "/{rollout_id}", job_id=job, rollout_id="step-000009.9", status=404)
        query = {"start": 1, "limit": 3}
        await self.call("GET", rollouts + "/{rollout_id}/tokens", job_id=job, rollout_id="step-000009.0", params=query)
        for query in ({"step": 1}, {"file": "step-9"}):
            await self.call("GET", JOBS + "/{job_id}/row_rewards", job_id=job, params=query)
        for path in ("evaluations", "metrics", "rollout_filters", "settings", "report"):
            await self.call("GET", JOBS + "/{job_id}/" + path, job_id=job)

    async def readiness(self, body: dict[str, Any]) -> None:
        one = (await self.call("POST", READINESS, json=body, params={"samples": 4, "target_latency_s": 2}))["id"]
        two = (await self.call("POST", READINESS, json=body))["id"]
        for id in (one, two):
            self.store.move(id, "queued")
            self.store.move(id, "running")
        self.store.add_event(one, "error", "caf\u00e9", data={"text": HALF})
        self.store.move(two, "succeeded", findings=FINDINGS, result_files=["file-9"])
        path = READINESS + "/{readiness_id}"
        for action in ("pause", "resume", "cancel"):
            await self.call("POST", f"{path}/{action}", readiness_id=one)
        await self.call("GET", READINESS)
        await self.call("GET", path, readiness_id=two)
        await self.call("GET", path, readiness_id="ftready-0", status=404)
        await self.call("GET", f"{path}/events", readiness_id=one)

    async def trials(self, tool_url: str) -> None:
        part = {"type": "length", "input": "{{ sample.output_text }}", "max_chars": 3}
        multi = {"type": "multi", "graders": {"a": EXACT, "b": part}, "calculate_output": "b / 3"}
        endpoint = {"type": "endpoint", "url": f"{tool_url}?token=x", "headers": {"X": "y"}, "rate_limit": 2}
        alpha = "/v1/fine_tuning/alpha"
        for grader in (EXACT, multi, endpoint):
            await self.call("POST", f"{alpha}/graders/validate", json={"grader": grader})
        await self.call("POST", f"{alpha}/graders/validate", json={"grader": {"type": "none"}}, status=400)
        for grader in (EXACT, multi):
            sample = {"model_sample": "caf\u00e9", "item": {"reference_answer": "caf\u00e9"}}
            await self.call("POST", f"{alpha}/graders/run", json={"grader": grader} | sample)
            await self.call("POST", f"{alpha}/graders/run", json={"grader": grader, "model_sample": "x"})
        for name in ({"name": "search", "id": "call_1"}, {"name": "search", "arguments": {"query": "x"}}):
            await self.call("POST", f"{alpha}/tool/run", json=name | {"server_url": tool_url})
        await self.call("POST", f"{alpha}/tool/run", json={"name": "search", "server_url": "ftp://x"}, status=400)

    async def models(self) -> None:
        self.state.models.add("ft:gpt-5:local:caf\u00e9", "folder", "gpt-5", "ftjob-1")
        await self.call("GET", "/v1/models")
        await self.call("GET", "/v1/models/{model_id}", model_id="gpt-5")
        await self.call("GET", "/v1/models/{model_id}", model_id="none", status=404)
        await self.call("DELETE", "/v1/models/{model_id}", model_id="ft:gpt-5:local:caf\u00e9")
        await self.call("DELETE", "/v1/models/{model_id}", model_id="gpt-5", status=403)

    async def answers(self) -> None:
        chat: dict[str, Any] = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
        graded = {"grader": EXACT, "n": 2, "item": {"reference_answer": "caf\u00e9"}}
        tool = {"type": "function", "name": "cat", "parameters": {"type": "object"}}
        for more in ({}, graded, {"n": 2}, {"stream": True}):
            await self.call("POST", "/v1/chat/completions", json=chat | more)
        await self.call("POST", "/v1/embeddings", json={}, status=400)
        sealed = {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}
        plain = {"model": "gpt-5", "input": "caf\u00e9"}
        form = {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}}
        for more in ({}, graded, form | {"temperature": 0, "metadata": {"a": "caf\u00e9"}}, {"stream": True}):
            await self.call("POST", "/v1/responses", json=plain | more)
        await self.call("POST", "/v1/responses", json=plain | sealed | {"tools": [tool], "tool_choice": "auto"})

    async def keys(self) -> None:
        keys = "/v1/api_keys"
        KeyStore(self.state.database, lambda: 1_600_000_000).create("caf\u00e9", ["read", "write"])
        limits = {"expires_after_s": 3600, "requests_per_minute": 9}
        made = await self.call("POST", keys, json={"name": "b", "scopes": ["admin"]} | limits)
        await self.call("POST", keys, json={"name": "b"}, status=400)
        await self.call("DELETE", keys + "/{key_id}", key_id=made["id"])
        await self.call("DELETE", keys + "/{key_id}", key_id="none", status=404)
        await self.call("GET", keys)

    async def console(self) -> None:
        for method in ("GET", "POST", "DELETE"):
            await self.call(method, "/v1/console/session")


async def answers_of(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], set[str]]:
    """Return the answers of a new server in `folder` by route, and all of its routes."""
    async with RecordedServer(folder) as server, FakeEndpoint(says({"output": "caf\u00e9", "score": 0.5})) as endpoint:
        await server.jobs(await server.files(), endpoint.url)
        await server.trials(endpoint.url)
        await server.models()
        await server.answers()
        await server.keys()
        await server.console()
        port = re.compile(re.escape(endpoint.url))
        text = port.sub("<endpoint>", json.dumps(server.found))
        return json.loads(text), server.routes()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        RECORDING.write_text(json.dumps(asyncio.run(answers_of(Path(folder)))[0], indent=1) + "\n")
