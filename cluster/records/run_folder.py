"""Folder of one run, with all files that a job writes.

The files can be read while the job is running, and after it was killed. Only one process, the owner of the folder (see
`agent_rft.rows.ownership`), writes the files. The owner removes the oldest rollout files when they exceed the
operator's limits. The files are:

    job.resolved.json      format, job and plan, without secrets, and the run's id in experiment trackers; a resumed run
                           keeps these values
    events.jsonl           see `agent_rft.stored_events`
    metrics.jsonl          one flat object per step, with the names of `agent_rft.metrics`
    evaluations.jsonl      {name, time, fields of Evaluation}
    rollouts/<name>.jsonl.zst   step-000001, validation-000000, test-before, ...
    rollouts.sqlite        see `agent_rft.cluster.records.rollout_index`
    checkpoints/           see `agent_rft.trainer.loop.checkpoint`
    journal/               see `agent_rft.trainer.loop.journal`
    status.json            state of the actors of a run in progress, see `agent_rft.cluster.run.live_status`
    report.html

Each line is appended in a single write. Rollout files are written under a temporary name and then renamed. If a
resumed run repeats a step, only the step's newest line and rollout file are valid. A single thread performs all writes
in order, so that callers do not wait for the disk. A failed write is recorded in `problems`, but never raised.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.redaction import public_job, to_plain_json
from agent_rft.cluster.records.rollout_index import RolloutFile, RolloutIndex
from agent_rft.errors import OutdatedFormat, UserError
from agent_rft.events import VALIDATION, Evaluated, StepDone
from agent_rft.rows.durable_write import write_durably
from agent_rft.rows.ownership import current_folder
from agent_rft.rows.rollout_files import (
    ROLLOUTS_SUFFIX,
    LinePosition,
    LineReader,
    read_groups,
    read_outcomes,
    write_groups,
)
from agent_rft.rows.rollout_json import outcome_from_json
from agent_rft.spec.job import JobSpec
from agent_rft.spec.operator.operator_config import RecordLimits
from agent_rft.spec.step_plan import StepPlan
from agent_rft.stored_events import RunEvent, parse_evaluation
from agent_rft.trainer.loop.checkpoint import latest_checkpoint
from agent_rft.types import DiscardedRollout, Evaluation, Group, GroupRequest, Rollout

NAMES = (
    *("job.resolved.json", "events.jsonl", "metrics.jsonl", "evaluations.jsonl", "rollouts", "rollouts.sqlite"),
    *("checkpoints", "journal", "status.json", "report.html", "readiness.json", "readiness.html"),
)
"""Names of the files and folders in a run folder, for `agent_rft.rows.ownership.claim_folder`."""
READINESS_PREFIX = "ready"
"""Prefix of the rollout files of a readiness check."""
FORMAT = 4
"""Version of the format of job.resolved.json and of the folder, unchanged since 0.2.0. Increase it when older programs
must not resume the run."""


KEEP_ALL = RecordLimits()


def new_run_folder(root: Path, suffix: str | None) -> Path:
    """Create the folder `root/<UTC time>[-suffix]` and return its path.

    When sorted by name, run folders are sorted by age. The time includes milliseconds, because metrics identify jobs by
    the names of their folders, and several jobs may start at the same time under different roots.
    """
    slug = re.sub(r"[^\w.-]+", "-", suffix or "").strip("-.")
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"[:-3] + (f"-{slug}" if slug else "")
    for number in count(1):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("unreachable")


def open_run(path: Path) -> RunFolder:
    """Open a run folder for reading.

    Raises:
        OutdatedFormat: A version before 0.2.0 wrote the folder.
    """
    run = RunFolder(path)
    with suppress(OSError, ValueError, RecursionError):  # reported where the content is needed
        check_version(path, run.job())
    return run


def check_version(path: Path, resolved: object) -> None:
    """Check that this version can read the run folder at `path`; `resolved` is the content of its job.resolved.json.

    Raises:
        OutdatedFormat: A version before 0.2.0 wrote the folder.
    """
    match resolved:
        case {"format": int(number)}:
            is_older = number < FORMAT
        case _:
            is_older = isinstance(resolved, dict) and "job" in resolved  # written before formats were recorded
    if is_older:
        raise OutdatedFormat.for_path(f"the run folder {path}")


class RunFolder:
    """Reader and writer of one run's folder. As a Sink, it writes events and rollouts; call `close` after writing.

    The files are in `owner_folder`, the folder of the current owner.
    """

    def __init__(self, path: Path, limits: RecordLimits = KEEP_ALL, owner_folder: Path | None = None) -> None:
        self.path = path
        self.owner_folder = owner_folder or current_folder(path)
        self._limits = limits
        self.index = RolloutIndex(self.owner_folder)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="run-folder")
        self._failures: dict[str, list[str]] = {}

    @property
    def checkpoints(self) -> Path:
        return self.owner_folder / "checkpoints"

    @property
    def journal(self) -> Path:
        return self.owner_folder / "journal"

    @property
    def status_file(self) -> Path:
        return self.owner_folder / "status.json"

    @property
    def can_resume(self) -> bool:
        """Whether the run can be resumed: it has a checkpoint, or a journal that begins at the start of the run."""
        return bool(latest_checkpoint(self.checkpoints)) or any(self.journal.glob("group-*"))

    @property
    def readiness_files(self) -> list[str]:
        """Names of the rollout files of a readiness check, `ready-000001` and so on."""
        return sorted(name for name in self.rollout_names() if name.startswith(READINESS_PREFIX))

    @property
    def metrics_file(self) -> Path:
        return self.owner_folder / "metrics.jsonl"

    @property
    def report_file(self) -> Path:
        return self.owner_folder / "report.html"

    @property
    def problems(self) -> list[str]:
        """Messages about failed writes, one per file. The list is complete after `close`."""
        return [
            f"{name}: {len(errors)} write(s) failed; first error: {errors[0]}"
            for name, errors in self._failures.items()
        ]

    # -- writing -------------------------------------------------------------------------------------------------------

    def handle_event(self, event: RunEvent) -> None:
        """Append an event to events.jsonl, unless it is transient.

        A step's metrics are written to metrics.jsonl instead. Evaluations, except validations, are also
        written to evaluations.jsonl.
        """
        line, happened = event.to_line(), event.event
        if happened is not None and happened.is_transient:
            return
        if isinstance(happened, StepDone):
            self._append("metrics.jsonl", event.data["metrics"])  # null where a number was not finite
            line["data"] = {"total_steps": happened.total_steps, "metrics": {}}
        if isinstance(happened, Evaluated) and happened.name != VALIDATION:
            evaluation = {"name": happened.name, "time": line["time"]} | happened.evaluation.as_dict()
            self._append("evaluations.jsonl", evaluation)
        self._append("events.jsonl", line)

    def handle_groups(self, name: str, groups: Sequence[Group]) -> None:
        path = self._rollouts_path(name)

        def write() -> None:
            self.index.add_file(name, groups, write_groups(path, groups))
            with suppress(sqlite3.Error, UserError):  # trimmed after the next file
                remove_old_files(self.owner_folder, self.index, self._limits)

        self._enqueue(f"rollouts/{path.name}", write)

    def write_job(self, job: JobSpec, plan: StepPlan, extra: Mapping[str, Any] | None = None) -> None:
        """Write the resolved job without secrets, and sync it to disk, because a resumed run reads it.

        `extra` contains further entries, such as versions and the placement.

        Raises:
            OSError: The folder is not writable. The run then fails before its actors start.
        """
        resolved = {"format": FORMAT, "job": public_job(job), "plan": plan.model_dump(mode="json"), **(extra or {})}
        self.owner_folder.mkdir(parents=True, exist_ok=True)
        write_durably(
            self.owner_folder / "job.resolved.json", (json.dumps(to_plain_json(resolved), indent=2) + "\n").encode()
        )

    def flush(self) -> None:
        """Wait for all writes that were submitted so far."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Wait for all pending writes. Later writes are dropped and recorded in `problems`."""
        self._writer.shutdown(wait=True)

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        line = json.dumps(to_plain_json(value)).encode() + b"\n"
        self._enqueue(name, lambda: _append_line(self.owner_folder / name, line))

    def _enqueue(self, name: str, write: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                write()
            except (OSError, TypeError, ValueError) as error:
                self._record_failure(name, str(error))

        try:
            self._writer.submit(guarded)
        except RuntimeError:
            self._record_failure(name, "the run folder is closed")

    def _record_failure(self, name: str, error: str) -> None:
        is_first = not self._failures
        self._failures.setdefault(name, []).append(error)
        if is_first:
            print(f"warning: cannot write {self.path / name}: {error}; the run continues", file=sys.stderr)

    def _rollouts_path(self, name: str) -> Path:
        return self.owner_folder / "rollouts" / (name + ROLLOUTS_SUFFIX)

    # -- reading -------------------------------------------------------------------------------------------------------

    def job(self) -> dict[str, Any]:
        """Return the object {job, plan, ...} that `write_job` wrote; empty if the run failed before `write_job`."""
        try:
            resolved: dict[str, Any] = json.loads((self.owner_folder / "job.resolved.json").read_text())
        except FileNotFoundError:
            return {}
        return resolved

    def tracker_id(self) -> str:
        """Return the run's id in experiment trackers: the recorded id or, for a new run, a random id.

        Version 0.2.0 recorded no id. The id of its runs is the folder's name.
        """
        recorded: object = None
        with suppress(OSError, ValueError, RecursionError):  # reported when the run is resumed
            recorded = self.job()
        match recorded:
            case {"tracker_id": str(id)}:
                return id
            case {"job": _}:
                return self.path.name
        return secrets.token_hex(8)

    def events(self) -> list[RunEvent]:
        """Return all events, in order."""
        return [RunEvent.from_line(line) for line in _read_lines(self.owner_folder / "events.jsonl")]

    def metrics(self) -> list[dict[str, float]]:
        """Return the metrics of each step, sorted by step, without non-finite numbers."""
        steps = {line["step"]: line for line in _read_lines(self.metrics_file)}
        return [{k: v for k, v in steps[step].items() if v is not None} for step in sorted(steps)]

    def evaluations(self) -> dict[str, Evaluation]:
        return {line["name"]: parse_evaluation(line) for line in _read_lines(self.owner_folder / "evaluations.jsonl")}

    def validations(self) -> list[tuple[int, Evaluation]]:
        """Return pairs of step and validation result, sorted by step; the baseline is step 0."""
        found: dict[int, Evaluation] = {}
        for event in self.events():
            if isinstance(event.event, Evaluated) and event.event.name == VALIDATION:
                found[event.step] = event.event.evaluation
        return sorted(found.items(), key=lambda pair: pair[0])

    def rollout_names(self) -> list[str]:
        """Return the names of the rollout files, without their suffix, oldest file first."""
        found = (self.owner_folder / "rollouts").glob("*" + ROLLOUTS_SUFFIX)
        by_age = sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [path.name.removesuffix(ROLLOUTS_SUFFIX) for path in by_age]

    def read_groups(self, name: str) -> list[Group]:
        """Return the groups of a rollout file, exactly as they were passed to `handle_groups`.

        Raises:
            FileNotFoundError: No rollouts of that name were written.
        """
        return read_groups(self._rollouts_path(name))

    def read_outcomes(
        self, name: str
    ) -> Iterator[tuple[LinePosition, GroupRequest, Rollout | DiscardedRollout | None]]:
        """Yield (position, request, outcome) for each line of a rollout file; memory use is constant.

        The first line of a group has the outcome None. The lines of the group's rollouts follow.
        """
        return read_outcomes(self._rollouts_path(name))

    def outcome_at(self, name: str, place: LinePosition) -> Rollout | DiscardedRollout:
        """Return the rollout at a position that `read_outcomes` yielded.

        Raises:
            FileNotFoundError: The file was removed.
            RewrittenFile: The file has been rewritten since then.
        """
        with closing(LineReader()) as reader:
            return outcome_from_json(reader.read(self._rollouts_path(name), place))


def _append_line(path: Path, line: bytes) -> None:
    """Append a line. If a killed process left a partial line, end the partial line first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, io.SEEK_END):
            file.seek(-1, io.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file, without partial lines that a killed process left."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                yield json.loads(line)


# -- retention ---------------------------------------------------------------------------------------------------------


def remove_old_files(run: Path, index: RolloutIndex, limits: RecordLimits) -> list[str]:
    """Remove the oldest rollout files until the remaining files are within the limits; return the removed names.

    Files that are needed to resume or for the report are never removed.

    Raises:
        OSError: A file could not be removed.
        sqlite3.Error: The index could not be read.
    """
    if limits.max_rollouts is None and limits.max_rollout_bytes is None:
        return []
    index.catch_up()
    files = index.files()
    count, num_bytes = sum(f.num_rollouts for f in files), sum(f.num_bytes for f in files)
    removed = []
    for file in _list_removable(run, files):
        if count <= (limits.max_rollouts or count) and num_bytes <= (limits.max_rollout_bytes or num_bytes):
            break
        (run / "rollouts" / (file.name + ROLLOUTS_SUFFIX)).unlink(missing_ok=True)
        count, num_bytes = count - file.num_rollouts, num_bytes - file.num_bytes
        removed.append(file.name)
    index.catch_up()
    return removed


def _list_removable(run: Path, files: list[RolloutFile]) -> list[RolloutFile]:
    saved = latest_checkpoint(run / "checkpoints")
    step = 0 if saved is None else saved[1].step
    validations = sorted(file.name for file in files if file.name.startswith("validation-"))
    kept = {*validations[:1], *validations[-1:]}
    return [file for file in files if file.step is not None and file.step <= step and file.name not in kept]
