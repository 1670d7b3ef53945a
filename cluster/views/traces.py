"""Selects recorded rollouts and prints them for people to read; discarded ones are shown with their reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cluster.records.run_folder import RunFolder
from cluster.views.live import safe_text
from trainer.data.rollout_files import group_lines
from trainer.errors import UserError
from trainer.types import Discarded, Grade, Group, GroupRequest, Rollout, ToolResult, Turn

LABEL_WIDTH = 10
SHOWN_CHARS = 600
"""Printed length of a prompt message, tool result or turn; `--json` prints them whole."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One rollout, complete or discarded, with its request and the name of its rollout file."""

    name: str
    request: GroupRequest
    end: Rollout | Discarded


def select_traces(
    run: RunFolder,
    *,
    name: str | None = None,
    row: str | None = None,
    trace: str | None = None,
    worst: int | None = None,
    best: int | None = None,
) -> list[Trace]:
    """Traces of the file `name` in its order, or the `worst` or `best` by grade.

    `row` is a row's id or line number, `trace` the start of a trace id; without `name`, both are searched in all files.
    With none of the three, the traces are those of the newest file. Discarded rollouts have no grade and are neither
    among the worst nor the best.

    Raises:
        UserError: There are no rollouts, or none of this name, row or trace.
    """
    names = run.rollout_names()
    if not names:
        raise UserError(
            f"{run.path} contains no rollouts: give the folder of a run that has some, such as runs/20261121-..."
        )
    if name is not None and (counted := re.fullmatch(r"(step|validation)-(\d+)", name)):
        name = f"{counted[1]}-{int(counted[2]):06d}"
    if name is not None and name not in names:
        raise UserError(f"{run.path} has no rollouts named {name!r}; it has {', '.join(sorted(names))}")
    if name is not None:
        names = [name]
    elif row is None and trace is None:
        names = names[-1:]
    found = [
        entry
        for file in names
        for entry in _traces(file, run.read_groups(file))
        if (row is None or entry.end.row_id == row or entry.end.row_id.startswith(f"{row}-"))
        and (trace is None or entry.end.trace_id.startswith(trace))
    ]
    if not found and (row is not None or trace is not None):
        which = " and ".join(f"{key} {value!r}" for key, value in (("row", row), ("trace", trace)) if value is not None)
        raise UserError(f"{run.path} has no rollout with {which}" + (f" in {name}" if name else ""))
    if worst is None and best is None:
        return found
    graded = [(entry.end.grade.value, entry) for entry in found if isinstance(entry.end, Rollout)]
    graded.sort(key=lambda pair: pair[0], reverse=best is not None)
    return [entry for _, entry in graded[: best if best is not None else worst]]


def _traces(name: str, groups: Sequence[Group]) -> Iterator[Trace]:
    for group in groups:
        yield from (Trace(name, group.request, end) for end in group.rollouts)
        yield from (Trace(name, group.request, end) for end in group.discarded)


def trace_json(trace: Trace) -> str:
    """One line of JSON with everything: the request, and the rollout as in the run folder."""
    end = trace.end
    alone = Group(trace.request, (end,)) if isinstance(end, Rollout) else Group(trace.request, (), (end,))
    _, line = group_lines(alone)
    return json.dumps({"name": trace.name, "request": asdict(trace.request)} | line, default=str)


def said(turn: Turn) -> tuple[str, str]:
    """The thoughts and the text of a turn, without tool calls unless they were malformed."""
    thought, _, text = turn.text.rpartition("</think>")
    if turn.calls and all(result.error != "malformed_call" for result in turn.results):
        text = re.sub(r"<tool_call>.*?(</tool_call>|$)", "", text, flags=re.DOTALL)
    return thought.replace("<think>", "").strip(), text.strip()


def cut(text: str, limit: int = SHOWN_CHARS) -> str:
    """The first `limit` characters of `text`, with a note of how many were left out."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]} … [{left_out:,} more characters]"


def facts(rollout: Rollout) -> str:
    """How a rollout went, in one line."""
    parts = ", ".join(f"{name} {score:.3f}" for name, score in rollout.grade.scores.items())
    versions = sorted(set(rollout.sampled_versions.tolist()))
    shown = [
        f"grade {rollout.grade.value:.3f}" + (f" ({parts})" if parts else "") + _why(rollout.grade),
        f"reward {rollout.reward:.3f}",
        f"ended by {rollout.finish}",
        f"{len(rollout.calls)} calls in {len(rollout.turns)} turns",
        f"{rollout.num_sampled:,} of {rollout.num_tokens:,} tokens sampled"
        + (f" in {len(rollout.segments)} segments" if len(rollout.segments) > 1 else ""),
        f"busy {rollout.busy_s:.2f} s of {rollout.wall_s:.2f} s",
        f"policy version {'-'.join(str(v) for v in (versions[:1] + versions[1:][-1:])) or 'none'}",
    ]
    return " · ".join(shown)


def _why(grade: Grade) -> str:
    """What else is known about a grade: the guard that set it, the held-out grade, the judge's reason."""
    guard = f" set by the guard {grade.guard}" if grade.guard is not None else ""
    held_out = f", held out {grade.held_out:.3f}" if grade.held_out is not None else ""
    return guard + held_out + (f", because {grade.reason}" if grade.reason else "")


def call_note(result: ToolResult) -> str:
    """A tool call's latency, error, retries and truncation, in one line."""
    notes = [f"{result.latency_s:.2f} s", result.error or ""]
    notes += [f"{result.retries} retries"] if result.retries else []
    notes += ["cut for the model"] if result.truncated else []
    return ", ".join(note for note in notes if note)


def print_traces(traces: Sequence[Trace], console: Console) -> None:
    """Print each trace from prompt to answer, cutting long texts; consecutive traces of a row share one prompt."""
    row = None
    for trace in traces:
        end = trace.end
        console.print(Rule(Text(f"{trace.name} · row {end.row_id} · {end.trace_id}", style="bold"), align="left"))
        if row != (trace.name, end.row_id):
            for message in trace.request.task.messages:
                content = message.get("content") or json.dumps(message.get("tool_calls"))
                _say(console, str(message["role"]), str(content), "dim")
        row = (trace.name, end.row_id)
        if isinstance(end, Discarded):
            _say(console, "discarded", f"sample {end.sample}: {end.reason}: {end.message}", "yellow")
        else:
            _print_rollout(console, end)
        console.print()


def _print_rollout(console: Console, rollout: Rollout) -> None:
    _say(console, f"sample {rollout.sample}", facts(rollout), "cyan")
    for number, turn in enumerate(rollout.turns, start=1):
        thought, text = said(turn)
        cost = f"{turn.stop - turn.start} tokens, {turn.model_s:.2f} s"
        _say(console, f"turn {number}", cost, "dim")
        if thought:
            _say(console, "", thought, "dim italic")
        if text and text != rollout.answer:
            _say(console, "", text, "")
        for call, result in zip(turn.calls, turn.results, strict=True):
            _say(console, "→", f"{call.name} {call.arguments}", "green")
            _say(console, "←", result.output, "red" if result.error else "", call_note(result))
    _say(console, "answer", rollout.answer, "bold")


def _say(console: Console, who: str, text: str, style: str, note: str = "") -> None:
    """Print one message: its label on the left, its text wrapped beside it."""
    line = Table.grid(padding=(0, 1))
    line.add_column(width=LABEL_WIDTH, justify="right", style="blue")
    line.add_column()
    said_text = Text(safe_text(cut(text)), style=style)
    line.add_row(Text(safe_text(who)), said_text.append(f"  ({note})", style="not bold dim") if note else said_text)
    console.print(line)
