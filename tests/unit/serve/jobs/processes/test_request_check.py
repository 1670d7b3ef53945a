"""A request for a job is checked before it is created: its files, model, tools and graders, as clients see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_rft.errors import Problem
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings, ServerAccess
from agent_rft.serve.jobs.processes.request_check import CheckRequest, check
from agent_rft.serve.jobs.ray_launcher import RayLauncher
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.builders import raw_job

MODEL = str(Path("examples/ledger/base").resolve())
ROW = json.dumps({"messages": [{"role": "user", "content": "What is the debt?"}], "reference_answer": "7"})


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ServerState]:
    state = ServerState(StateLocations(tmp_path), OperatorConfig())
    yield state
    state.close()


def draft(state: ServerState, rows: list[str], **changes: Any) -> tuple[CheckRequest, str]:
    """A draft with a training file of these rows, and the file's id."""
    settings = DriverSettings(str(state.folder), state.database.url)
    server = ServerAccess(settings)
    file_id = server.store_result("train.jsonl", "\n".join(rows).encode(), "key-1")
    server.close()
    raw = raw_job() | {"model": MODEL, "training_file": file_id, "seed": 1} | changes
    return CheckRequest(json.dumps(raw), "gpt-5"), file_id


def test_a_look_with_more_rollouts_than_allowed_is_found_before_it_is_created(
    state: ServerState, tmp_path: Path
) -> None:
    config = tmp_path / "agent-rft.yaml"
    config.write_text("jobs: {max_readiness_rollouts: 95}")
    training, _ = draft(state, [ROW] * 12)
    launcher = RayLauncher(DriverSettings(str(state.folder), state.database.url, config=str(config)), "")

    def check_draws(samples: int | None) -> list[Problem]:
        return asyncio.run(launcher.check_request(replace(training, samples=samples)))

    [problem] = check_draws(8)
    assert (problem.code, problem.field) == ("over_limit", "samples") and "96 rollouts" in problem.message
    assert check_draws(7) == check_draws(None) == []


def found(state: ServerState, made: CheckRequest) -> list[Problem]:
    server = ServerAccess(DriverSettings(str(state.folder), state.database.url))
    try:
        return check(server, made)
    finally:
        server.close()


def test_a_right_request_has_no_problems(state: ServerState) -> None:
    assert found(state, draft(state, [ROW] * 12)[0]) == []


def test_wrong_rows_are_named_by_the_files_id_and_their_lines(state: ServerState) -> None:
    made, _ = draft(state, [*[ROW] * 10, "{", ROW])
    [problem] = found(state, made)
    assert (problem.code, problem.field, problem.line, problem.file) == ("broken_json", "training_file", 11, None)
    assert str(state.folder) not in problem.message + problem.fix
    assert "create the job again" in problem.fix
    few, _ = draft(state, [ROW])
    assert [problem.code for problem in found(state, few)] == ["invalid_n_examples"]


def test_a_missing_model_folder_is_named_by_the_models_id(state: ServerState) -> None:
    made, _ = draft(state, [ROW] * 12, model=str(state.folder / "gone"))
    [problem] = found(state, made)
    assert problem.field == "model" and str(state.folder) not in problem.message


def test_the_launcher_checks_a_draft_in_a_process_of_its_own(state: ServerState) -> None:
    launcher = RayLauncher(DriverSettings(str(state.folder), state.database.url), "")
    [problem] = asyncio.run(launcher.check_request(draft(state, [*[ROW] * 10, "{"])[0]))
    assert (problem.code, problem.line) == ("broken_json", 11)
