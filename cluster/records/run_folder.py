"""The folder of one run: everything that a job leaves behind, readable while it runs and after it was killed.

    job.resolved.json      job and plan, without secrets
    events.jsonl           {time, level, message, data}
    metrics.jsonl          one flat object a step, names of `trainer.metrics`
    evaluations.jsonl      {name, time, fields of Evaluation}
    rollouts/<name>.jsonl.zst   step-000001, validation-000000, test-before, ...
    checkpoints/           see `trainer.loop.checkpoint`
    report.html

Lines are appended whole; rollout files are written beside and renamed. A resumed run repeats steps: the last line of a
step counts, and its rollouts replace the earlier file. All writing happens in order on one thread, so that no caller
waits for a disk, and a write that fails is counted in `problems`, never raised.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import zstandard

from trainer.data.rollout_json import outcome_as_json, outcome_from_json, task_from_json
from trainer.loop.evaluate import Evaluation
from trainer.protocols import Level
from trainer.spec.job import JobSpec, Plan
from trainer.types import Discarded, Group, GroupRequest, Rollout

ROLLOUTS_SUFFIX = ".jsonl.zst"
REDACTED = "**********"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of events.jsonl; `time` is ISO 8601, UTC."""

    time: str
    level: Level
    message: str
    data: dict[str, Any]


def new_run_folder(root: Path, suffix: str | None) -> Path:
    """Create `root/<UTC time>[-suffix]`; names sort by age. To the millisecond, for jobs that are begun together in
    several places go by these names in metrics too.
    """
    slug = re.sub(r"[^\w.-]+", "-", suffix or "").strip("-.")
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"[:-3] + (f"-{slug}" if slug else "")
    for number in count(1):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("unreachable")


class RunFolder:
    """Writes (an EventSink of the loop) and reads one run's folder. Writers call `close` at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="run-folder")
        self._failures: dict[str, list[str]] = {}

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def problems(self) -> list[str]:
        """What could not be written, one text a file. Complete after `close`."""
        return [f"{name}: {len(errors)} write(s) failed, first: {errors[0]}" for name, errors in self._failures.items()]

    # -- writing -------------------------------------------------------------------------------------------------------

    def event(self, level: Level, message: str, **data: Any) -> None:
        self._append("events.jsonl", {"time": _now(), "level": level, "message": message, "data": data})

    def step(self, metrics: Mapping[str, float]) -> None:
        self._append("metrics.jsonl", {name: float(value) for name, value in metrics.items()})

    def groups(self, name: str, groups: Sequence[Group]) -> None:
        path = self._rollouts(name)
        self._later(f"rollouts/{path.name}", lambda: write_groups(path, groups))

    def write_evaluation(self, name: str, evaluation: Evaluation, groups: Sequence[Group]) -> None:
        """Keep the numbers and the rollouts of one evaluated file (`test-before`, `test-after`)."""
        self.groups(name, groups)
        self._append("evaluations.jsonl", {"name": name, "time": _now()} | evaluation.as_dict())

    def write_job(self, job: JobSpec, plan: Plan, extra: Mapping[str, Any] | None = None) -> None:
        """Keep what the job came to, at once and without secrets. `extra`: versions, placement and the like.

        Raises:
            OSError: the folder cannot be written; better known before anything starts.
        """
        resolved = {"job": public_job(job), "plan": plan.model_dump(mode="json"), **(extra or {})}
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "job.resolved.json").write_text(json.dumps(plain(resolved), indent=2) + "\n")

    def close(self) -> None:
        """Return when all that was handed in is written. What comes later is not written and counts as a problem."""
        self._writer.shutdown(wait=True)

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        line = json.dumps(plain(value)).encode() + b"\n"
        self._later(name, lambda: _append_line(self.path / name, line))

    def _later(self, name: str, write: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                write()
            except (OSError, TypeError, ValueError) as error:
                self._failed(name, str(error))

        try:
            self._writer.submit(guarded)
        except RuntimeError:
            self._failed(name, "the run folder is closed")

    def _failed(self, name: str, error: str) -> None:
        if not self._failures:
            print(f"warning: {self.path / name} is not written: {error}; the run goes on", file=sys.stderr)
        self._failures.setdefault(name, []).append(error)

    def _rollouts(self, name: str) -> Path:
        return self.path / "rollouts" / (name + ROLLOUTS_SUFFIX)

    # -- reading -------------------------------------------------------------------------------------------------------

    def job(self) -> dict[str, Any]:
        """{job, plan, ...} as written, or nothing where the run did not come that far."""
        try:
            resolved: dict[str, Any] = json.loads((self.path / "job.resolved.json").read_text())
        except FileNotFoundError:
            return {}
        return resolved

    def events(self) -> list[Event]:
        return [Event(**line) for line in _read_lines(self.path / "events.jsonl")]

    def metrics(self) -> list[dict[str, float]]:
        """One dict a step, by step; numbers that were not finite are left out."""
        steps = {line["step"]: line for line in _read_lines(self.path / "metrics.jsonl")}
        return [{k: v for k, v in steps[step].items() if v is not None} for step in sorted(steps)]

    def lacks(self, metrics: Mapping[str, float]) -> bool:
        """Whether these are of a step that was never told: the run was killed once its checkpoint was whole."""
        return bool(metrics) and all(told["step"] != metrics["step"] for told in self.metrics())

    def evaluations(self) -> dict[str, Evaluation]:
        found = {line["name"]: evaluation_of(line) for line in _read_lines(self.path / "evaluations.jsonl")}
        return {name: evaluation for name, evaluation in found.items() if evaluation is not None}

    def validations(self) -> list[tuple[int, Evaluation]]:
        """(step, what the validation file came to), by step; the baseline is step 0."""
        found = {e.data["step"]: evaluation_of(e.data) for e in self.events() if "step" in e.data}
        return [(int(step), v) for step, v in sorted(found.items()) if v is not None]

    def rollout_names(self) -> list[str]:
        """Names for `read_groups`, oldest file first."""
        found = (self.path / "rollouts").glob("*" + ROLLOUTS_SUFFIX)
        by_age = sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [path.name.removesuffix(ROLLOUTS_SUFFIX) for path in by_age]

    def read_groups(self, name: str) -> list[Group]:
        """Groups as they were handed in, bit by bit.

        Raises:
            FileNotFoundError: no rollouts of that name were written.
        """
        return read_groups(self._rollouts(name))


def evaluation_of(data: Mapping[str, Any]) -> Evaluation | None:
    """The evaluation in an event's data or a line of evaluations.jsonl, or None where there is none."""
    names = [field.name for field in fields(Evaluation)]
    if not all(name in data for name in names):
        return None
    values: dict[str, Any] = {name: math.nan if data[name] is None else data[name] for name in names}
    return Evaluation(**values)


# -- rollouts as lines -------------------------------------------------------------------------------------------------


def write_groups(path: Path, groups: Sequence[Group]) -> None:
    """A line for each group's request, followed by one for each of its rollouts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with zstandard.ZstdCompressor().stream_writer(temporary.open("wb")) as file:
        for group in groups:
            for line in group_lines(group):
                file.write(json.dumps(line, default=str).encode() + b"\n")
    temporary.rename(path)


def read_groups(path: Path) -> list[Group]:
    """What `write_groups` wrote, bit by bit."""
    found: list[tuple[GroupRequest, list[Rollout], list[Discarded]]] = []
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        for text in io.TextIOWrapper(stream, encoding="utf-8"):
            line = json.loads(text)
            if line["kind"] == "group":
                del line["kind"]
                found.append((GroupRequest(**line | {"task": task_from_json(line["task"])}), [], []))
            elif isinstance(outcome := outcome_from_json(line), Rollout):
                found[-1][1].append(outcome)
            else:
                found[-1][2].append(outcome)
    return [Group(request, tuple(rollouts), tuple(discarded)) for request, rollouts, discarded in found]


def group_lines(group: Group) -> Iterator[dict[str, Any]]:
    """Kind `group` (the request with its whole row), then those of `trainer.data.rollout_json`."""
    yield {"kind": "group"} | asdict(group.request)
    yield from map(outcome_as_json, group.rollouts)
    yield from map(outcome_as_json, group.discarded)


# -- plain values ------------------------------------------------------------------------------------------------------


def public_job(job: JobSpec, *, exclude_unset: bool = False) -> dict[str, Any]:
    """The job without secrets. Keys of a tool that are unknown to us may hold any: their values are hidden too."""
    public = job.model_dump(mode="json", exclude_unset=exclude_unset)
    if job.method.reinforcement is not None:
        tools = public["method"]["reinforcement"].get("tools", [])
        for tool, shown in zip(job.reinforcement.tools, tools, strict=True):
            shown |= dict.fromkeys(tool.model_extra or {}, REDACTED)
    return public


def plain(value: Any) -> Any:
    """JSON values only: what is not finite becomes null, and a URL loses its credentials and its query."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return _URL.sub(_without_credentials, str(value))


_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)


def _without_credentials(url: re.Match[str]) -> str:
    try:
        parts = urlsplit(url.group())
    except ValueError:
        return REDACTED
    host = f"{REDACTED}@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    return urlunsplit((parts.scheme, host, parts.path, REDACTED if parts.query else "", ""))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _append_line(path: Path, line: bytes) -> None:
    """Append a line; one that a killed process left torn is closed first, so that this one stays whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, io.SEEK_END):
            file.seek(-1, io.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file; lines torn by a kill are left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                yield json.loads(line)
