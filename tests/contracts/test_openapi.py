"""The server matches its OpenAPI document.

Schemathesis generates valid and invalid requests from the document and checks that it describes each response. App and
stores are real, only the models are fakes.
"""

from __future__ import annotations

from collections.abc import Iterator
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

from cluster.jobs.service import JobService
from cluster.stores.blobs import FolderBlobs
from cluster.stores.database import Database
from cluster.stores.file_store import FileStore
from cluster.stores.job_states import JobStatus
from cluster.stores.job_store import JobStore
from cluster.stores.migrate import migrate
from cluster.stores.model_registry import ModelRegistry
from cluster.stores.secrets import SecretBox
from serve.http.app import create_app
from serve.http.trials import Trials
from serve.inference import chat, responses
from serve.routes import files, fine_tuning, graders, models
from tests.support.api import TOKEN, FakeKeys
from tests.support.fake_models import FakeModels, call, turn
from tests.support.jobs import BODY, NO_LOGS
from trainer.spec.operator import NOTHING_ALLOWED, ServerLimits

EXAMPLES = 12
"""Requests per operation, few enough that all operations take less than half a minute."""
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
ALL = list(HealthCheck)
UNREACHABLE = {"POST /v1/embeddings", "POST /v1/fine_tuning/alpha/tool/run"}
"""Operations that cannot succeed here: no embedding model exists, and no tool is reachable."""
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class FullServer:
    """A server with one object of each type that has an id."""

    def __init__(self, folder: Path) -> None:
        self.database = Database.of_folder(folder)
        migrate(self.database)
        self.store, self.models = JobStore(self.database), ModelRegistry(self.database, {"gpt-5": "base"})
        kept = FileStore(self.database, FolderBlobs(folder / "files"), folder, 10**6)
        box = SecretBox.of_folder(folder, {})
        fake = FakeModels(turn("I look.", call("call_a", "cat", "{}"), reasoning="hm"))
        routers = [
            files.make_router(kept),
            fine_tuning.make_router(JobService(self.store, self.models, kept, box, NOTHING_ALLOWED, NO_LOGS)),
            graders.make_router(Trials(NOTHING_ALLOWED)),
            models.make_router(self.models),
            chat.make_router(fake, Trials(NOTHING_ALLOWED)),
            responses.make_router(fake, Trials(NOTHING_ALLOWED), box),
        ]
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
        self.store.add_event(job_id, "info", "Step 1/9", type="metrics", data={"step": 1, "scores": {"a": None}})
        self.store.add_checkpoint(job_id, 1, f"ft:{job_id}:ckpt-step-1", {"step": 1.0})
        self.store.move(job_id, "queued")
        self.store.move(job_id, "running")
        if status != "running":
            self.store.move(job_id, status)
        self.models.add(f"ft:{job_id}", "folder", "gpt-5", job_id)
        return {"file_id": file_id, "job_id": job_id, "model_id": f"ft:{job_id}"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FullServer]:
    server = FullServer(tmp_path)
    yield server
    server.database.close()


def with_known(case: Any, ids: dict[str, str]) -> Any:
    """The request with the ids of existing objects and a valid body."""
    case.path_parameters = {name: ids[name] for name in case.path_parameters or {}}
    if case.operation.label == "POST /v1/fine_tuning/jobs":
        case.body, case.media_type = BODY | {"training_file": ids["file_id"]}, "application/json"
    if case.operation.label == "POST /v1/chat/completions":
        stream = isinstance(case.body, dict) and case.body.get("stream") is True
        case.body = {"model": "gpt-5", "messages": [{"role": "user", "content": "what was debt?"}], "stream": stream}
        case.media_type = "application/json"
    return case


def fuzz(server: FullServer, operation: Any) -> bool:
    """Returns whether any generated request succeeded; validates each response against the document."""
    ids = server.ids("paused" if operation.label.endswith("/resume") else "running")
    statuses = set[int]()

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=ALL)
    @given(data=st.data())
    def requests(data: Any) -> None:
        mode = data.draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if data.draw(st.booleans()):
            case = with_known(case, ids)
        response = case.call(headers=AUTHORIZATION)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    requests()
    return 200 in statuses


def test_the_document_describes_each_response(server: FullServer, subtests: pytest.Subtests) -> None:
    operations = [found.ok() for found in server.schema.get_all_operations()]
    succeeded = set()
    for operation in operations:
        with subtests.test(operation.label):
            if fuzz(server, operation):
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
