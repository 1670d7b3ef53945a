"""The outcomes that a driver stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings, ServerAccess
from agent_rft.serve.jobs.processes.job_driver import _store_findings
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.jobs import NEW_JOB


def test_files_of_a_readiness_check_belong_to_its_owner_only(tmp_path: Path) -> None:
    state = ServerState(StateLocations(tmp_path), OperatorConfig())
    server = ServerAccess(DriverSettings(str(state.folder), state.database.url))
    record = server.store.create(replace(NEW_JOB, owner="key-1", readiness={"samples": 2, "target_s": None}))[0]
    for status in ("queued", "running"):
        server.store.move(record.id, status)
    for name in ("readiness.json", "readiness.html"):
        (tmp_path / name).write_text("rows")
    found: Any = SimpleNamespace(as_json=lambda with_rows: {"verdict": "train"})
    _store_findings(server, record, record.attempt, tmp_path, found)
    results = server.store.get(record.id).result_files
    files = [server.files.get(id) for id in results]
    assert [(file.filename, file.owner, file.owner_only) for file in files] == [
        ("readiness.json", "key-1", True),
        ("readiness.html", "key-1", True),
    ]
    server.close()
    state.close()
