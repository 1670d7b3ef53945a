"""Migrations: the revisions end with the present table classes, and data is preserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, text

from agent_rft.chat.dialect import Dialect
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.cluster.records.blobs import FolderBlobs
from agent_rft.errors import OutdatedFormat
from agent_rft.serve.stores.audit_log import AuditEntry, AuditLog
from agent_rft.serve.stores.database import Base, Database
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import NewJob
from agent_rft.serve.stores.key_store import KeyStore
from agent_rft.serve.stores.migration import NewerDatabase, migrate, revisions
from agent_rft.serve.stores.model_registry import ModelRegistry

JOB, FILE, MODEL = "ftjob-1", "file-1", "ft:gpt-5:org::1"
SAVED: dict[str, dict[str, Any]] = {
    "api_keys": {
        "id": "00112233445566aa",
        "name": "admin",
        "scopes": "read,admin",
        "hash": "0" * 64,
        "created_at": 1,
        "requests_per_minute": 5,
        "expires_at": 2**34,
    },
    "audit": {
        "at": 1.5,
        "actor": "00112233445566aa",
        "action": "file.create",
        "object": FILE,
        "request_id": "req_1",
        "outcome": "failed",
        "status": 507,
        "client_request_id": "mine-1",
        "num_requests": 3,
    },
    "console_sessions": {"hash": "0" * 64, "key_id": "00112233445566aa", "expires_at": 2**34},
    "files": {
        "id": FILE,
        "filename": "train.jsonl",
        "purpose": "fine-tune",
        "num_bytes": 3 * 2**31,
        "created_at": 2,
        "expires_at": 2**33,
        "owner": "00112233445566aa",
        "owner_only": True,
    },
    "models": {
        "id": MODEL,
        "folder": "/runs/1/checkpoints/step-000002",
        "base": "gpt-5",
        "job_id": JOB,
        "created_at": 3,
        "settings": {
            "dialect": {"family": "qwen3", "tool_parser": "hermes", "template_arguments": {"a": [1]}},
            "max_completion_tokens": 24,
        },
        "owner": "00112233445566aa",
    },
    "jobs": {
        "id": JOB,
        "owner": "00112233445566aa",
        "status": "running",
        "created_at": 4.5,
        "status_changed_at": 5.5,
        "model": "gpt-5",
        "base": "gpt-5",
        "training_file": FILE,
        "method": {"type": "supervised"},
        "model_options": {"tool_parser": "hermes"},
        "seed": 2**31 - 1,
        "labels": {"team": "a"},
        "readiness": {"samples": 8},
        "integrations": [{"type": "tensorboard"}],
        "sealed_spec": "sealed",
        "digest": "digest",
        "error": None,
        "result_files": [FILE],
        "findings": {"verdict": "train"},
        "trained_tokens": 2**40,
        "attempt": 2,
        "failures": 1,
        "handle": f"{JOB}-2",
    },
    "job_events": {
        "id": "ftevent-1",
        "job_id": JOB,
        "created_at": 6.5,
        "level": "warn",
        "type": "metrics",
        "message": "ü",
        "data": {"step": 1},
    },
    "job_checkpoints": {
        "id": "ftckpt-1",
        "job_id": JOB,
        "created_at": 7.5,
        "step": 2,
        "model": MODEL,
        "metrics": {"reward": 0.5},
    },
}
"""A row of each table. Revisions that do not have one of the columns yet do without it."""


def test_all_revisions_together_match_the_table_classes(empty_database: Database) -> None:
    migrate(empty_database)
    with empty_database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, Base.metadata)
    assert differences == [], 'write the next revision: python -m agent_rft.serve.stores.migration "what has changed"'


def test_a_restarted_server_finds_its_data(empty_database: Database) -> None:
    migrate(empty_database)
    new = NewJob(
        "k", "gpt-5", "gpt-5", "file-1", None, None, {"type": "supervised"}, None, 1, None, None, "sealed", "d"
    )
    job, _ = JobStore(empty_database).create(new)
    migrate(empty_database)
    assert JobStore(empty_database).get(job.id) == job


# -- from each revision on ---------------------------------------------------------------------------------------------


def save_rows(database: Database) -> None:
    """Insert SAVED, as far as the tables of the database's revision have its columns."""
    tables = MetaData()
    tables.reflect(database.engine)
    with database.engine.begin() as connection:
        for table in tables.sorted_tables:
            if table.name in SAVED:
                row = {name: value for name, value in SAVED[table.name].items() if name in table.columns}
                connection.execute(table.insert().values(row))


def test_every_table_has_a_row_to_save() -> None:
    assert SAVED.keys() == Base.metadata.tables.keys(), "give the new table a row"


@pytest.mark.parametrize("revision", revisions())
def test_data_of_each_revision_is_read_by_todays_stores(
    empty_database: Database, revision: str, tmp_path: Path
) -> None:
    migrate(empty_database, revision)
    save_rows(empty_database)
    migrate(empty_database)
    key, file, model, saved = SAVED["api_keys"], SAVED["files"], SAVED["models"], SAVED["jobs"]
    (found,) = KeyStore(empty_database).list()
    assert (found.id, found.scopes, found.requests_per_minute) == (key["id"], ("read", "admin"), 5)
    record = FileStore(empty_database, FolderBlobs(tmp_path / "files"), tmp_path).get(FILE)
    assert (record.num_bytes, record.filename, record.expires_at) == (3 * 2**31, file["filename"], 2**33)
    tuned = ModelRegistry(empty_database, {}).resolve(MODEL)
    assert tuned.settings == ServeSettings(
        Dialect("qwen3", "hermes", template_arguments={"a": [1]}), max_completion_tokens=24
    )
    assert (record.owner, tuned.owner) == (file["owner"], model["owner"])
    assert record.owner_only, "the result of a readiness check belongs to its owner from the first revision on"
    assert found.expires_at == key["expires_at"]
    later = {} if revision != "v0001" else {"client_request_id": None, "num_requests": 1}
    assert AuditLog(empty_database).list(10) == [AuditEntry(**SAVED["audit"] | later)]
    store = JobStore(empty_database)
    job = store.get(JOB)
    columns = set(saved) - {"result_files"}
    assert {name: getattr(job, name) for name in columns} == {name: saved[name] for name in columns}
    ((event,), _), ((checkpoint,), _) = store.events(JOB), store.checkpoints(JOB)
    assert (event.message, event.level, event.data) == ("ü", "warn", {"step": 1})
    assert (checkpoint.step, checkpoint.model, checkpoint.metrics) == (2, MODEL, {"reward": 0.5})


@pytest.mark.parametrize("revision", revisions())
def test_new_rows_follow_those_of_an_earlier_revision(empty_database: Database, revision: str) -> None:
    migrate(empty_database, revision)
    save_rows(empty_database)
    migrate(empty_database)
    store = JobStore(empty_database)
    added = store.add_event(JOB, "info", "new")
    assert [event.id for event in store.events(JOB)[0]] == [added.id, "ftevent-1"]


@pytest.mark.parametrize("revision", ["0001", "0007", "r0001"])
def test_a_database_from_before_the_first_version_is_refused_and_left_as_it_is(
    empty_database: Database, revision: str
) -> None:
    migrate(empty_database)
    with empty_database.engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    with pytest.raises(
        OutdatedFormat, match=r"^the database .* was created by a version before 0\.2\.0; finish or export it with"
    ):
        migrate(empty_database)
    with empty_database.engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == revision


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(empty_database: Database) -> None:
    migrate(empty_database)
    with empty_database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9001'"))
    with pytest.raises(NewerDatabase, match=r"revision 9001\)\. Use the newer version, or restore the backup"):
        migrate(empty_database)
    with empty_database.engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9001"
