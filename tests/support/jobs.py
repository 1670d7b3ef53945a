"""Shared by tests of jobs: a job store with a manual clock, and fakes of a job service's models, files and sealer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Literal, Protocol

import pytest

from agent_rft.errors import UserError
from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.jobs.job_service import JobService
from agent_rft.serve.stores.database import Base, Database
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRecord, NewJob
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig
from tests.support.bad_requests import SECRET
from tests.support.builders import raw_job

NEW_JOB = NewJob(
    owner="key-1",
    model="gpt-5",
    base="gpt-5",
    training_file="file-1",
    validation_file=None,
    test_file=None,
    method={"type": "reinforcement", "reinforcement": {"hyperparameters": {}}},
    model_options=None,
    seed=1,
    suffix=None,
    labels={"team": "a"},
    sealed_spec="sealed",
    digest="digest-1",
)
TOOL = {
    "name": "search",
    "server_url": "https://tools.example/search",
    "headers": {"Authorization": f"Bearer {SECRET}"},
}
BODY = raw_job(tools=[TOOL]) | {"model": "gpt-5", "training_file": "file-1"}
"""A request for a job of a known model and file."""


MODELS = {
    "gpt-5": SimpleNamespace(folder="/models/base", base="gpt-5"),
    "ft:gpt-5:org:x:abc:ckpt-step-5": SimpleNamespace(folder="/runs/abc/step-5", base="gpt-5"),
}
PURPOSES = {"file-1": "fine-tune", "file-2": "fine-tune", "file-3": "vision"}


NO_LOGS = JobLogs(Path("/nowhere"))


class KnownModels:
    """A model registry with MODELS."""

    def resolve(self, model_id: str) -> SimpleNamespace:
        if model_id not in MODELS:
            problem, fix = f"The model '{model_id}' does not exist", "use another one"
            raise UserError(f"{problem}: {fix}.", problem=problem, fix=fix)
        return MODELS[model_id]


class KnownFiles:
    """A file store with PURPOSES."""

    def get(self, file_id: str) -> SimpleNamespace:
        if file_id not in PURPOSES:
            raise UserError("no such file")
        return SimpleNamespace(purpose=PURPOSES[file_id])


class ReversingBox:
    """A box whose output tests can predict."""

    def sealer(self, purpose: str, context: str) -> ReversingBox:
        return self

    def seal(self, text: str) -> str:
        return text[::-1]

    def open(self, sealed: str) -> str:
        return sealed[::-1]


def job_service(
    store: JobStore,
    operator: OperatorConfig = DEFAULT_CONFIG,
    wake: Callable[[], None] = lambda: None,
    logs: JobLogs = NO_LOGS,
) -> JobService:
    return JobService(store, KnownModels(), KnownFiles(), ReversingBox(), operator, logs, wake)


def database_with_tables(folder: Path) -> Database:
    """The SQLite database in `folder`; a new one has the tables of all modules that are imported by now."""
    if not (folder / "state.db").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.db").write_bytes(_file_with(frozenset(Base.metadata.tables)))
    return Database.from_folder(folder)


@cache
def _file_with(tables: frozenset[str]) -> bytes:
    """A database file with these empty tables; to create them takes 40 ms of CPU time."""
    with TemporaryDirectory() as folder:
        database = Database.from_folder(Path(folder))
        Base.metadata.create_all(database.engine, [Base.metadata.tables[name] for name in sorted(tables)])
        database.close()
        return (Path(folder) / "state.db").read_bytes()


class StoredJobs:
    """A job store; `now` is its clock."""

    def __init__(self, database: Database) -> None:
        self.now = 1_000.0
        self.database = database
        self.store = JobStore(database, lambda: self.now)

    def new(self, **changes: Any) -> JobRecord:
        """A new job, with these values instead of NEW_JOB's."""
        return self.store.create(replace(NEW_JOB, **changes))[0]


class FolderJobs(StoredJobs):
    """Jobs whose database is in `folder`, and their run folders in `runs`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(database_with_tables(folder))
        self.folder, self.runs = folder, folder / "runs"


class HasDatabase(Protocol):
    @property
    def database(self) -> Database: ...


def fixture_of(make: Callable[[Path], HasDatabase], scope: Literal["function", "module"] = "function") -> Any:
    """A fixture: what `make` builds in a new folder; its database is closed at the end."""

    @pytest.fixture(scope=scope)
    def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HasDatabase]:
        found = make(tmp_path_factory.mktemp("server"))
        yield found
        found.database.close()

    return made
