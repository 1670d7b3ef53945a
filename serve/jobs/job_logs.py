"""Output of a job's processes: bounded files in the server's folder, shown only to admins and without secrets.

Each process writes its own file, so its last output survives if the process is killed or the cluster is lost.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from agent_rft.actors.endpoints.network.endpoint_url_checks import list_secrets, scrub
from agent_rft.cluster.records.redaction import to_plain_json

VALIDATION = 0
"""Attempt number of the process that checks a job; drivers are numbered from 1."""
SHOWN_BYTES = 64 << 10
"""Bytes shown from the end of each output."""
MAX_BYTES = 1 << 20
"""Size above which the output of a running process is truncated to its last SHOWN_BYTES."""
MAX_DRIVERS = 10
"""Maximum driver outputs per job; the oldest outputs are deleted. A job gets a new driver each time it is resumed."""
KEEP_S = 30 * 86_400.0
"""Seconds for which a job's outputs are stored after the last write."""
_NAME = re.compile(r"driver-(\d+)|validation")
_LIKELY_SECRET = re.compile(r"(?:(?<=Bearer )|\b(?:sk-|hf_|whsec_))[\w.~+/=-]{12,}", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE)
"""Names of environment variables whose values are secrets."""
_CONTROL = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """Last part of the output of a process. `written_at` is the time of the last write, in Unix seconds."""

    attempt: int
    written_at: float
    text: str

    @property
    def process(self) -> Literal["validation", "driver"]:
        return "validation" if self.attempt == VALIDATION else "driver"


class JobLogs:
    """Log files with the output of all jobs' processes, in the server's folder. `clock` returns Unix seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder / "logs" / "jobs"
        self._clock = clock

    def create_file(self, job_id: str, attempt: int) -> Path:
        """Create the output file of a process that is about to start, and delete expired outputs."""
        path = self.file_path(job_id, attempt)
        self._folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        for folder in self._folder.iterdir():
            if folder.stat().st_mtime < self._clock() - KEEP_S:
                shutil.rmtree(folder, ignore_errors=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        os.utime(path.parent)
        for _, old in [found for found in self._files(job_id) if found[0] != VALIDATION][:-MAX_DRIVERS]:
            old.unlink(missing_ok=True)
        return path

    def file_path(self, job_id: str, attempt: int) -> Path:
        return self._folder / job_id / ("validation" if attempt == VALIDATION else f"driver-{attempt}")

    def add(self, job_id: str, attempt: int, text: str) -> None:
        """Append a line, such as a message from the cluster, to the output of a job's process."""
        with self.create_file(job_id, attempt).open("a") as file:
            file.write(f"{text}\n")

    def truncate(self, job_id: str, attempt: int) -> None:
        """Truncate the output of a running process if it is too long.

        This also marks the job's outputs as recent, so that they do not expire while the process runs.
        """
        path = self.file_path(job_id, attempt)
        with suppress(OSError):
            os.utime(path.parent)
            if path.stat().st_size > MAX_BYTES:
                end = _read_end(path)
                with path.open("ab") as file:
                    file.truncate(0)
                    file.write(end)

    def read(self, job_id: str, secrets: tuple[str, ...]) -> list[ProcessOutput]:
        """Return the last part of each output of a job, oldest first. `secrets` and likely keys are redacted."""
        found = []
        for attempt, path in self._files(job_id):
            with suppress(FileNotFoundError):
                text = _CONTROL.sub("", _read_end(path).decode(errors="replace"))
                found.append(ProcessOutput(attempt, path.stat().st_mtime, redact_secrets(text, secrets)))
        return found

    def _files(self, job_id: str) -> list[tuple[int, Path]]:
        with suppress(FileNotFoundError):
            names = [found for name in os.listdir(self._folder / job_id) if (found := _NAME.fullmatch(name))]
            return sorted((int(name[1] or VALIDATION), self._folder / job_id / name[0]) for name in names)
        return []


def _read_end(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - SHOWN_BYTES))
        text = file.read()
    # The first line is dropped, because it may begin in the middle of a secret.
    return text if size <= SHOWN_BYTES else text.partition(b"\n")[2] or b"(one long line)\n"


# -- secrets -----------------------------------------------------------------------------------------------------------


def redact_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """Return `text` without `secrets`, credentials in URLs and strings that look like keys."""
    return _LIKELY_SECRET.sub("[redacted]", scrub(str(to_plain_json(text)), secrets))


def collect_secrets(*settings: BaseModel, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the secrets in `settings` (a job or the operator's configuration) and in `environment`, longest first."""
    values = [value for name, value in environment.items() if _SECRET_VARIABLE.fullmatch(name)]
    for part in settings:
        values += _iter_secrets(part)
    return tuple(list_secrets("", values))


def _iter_secrets(value: Any) -> Iterator[str]:
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case BaseModel():
            for name in type(value).model_fields:
                yield from _iter_secrets(getattr(value, name))
            for extra in (value.model_extra or {}).values():  # a tool's extra fields, which may hold secrets
                yield str(extra)
        case Mapping():
            for part in value.values():
                yield from _iter_secrets(part)
        case list() | tuple():
            for part in value:
                yield from _iter_secrets(part)
