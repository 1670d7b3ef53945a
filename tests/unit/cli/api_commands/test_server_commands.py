"""The command line as a client of an app in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from agent_rft.cli.api_commands.api_client import ServerUnavailable, make_server_client, raise_for_status, send_request
from agent_rft.cli.main import app as cli
from agent_rft.cluster.records.blobs import FolderBlobs
from agent_rft.errors import RftError, UserError
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.routes import file_routes, job_routes
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobError
from tests.support.api import sync_client_of
from tests.support.jobs import database_with_tables, job_service

JOB = """\
model: gpt-5
training_file: {file}
method:
  type: reinforcement
  reinforcement:
    grader: {{type: string_check, input: "{{{{sample.output_text}}}}", reference: "{{{{item.a}}}}", operation: eq}}
"""
Run = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(database_with_tables(tmp_path / "state"))


@pytest.fixture
def run(tmp_path: Path, store: JobStore) -> Iterator[Run]:
    """Returns a function that runs `agent-rft` with a client of an app in this process."""
    database = store._database
    kept = FileStore(database, FolderBlobs(tmp_path / "files"), tmp_path, 10**6)
    service = job_service(store, logs=JobLogs(tmp_path))
    with sync_client_of([file_routes.make_router(kept), job_routes.make_router(service)]) as client:
        yield lambda *arguments: CliRunner().invoke(cli, [str(a) for a in arguments], obj=lambda: client)
    database.close()


@pytest.mark.parametrize(("status", "raised"), [(404, UserError), (502, ServerUnavailable)])
def test_a_server_that_is_another_one_is_named_instead_of_shown(status: int, raised: type[RftError]) -> None:
    request = httpx.Request("POST", "http://other.example.com/files?after=x")
    with pytest.raises(raised, match=f"HTTP {status}: .*http://other.example.com/files is not.*base URL") as error:
        raise_for_status(httpx.Response(status, html="<!DOCTYPE html>\n<p>an error page</p>", request=request))

    assert "<" not in error.value.message


def test_a_file_is_uploaded_listed_downloaded_and_deleted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    file_id = run("files", "upload", tmp_path / "rows.jsonl").output.strip()
    assert file_id.startswith("file-")
    (listed,) = run("files", "list", "--json").output.splitlines()
    assert json.loads(listed)["filename"] == "rows.jsonl"
    assert file_id in run("files", "list").output
    assert run("files", "download", file_id, tmp_path / "back.jsonl").exit_code == 0
    assert (tmp_path / "back.jsonl").read_text() == '{"a": 1}\n'
    assert run("files", "delete", file_id).output.strip() == file_id
    assert run("files", "list", "--json").output == ""


def test_the_log_of_a_job_is_printed_by_process(run: Run, tmp_path: Path, store: JobStore) -> None:
    (tmp_path / "job.yaml").write_text(JOB.format(file="file-1"))
    job_id = run("jobs", "create", tmp_path / "job.yaml").output.strip()
    assert "no output is stored" in run("jobs", "log", job_id).output
    store.move(job_id, "failed", error=JobError("driver_lost", "lost", log="the end"))
    logs = JobLogs(tmp_path)
    logs.add(job_id, 0, "all is well")
    logs.add(job_id, 1, "Traceback: [bold]")
    printed = run("jobs", "log", job_id).output.splitlines()
    assert [line.split(",")[0] for line in printed] == [
        "error: the end", "== the validation", "all is well", "== driver 1", "Traceback: [bold]",
    ]  # fmt: skip
    assert "all is well" not in run("jobs", "log", job_id, "--attempt", 1).output
    assert json.loads(run("jobs", "log", job_id, "--json").output)["error"] == "the end"


def test_a_job_is_created_shown_and_cancelled(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.format(file="file-1"))
    made = run("jobs", "create", tmp_path / "job.yaml")
    job_id = made.output.strip()
    assert job_id.startswith("ftjob-"), made.output
    assert json.loads(run("jobs", "get", job_id, "--json").output)["status"] == "validating_files"
    assert "validating_files" in run("jobs", "get", job_id).output
    assert job_id in run("jobs", "list").output
    assert run("jobs", "cancel", job_id).output.strip() == "cancelled"
    events = [json.loads(line) for line in run("events", "list", job_id, "--json").output.splitlines()]
    assert events[-1]["message"].startswith("Created fine-tuning job")


def test_the_template_of_a_request_is_read_from_its_path(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    request = tmp_path / "job.yaml"
    request.write_text(JOB.format(file="file-1") + "model_options: {chat_template: own.jinja}\n")
    made = json.loads(run("jobs", "create", request, "--json").output)
    assert made["model_options"] == {"chat_template": "{{ messages }}"}
    request.write_text(JOB.format(file="file-1") + "model_options: {chat_template: '{{ messages }}'}\n")
    assert json.loads(run("jobs", "create", request, "--json").output)["model_options"] == made["model_options"]
    request.write_text(JOB.format(file="file-1") + "model_options: {chat_template: other.jinja}\n")
    refused = run("jobs", "create", request)
    assert isinstance(refused.exception, UserError)
    assert "model_options.chat_template: " in str(refused.exception)
    assert "other.jinja cannot be read: No such file" in str(refused.exception)


def test_checkpoints_and_events_of_a_job_are_listed(run: Run, store: JobStore, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.format(file="file-1"))
    job_id = run("jobs", "create", tmp_path / "job.yaml").output.strip()
    for step in range(1, 131):
        store.add_checkpoint(job_id, step, f"ft:a:ckpt-step-{step}", {"step": float(step)})
    assert "ft:a:ckpt-step-130" in run("checkpoints", "list", job_id).output
    listed = run("checkpoints", "list", job_id, "--limit", "120", "--json").output.splitlines()
    assert [json.loads(line)["step_number"] for line in listed] == list(range(130, 10, -1))
    assert "Created fine-tuning job" in run("events", "list", job_id).output


def test_a_refused_request_is_reported_with_its_field(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.format(file="file-1").replace("gpt-5", "unknown-model"))
    refused = run("jobs", "create", tmp_path / "job.yaml")
    assert isinstance(refused.exception, UserError)
    assert "HTTP 400: model: " in str(refused.exception)
    missing = run("jobs", "get", "ftjob-none")
    assert "HTTP 404" in str(missing.exception)


def test_an_unset_variable_of_a_request_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.format(file="file-1").replace("gpt-5", "${NOT_SET_HERE}"))
    refused = run("jobs", "create", tmp_path / "job.yaml")
    assert "${NOT_SET_HERE} is not set" in str(refused.exception)


@pytest.mark.parametrize("source", ["--api-key", "AGENT_RFT_API_KEY", "OPENAI_API_KEY", "api_key of the profile"])
def test_a_key_is_used_without_white_space_and_refused_without_being_shown(source: str, tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.yaml"
    base = "OPENAI_BASE_URL" if source.startswith("OPENAI") else "AGENT_RFT_BASE_URL"

    def found(key: str) -> str:
        profiles.write_text(json.dumps({"default": {"api_key": key}} if "profile" in source else {}))
        option = key if source == "--api-key" else None
        environment = {base: "http://host/v1\n", source: key}
        with make_server_client(None, option, "default", environment, profiles) as client:
            assert str(client.base_url) == "http://host/v1/"
            return client.headers["Authorization"]

    assert found("sk-secret\n") == "Bearer sk-secret"
    for wrong in ("“sk-secret”", "sk-\nsecret", '"sk-secret"'):
        with pytest.raises(UserError, match=f"^{source}.*: copy the key again") as error:
            found(wrong)
        assert "secret" not in str(error.value)


def test_an_answer_that_is_not_json_names_the_base_url() -> None:
    page = httpx.MockTransport(lambda request: httpx.Response(200, html="<p>hello"))
    said = "the response from http://host/models is not in the format of this API; check the base URL"
    with httpx.Client(base_url="http://host", transport=page) as client, pytest.raises(UserError, match=said):
        send_request(client, "GET", "/models")


def test_an_id_with_characters_that_cannot_be_sent_is_refused() -> None:
    with (
        httpx.Client(base_url="http://host") as client,
        pytest.raises(UserError, match="characters that are invalid in a URL"),
    ):
        send_request(client, "GET", "/fine_tuning/jobs/ftjob\n1")


def test_the_server_is_found_by_options_then_environment_then_profile(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("default: {base_url: http://profile/v1, api_key: k3}\nother: {base_url: http://other/v1}\n")
    environment = {
        "AGENT_RFT_BASE_URL": "http://ours/v1",
        "OPENAI_BASE_URL": "http://theirs/v1",
        "OPENAI_API_KEY": "k2",
    }

    def found(url: str | None, key: str | None, profile: str, environment: dict[str, str]) -> tuple[str, Any]:
        client = make_server_client(url, key, profile, environment, profiles)
        return str(client.base_url), client.headers["Authorization"]

    assert found("http://given/v1", "k1", "default", environment) == ("http://given/v1/", "Bearer k1")
    assert found(None, None, "default", environment) == ("http://ours/v1/", "Bearer k3")
    ours = environment | {"AGENT_RFT_API_KEY": "k4"}
    assert found(None, None, "default", ours) == ("http://ours/v1/", "Bearer k4")
    del ours["AGENT_RFT_BASE_URL"]
    assert found(None, None, "default", ours) == ("http://theirs/v1/", "Bearer k2")
    del ours["OPENAI_API_KEY"]
    with pytest.raises(UserError, match="OPENAI_API_KEY"):  # no other key goes there
        found(None, None, "default", ours)
    assert found(None, None, "default", {}) == ("http://profile/v1/", "Bearer k3")
    with pytest.raises(UserError, match="set --api-key, AGENT_RFT_API_KEY"):
        found(None, None, "other", {})
    with pytest.raises(UserError, match="has no profile 'none'"):
        found(None, None, "none", {})
    profiles.write_text("default: http://server/v1\n")
    with pytest.raises(UserError, match="not a valid profiles file"):
        found(None, None, "default", {})
