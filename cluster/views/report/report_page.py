"""HTML report of a run: one file that needs no network and never executes text from models or tools.

Every part is optional, so aborted runs, single-step runs and runs without a test or validation file have a report too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.before_after import (
    BeforeAfterChange,
    compare_before_after,
    few_rows_warning,
    paired_changes,
)
from agent_rft.cluster.views.live_view import format_duration, safe_text
from agent_rft.cluster.views.pages import load_page_template
from agent_rft.cluster.views.report.report_charts import quality_figures, section_figures
from agent_rft.cluster.views.report.report_rows import make_report_rows
from agent_rft.cluster.views.traces import (
    SHOWN_CHARS,
    call_note,
    cut,
    extra_fields,
    split_reasoning,
    summarize_rollout,
    turn_note,
)
from agent_rft.errors import UserError
from agent_rft.events import AlarmRaised, EarlyStopped, FewerCallsFound, NothingLeftToLearn
from agent_rft.problems.alarm_rules import ALARM_RULES
from agent_rft.stored_events import RunEvent
from agent_rft.types import Evaluation, Group

NamedGroups = tuple[str, Sequence[Group]]
"""Name and groups of a rollout file."""
SHOWN_ALARMS = 50
HEADLINES = ("grade", "held_out", "tool_calls", "completion_tokens", "busy_s")


@dataclass(frozen=True, slots=True)
class ComparedEvaluations:
    """Evaluations of one file before and after training. If there is only one evaluation, `before` is None."""

    title: str
    before: Evaluation | None
    after: Evaluation
    graded_before: NamedGroups | None
    graded_after: NamedGroups
    left_out: Sequence[str] = ()
    """Problems with unreadable rollout files. The rollouts of these files are missing from the report."""

    @property
    def changes(self) -> list[BeforeAfterChange]:
        paired = {} if self.graded_before is None else paired_changes(self.graded_before[1], self.graded_after[1])
        return compare_before_after(self.before or self.after, self.after, paired)

    @property
    def headlines(self) -> list[BeforeAfterChange]:
        return [change for change in self.changes if change.name in HEADLINES]

    @property
    def few_rows_warning(self) -> str:
        return few_rows_warning(self.after)

    @property
    def missing_notes(self) -> list[str]:
        """Sentences about the rollouts without a grade."""
        found = (("Before: " if self.before else "", self.before), ("After: " if self.before else "", self.after))
        return [f"{label}{e.missing_note}." for label, e in found if e is not None and e.missing_note]


def write_report(run: RunFolder | Path) -> Path:
    """Write `report.html` into a run's folder atomically.

    Raises:
        OSError: The disk is full or read-only.
    """
    run = RunFolder(run) if isinstance(run, Path) else run
    steps, validations, evaluations = run.metrics(), run.validations(), run.evaluations()
    job, events = run.job(), run.events()
    last = int(steps[-1]["step"]) if steps else 0
    compared = _choose_evaluations(run, evaluations, validations)
    tests = [(at, evaluations[n]) for n, at in (("test-before", 0), ("test-after", last)) if n in evaluations]
    sections = (
        ("", quality_figures(steps, validations, tests)),
        ("Agent behavior", section_figures("agent", steps)),
        ("Training progress", section_figures("training", steps)),
    )
    rows = None if compared is None else make_report_rows(compared.graded_before, compared.graded_after)
    left_out = [f"Left out: {problem}." for problem in compared.left_out] if compared else []
    alarms = {event.message: event.event.rule for event in events if isinstance(event.event, AlarmRaised)}
    others = [event for event in events if not isinstance(event.event, AlarmRaised)]
    spec = job.get("job", {})
    functions = {"said": split_reasoning, "cut": _safe_excerpt, "facts": summarize_rollout, "call_note": call_note}
    functions |= {"own_keys": extra_fields, "turn_note": turn_note, "clock": _format_time}
    html = load_page_template("report", functions).render(
        nonce=secrets.token_urlsafe(16),
        plotly_js=Markup(get_plotlyjs()),
        name=run.path.resolve().name,
        title=spec.get("suffix") or spec.get("model") or run.path.resolve().name,
        model=spec.get("model", ""),
        took=_time_span([event.time for event in events]),
        totals=_format_totals(steps),
        notice=" ".join(filter(None, (_notice(job, steps, evaluations, events), _fewer_calls_note(events), *left_out))),
        error=next((event.message for event in reversed(events) if event.level == "error"), ""),
        compared=compared,
        sections=[(heading, made) for heading, made in sections if made],
        charts=[figure for _, made in sections for figure in made],
        rows=rows,
        alarms=list(alarms)[:SHOWN_ALARMS],
        fixes=[code.fix for rule, code in ALARM_RULES.items() if rule in alarms.values()],
        warnings=[event for event in others if event.level != "info" and not (event.event and event.event.is_quiet)],
        job=json.dumps(job, indent=2) if job else "",
    )
    temporary = run.report_file.with_suffix(".tmp")
    temporary.write_text(html, encoding="utf-8", errors="replace")  # tools may answer with lone surrogates
    return temporary.replace(run.report_file)


def _choose_evaluations(
    run: RunFolder, evaluations: Mapping[str, Evaluation], validations: Sequence[tuple[int, Evaluation]]
) -> ComparedEvaluations | None:
    """Return the tests before and after training; else the first and last validation; else the last evaluation."""
    names = set(run.rollout_names())
    left_out: list[str] = []

    def groups(name: str) -> NamedGroups:
        try:
            return name, run.read_groups(name) if name in names else []
        except UserError as error:
            left_out.append(error.public_message)
            return name, []

    def compared(title: str, *graded: tuple[str, Evaluation]) -> ComparedEvaluations:
        (first, before), (last, after) = graded[0], graded[-1]
        if len(graded) == 1:
            return ComparedEvaluations(title, None, after, None, groups(last), left_out)
        return ComparedEvaluations(title, before, after, groups(first), groups(last), left_out)

    if "test-after" in evaluations:
        return compared(
            "Test file", *((name, evaluations[name]) for name in ("test-before", "test-after") if name in evaluations)
        )
    if len(validations) > 1:
        (first, before), (last, after) = validations[0], validations[-1]
        title = f"Validation file, step {first} and step {last}"
        return compared(title, (f"validation-{first:06d}", before), (f"validation-{last:06d}", after))
    if evaluations:
        name = list(evaluations)[-1]
        return compared("Test file, before training" if name == "test-before" else name, (name, evaluations[name]))
    if validations:
        step, evaluation = validations[0]
        return compared(f"Validation file, step {step}", (f"validation-{step:06d}", evaluation))
    return None


def _notice(
    job: Mapping[str, Any],
    steps: Sequence[Mapping[str, float]],
    evaluations: Mapping[str, Evaluation],
    events: Sequence[RunEvent],
) -> str:
    """Return a sentence about a run that ended early or is still running; empty if the run is complete."""
    early = [event for event in events if isinstance(event.event, EarlyStopped | NothingLeftToLearn)]
    if early and steps and early[-1].step == steps[-1]["step"]:
        return f"This run {early[-1].message}."
    total = int(steps[-1].get("total_steps", 0)) if steps else job.get("plan", {}).get("steps", 0)
    done = int(steps[-1]["step"]) if steps else 0
    if not steps and any(not name.startswith("test-") for name in evaluations):
        return ""  # the run only evaluated a model
    if done < total or not steps:
        return f"This run is not complete: {done} of {total} steps are done."
    if "test-before" in evaluations and "test-after" not in evaluations:
        return "The test file was not graded after training."
    return ""


def _fewer_calls_note(events: Sequence[RunEvent]) -> str:
    """Return the run's FewerCallsFound message, or an empty string."""
    return next((f"{event.message}." for event in reversed(events) if isinstance(event.event, FewerCallsFound)), "")


def _format_totals(steps: Sequence[Mapping[str, float]]) -> str:
    """Format the totals of the run: steps, rollouts, tool calls, sampled tokens."""
    rollouts = [step.get("rollouts_graded", 0.0) for step in steps]

    def total(name: str) -> float:
        return sum(n * step.get(name, 0.0) for n, step in zip(rollouts, steps, strict=True))

    counts = [(len(steps), "step"), (sum(rollouts), "rollout")]
    counts += [(total("tool_calls_mean"), "tool call"), (total("completion_tokens_mean"), "sampled token")]
    return " · ".join(f"{count:,.0f} {what}{'' if round(count) == 1 else 's'}" for count, what in counts if count)


def _safe_excerpt(text: str, limit: int = SHOWN_CHARS) -> str:
    """Return text from models, tools or rows, made safe for the page."""
    return safe_text(cut(text, limit))


def _format_time(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"


def _time_span(times: Sequence[float]) -> str:
    """Return the time of the first event and the duration until the last event; `times` are Unix seconds."""
    if not times:
        return ""
    return f"{datetime.fromtimestamp(times[0], UTC):%Y-%m-%d %H:%M} UTC · {format_duration(times[-1] - times[0])}"
