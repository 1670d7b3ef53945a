"""The folder of one run: everything that a job leaves behind, readable while it runs and after it was killed.

    job.resolved.json      job and plan, without secrets
    events.jsonl           see `trainer.run_events`
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
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from cluster.records.redact import plain, public_job
from cluster.records.rollout_files import ROLLOUTS_SUFFIX, read_groups, write_groups
from trainer.events import VALIDATION, Evaluated, StepDone
from trainer.run_events import RunEvent, evaluation_of
from trainer.spec.job import JobSpec, Plan
from trainer.types import Evaluation, Group


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
    """Writes (a Sink) and reads one run's folder. Writers call `close` at the end."""

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

    def event(self, event: RunEvent) -> None:
        """Append it. A step's numbers go into metrics.jsonl, a graded test file's into evaluations.jsonl as well."""
        line, happened = event.as_line(), event.event
        if isinstance(happened, StepDone):
            self._append("metrics.jsonl", event.data["metrics"])  # null where a number was not finite
            line["data"] = {"total_steps": happened.total_steps, "metrics": {}}
        if isinstance(happened, Evaluated) and happened.name != VALIDATION:
            evaluation = {"name": happened.name, "time": line["time"]} | happened.evaluation.as_dict()
            self._append("evaluations.jsonl", evaluation)
        self._append("events.jsonl", line)

    def groups(self, name: str, groups: Sequence[Group]) -> None:
        path = self._rollouts(name)
        self._later(f"rollouts/{path.name}", lambda: write_groups(path, groups))

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

    def events(self) -> list[RunEvent]:
        """All that happened, in order; those of runs from before events had kinds have only level, message and data."""
        return [RunEvent.from_line(line) for line in _read_lines(self.path / "events.jsonl")]

    def metrics(self) -> list[dict[str, float]]:
        """One dict a step, by step; numbers that were not finite are left out."""
        steps = {line["step"]: line for line in _read_lines(self.path / "metrics.jsonl")}
        return [{k: v for k, v in steps[step].items() if v is not None} for step in sorted(steps)]

    def lacks(self, metrics: Mapping[str, float]) -> bool:
        """Whether a step is missing whose checkpoint is whole: the run was killed between the two."""
        return bool(metrics) and all(step["step"] != metrics["step"] for step in self.metrics())

    def evaluations(self) -> dict[str, Evaluation]:
        return {line["name"]: evaluation_of(line) for line in _read_lines(self.path / "evaluations.jsonl")}

    def validations(self) -> list[tuple[int, Evaluation]]:
        """(step, evaluation of the validation file), by step; the baseline is step 0."""
        found: dict[int, Evaluation] = {}
        for event in self.events():
            if isinstance(event.event, Evaluated) and event.event.name == VALIDATION:
                found[event.step] = event.event.evaluation
            elif not event.kind and "step" in event.data:  # of a run from before events had kinds
                with suppress(TypeError):
                    found[int(event.data["step"])] = evaluation_of(event.data)
        return sorted(found.items(), key=lambda pair: pair[0])

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
