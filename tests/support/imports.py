"""Imports of a recorded job, and what an imported folder must pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_rft.cli.openai_import.import_folder import import_job
from agent_rft.cli.openai_import.openai_source import MAX_FILE_BYTES, ApiSource, make_openai_client
from agent_rft.cluster.checks.offline_checks import check_method
from agent_rft.cluster.checks.row_checks import list_rows, read_files
from agent_rft.spec.job import JobSpec
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_file import load_operator
from tests.support.openai_api import KEY, FakeOpenAI
from tests.support.openai_jobs import JOB_ID, record

NOTHING: Mapping[str, Path] = {}


def run(
    api: FakeOpenAI,
    folder: Path,
    given: Mapping[str, Path] = NOTHING,
    *,
    waits: list[float] | None = None,
    key: str = KEY,
    max_file_bytes: int = MAX_FILE_BYTES,
    told: list[str] | None = None,
    model: str | None = None,
) -> str:
    """Import the job into `folder`/moved.

    The waits before further attempts take no time and are put into `waits`, what is told about them into `told`.
    """
    client, key = make_openai_client(None, {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": api.url})
    with client:
        sleep, on_retry = ([] if waits is None else waits).append, ([] if told is None else told).append
        source = ApiSource(client, key, JOB_ID, sleep, max_file_bytes, on_retry)
        return import_job(source, folder / "moved", given, model)


def imported(api: FakeOpenAI, folder: Path, job: dict[str, Any], row: Any = None) -> str:
    """Record the job with files of this row, and import it."""
    record(api, job, row)
    return run(api, folder)


def environment_of(folder: Path) -> dict[str, str]:
    """A value for each variable that the README names."""
    names = [
        line.split("=")[0] for line in (folder / "README.md").read_text().splitlines() if line.startswith("export ")
    ]
    return {name.removeprefix("export "): "secret" for name in names} | {"DOLLAR": "$"}


def checked(folder: Path) -> JobSpec:
    """The job of a written folder, which the reader and the form checks accept."""
    environment = environment_of(folder)
    job = load_job(folder / "job.yaml", environment)
    operator = load_operator(folder / "agent-rft.yaml", environment=environment)
    files, problems = read_files(job)
    assert not problems and len(files["training_file"]) == 12
    if job.method.type == "reinforcement":
        assert check_method(job.reinforcement, list_rows(job, files), operator) == []
    return job
