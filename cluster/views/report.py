"""The HTML report of a run: one file that needs no network and executes nothing that a model or tool wrote.

Every part is optional: aborted runs, runs of one step and runs without a test or validation file have a report too.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from cluster.records.run_folder import RunFolder
from cluster.views.before_after import Change, compare, mean_grade, paired_change
from cluster.views.live import duration
from cluster.views.report_charts import figures, quality
from cluster.views.traces import call_note, cut, facts, said
from trainer.types import Evaluation, Group, Rollout

SHOWN_ROWS = 1000
"""A row with two traces takes about 10 kB, so a file with this many rows still opens quickly."""
HEADLINES = ("grade", "tool_calls", "completion_tokens", "busy_s")


@dataclass(frozen=True, slots=True)
class Compared:
    """The graded file of the report: graded once (`before` is None) or before and after training."""

    title: str
    before: Evaluation | None
    after: Evaluation
    groups_before: Sequence[Group]
    groups_after: Sequence[Group]

    @property
    def changes(self) -> list[Change]:
        return compare(self.before or self.after, self.after)

    @property
    def headlines(self) -> list[Change]:
        return [change for change in self.changes if change.name in HEADLINES]

    @property
    def half_width(self) -> str:
        """Half width of the 95 % confidence interval of the grade's change, comparing each row with itself."""
        _, half_width, _ = paired_change(self.groups_before, self.groups_after)
        return "" if math.isnan(half_width) else f" ± {half_width:.3f}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the graded file."""

    before: Group | None
    after: Group

    @property
    def question(self) -> str:
        """The last message of the prompt, which is the user's."""
        return str(self.after.request.task.messages[-1].get("content") or "")

    @property
    def change(self) -> float | None:
        if self.before is None or not (self.before.rollouts and self.after.rollouts):
            return None
        return mean_grade(self.after) - mean_grade(self.before)

    @property
    def sides(self) -> list[tuple[str, Group]]:
        return [("after", self.after)] if self.before is None else [("before", self.before), ("after", self.after)]


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cluster.views", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals |= {"said": said, "cut": cut, "facts": facts, "call_note": call_note}
    environment.globals |= {"tries": _tries, "clock": _clock}
    return environment.get_template("report.html")


def write_report(run: RunFolder | Path) -> Path:
    """Write `report.html` into a run's folder, whole or not at all.

    Raises:
        OSError: The disk is full or read-only.
    """
    run = RunFolder(run) if isinstance(run, Path) else run
    steps, validations, evaluations = run.metrics(), run.validations(), run.evaluations()
    job, events = run.job(), run.events()
    last = int(steps[-1]["step"]) if steps else 0
    compared = _compared(run, evaluations, validations)
    tests = [(at, evaluations[n]) for n, at in (("test-before", 0), ("test-after", last)) if n in evaluations]
    sections = (
        ("", quality(steps, validations, tests)),
        ("How the agent works", figures("agent", steps)),
        ("How the training went", figures("training", steps)),
    )
    rows = [] if compared is None else _rows(compared)
    spec = job.get("job", {})
    html = _template().render(
        nonce=secrets.token_urlsafe(16),
        plotly_js=Markup(get_plotlyjs()),
        name=run.path.resolve().name,
        title=spec.get("suffix") or spec.get("model") or run.path.resolve().name,
        model=spec.get("model", ""),
        took=_took([event.time for event in events]),
        totals=_totals(steps),
        notice=_notice(job, steps, evaluations),
        error=next((event.message for event in reversed(events) if event.level == "error"), ""),
        compared=compared,
        sections=[(heading, made) for heading, made in sections if made],
        charts=[figure for _, made in sections for figure in made],
        rows=rows[:SHOWN_ROWS],
        num_rows=len(rows),
        warnings=[event for event in events if event.level != "info" and not (event.event and event.event.quiet)],
        job=json.dumps(job, indent=2) if job else "",
    )
    temporary = run.report.with_suffix(".tmp")
    temporary.write_text(html, encoding="utf-8", errors="replace")  # tools may answer with lone surrogates
    return temporary.replace(run.report)


def _compared(
    run: RunFolder, evaluations: Mapping[str, Evaluation], validations: Sequence[tuple[int, Evaluation]]
) -> Compared | None:
    """The test file before and after; else the first and last validation; else the file that was graded last."""
    names = set(run.rollout_names())

    def groups(name: str) -> list[Group]:
        return run.read_groups(name) if name in names else []

    def of(title: str, *graded: tuple[str, Evaluation]) -> Compared:
        (first, before), (last, after) = graded[0], graded[-1]
        if len(graded) == 1:
            return Compared(title, None, after, [], groups(last))
        return Compared(title, before, after, groups(first), groups(last))

    if "test-after" in evaluations:
        return of(
            "Test file", *((name, evaluations[name]) for name in ("test-before", "test-after") if name in evaluations)
        )
    if len(validations) > 1:
        (first, before), (last, after) = validations[0], validations[-1]
        title = f"Validation file, step {first} and step {last}"
        return of(title, (f"validation-{first:06d}", before), (f"validation-{last:06d}", after))
    if evaluations:
        name = list(evaluations)[-1]
        return of("Test file, before training" if name == "test-before" else name, (name, evaluations[name]))
    if validations:
        step, evaluation = validations[0]
        return of(f"Validation file, step {step}", (f"validation-{step:06d}", evaluation))
    return None


def _rows(compared: Compared) -> list[Row]:
    before = {group.request.task.row_id: group for group in compared.groups_before}
    return [Row(before.get(group.request.task.row_id), group) for group in compared.groups_after]


def _tries(group: Group) -> dict[str, Any]:
    """Mean grade and tool calls over a row's graded rollouts, and the rollout to show."""
    if not group.rollouts:
        return {"grade": None, "calls": None, "shown": None}
    shown: Rollout = group.rollouts[0]
    calls = sum(len(rollout.calls) for rollout in group.rollouts) / len(group.rollouts)
    return {"grade": mean_grade(group), "calls": calls, "shown": shown}


def _notice(job: Mapping[str, Any], steps: Sequence[Mapping[str, float]], evaluations: Mapping[str, Evaluation]) -> str:
    """A sentence on what is missing in a run that was aborted or is still running; empty if nothing is."""
    total = int(steps[-1].get("total_steps", 0)) if steps else job.get("plan", {}).get("steps", 0)
    done = int(steps[-1]["step"]) if steps else 0
    if not steps and any(not name.startswith("test-") for name in evaluations):
        return ""  # only graded a model
    if done < total or not steps:
        return f"This run is not complete: {done} of {total} steps are done."
    if "test-before" in evaluations and "test-after" not in evaluations:
        return "The test file was not graded after training."
    return ""


def _totals(steps: Sequence[Mapping[str, float]]) -> str:
    """Counts over all steps: steps, rollouts, tool calls, sampled tokens."""
    rollouts = [step.get("rollouts_graded", 0.0) for step in steps]

    def total(name: str) -> float:
        return sum(n * step.get(name, 0.0) for n, step in zip(rollouts, steps, strict=True))

    counts = [(len(steps), "step"), (sum(rollouts), "rollout")]
    counts += [(total("tool_calls_mean"), "tool call"), (total("completion_tokens_mean"), "sampled token")]
    return " · ".join(f"{count:,.0f} {what}{'' if round(count) == 1 else 's'}" for count, what in counts if count)


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"


def _took(times: Sequence[float]) -> str:
    """The time of the first event and the duration up to the last one; `times` are Unix seconds."""
    if not times:
        return ""
    return f"{datetime.fromtimestamp(times[0], UTC):%Y-%m-%d %H:%M} UTC · {duration(times[-1] - times[0])}"
