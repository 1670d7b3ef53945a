"""The server matches its OpenAPI document.

Schemathesis generates valid and invalid requests from the document and checks that it describes each response. App and
stores are real, only the models are fakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.errors import Problem
from agent_rft.events import StepDone
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import make_routers
from agent_rft.serve.http.api_app import create_app
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.jobs.processes.request_check import CheckRequest
from agent_rft.serve.routes.job_stream import StreamLimits
from agent_rft.serve.stores.job_states import JobStatus
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.key_store import KeyStore
from agent_rft.spec.operator.operator_config import OperatorConfig, ServerLimits
from tests.support.api import TOKEN, FakeKeys
from tests.support.builders import group, group_request
from tests.support.events import run_event
from tests.support.fake_models import FakeModels, call, turn
from tests.support.jobs import BODY, NO_LOGS, fixture_of

FEW, MANY = 4, 6
"""Requests per operation. The first one is valid and for existing objects, so few are enough to find a success."""
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
ALL = list(HealthCheck)
UNREACHABLE = {"POST /v1/embeddings", "POST /v1/fine_tuning/alpha/tool/run"}
"""Operations that cannot succeed here: no embedding model exists, and no tool is reachable."""
WITH_A_JOB = {f"POST /v1/fine_tuning/{path}" for path in ("jobs", "jobs/check", "readiness")}
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class NothingFound:
    async def check_request(self, draft: CheckRequest) -> list[Problem]:
        return []


class FullServer:
    """A server with one object of each type that has an id."""

    def __init__(self, folder: Path) -> None:
        operator = OperatorConfig(aliases={"gpt-5": "base"})
        state = ServerState(StateLocations(folder), operator)
        self.folder, self.database, self.models = folder, state.database, state.models
        self.store = JobStore(state.database)
        fake = FakeModels(turn("I look.", call("call_a", "cat", "{}"), reasoning="hm"))
        service = JobService(self.store, state.models, state.files, state.secrets, operator, NO_LOGS)
        routers = make_routers(state, operator, service, NothingFound(), fake, stream_limits=StreamLimits(max_polls=1))
        self.app = create_app(routers, FakeKeys(), limits=ServerLimits(requests_per_minute=10**6))
        self.schema = schemathesis.openapi.from_asgi("/openapi.json", self.app)

    def ids(self, status: JobStatus) -> dict[str, str]:
        """The ids of a new file, a new job in this status and a new tuned model."""
        with asgi.get_client(self.app) as client:
            client.headers.update(AUTHORIZATION)
            form: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}
            file_id = client.post("/v1/files", **form).json()["id"]
            body = BODY | {"training_file": file_id}
            job_id = client.post("/v1/fine_tuning/jobs", json=body).json()["id"]
            readiness_id = client.post("/v1/fine_tuning/readiness", json=body).json()["id"]
        self.store.add_event(job_id, "info", "Step 1/9", type="metrics", data={"step": 1, "scores": {"a": None}})
        self.store.add_checkpoint(job_id, 1, f"ft:{job_id}:ckpt-step-1", {"step": 1.0})
        self.store.add_event(readiness_id, "info", "created")
        for id in (job_id, readiness_id):
            self.store.move(id, "queued")
            self.store.move(id, "running")
            if status != "running":
                self.store.move(id, status)
        self.models.add(f"ft:{job_id}", "folder", "gpt-5", job_id)
        run = RunFolder(self.folder / "runs" / job_id)
        run.handle_groups("step-000001", [group(group_request(), [1.0, None])])
        for name in ("test-before", "test-after"):
            run.handle_groups(name, [group(group_request(purpose="test"), [1.0, 0.0])])
        run.handle_event(run_event(StepDone(step=1, total_steps=9, metrics={"step": 1.0, "total_steps": 9.0})))
        run.close()
        key_id = KeyStore(self.database).create("a", ["read"])[0].id
        ids = {"file_id": file_id, "job_id": job_id, "readiness_id": readiness_id, "key_id": key_id}
        return ids | {"model_id": f"ft:{job_id}", "rollout_id": "step-000001.0"}


server = fixture_of(FullServer)


def with_known(case: Any, ids: dict[str, str]) -> Any:
    """The request with the ids of existing objects and a valid body."""
    case.path_parameters = {name: ids[name] for name in case.path_parameters or {}}
    if case.operation.label == "GET /v1/fine_tuning/comparison":
        case.query = {"side": [f"{ids['job_id']}:test-before", f"{ids['job_id']}:test-after"]}
    if case.operation.label in WITH_A_JOB:
        case.body, case.media_type = BODY | {"training_file": ids["file_id"]}, "application/json"
    if case.operation.label == "POST /v1/chat/completions":
        stream = isinstance(case.body, dict) and case.body.get("stream") is True
        case.body = {"model": "gpt-5", "messages": [{"role": "user", "content": "what was debt?"}], "stream": stream}
        case.media_type = "application/json"
    return case


def fuzz(server: FullServer, operation: Any, examples: int) -> bool:
    """Returns whether any of so many generated requests succeeded; validates each response against the document."""
    ids = server.ids("paused" if operation.label.endswith("/resume") else "running")
    statuses = set[int]()

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=ALL)
    @given(data=st.data())
    def requests(data: Any) -> None:
        mode = data.draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if data.draw(st.sampled_from([True, False])):  # the first example draws the first one
            case = with_known(case, ids)
        response = case.call(headers=AUTHORIZATION)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    requests()
    return 200 in statuses


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.nightly)])
def test_the_document_describes_each_response(server: FullServer, subtests: pytest.Subtests, examples: int) -> None:
    operations = [found.ok() for found in server.schema.get_all_operations()]
    succeeded = set()
    for operation in operations:
        with subtests.test(operation.label):
            if fuzz(server, operation, examples):
                succeeded.add(operation.label)
    assert {operation.label for operation in operations} - succeeded == UNREACHABLE


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "what was debt?"}]}),
        ("responses", {"input": "x"}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_the_document_describes_streamed_and_whole_responses(
    server: FullServer, path: str, fields: dict[str, Any], stream: bool
) -> None:
    body = {"model": "gpt-5", "stream": stream} | fields
    case = server.schema[f"/v1/{path}"]["POST"].Case(body=body, media_type="application/json")
    response = case.call(headers=AUTHORIZATION)
    assert response.status_code == 200
    case.validate_response(response, checks=CHECKS)
