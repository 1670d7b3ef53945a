"""Selection and printing of recorded rollouts, one by one or in pairs of rollouts of the same row."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import Order
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.live_view import safe_text
from agent_rft.errors import UserError
from agent_rft.rows.rollout_files import iter_group_lines
from agent_rft.rows.rollout_json import outcome_from_json, request_to_json, task_from_json
from agent_rft.types import DiscardedRollout, Grade, Group, GroupRequest, Rollout, Task, ToolResult, Turn

LABEL_WIDTH = 10
SHOWN_CHARS = 600
"""Maximum printed length of a prompt message, tool result or turn; `--json` prints them in full."""
SHOWN_KEYS, KEY_CHARS = 20, 60
"""Maximum number of a row's extra fields that are printed, and maximum printed length of a field's name."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One rollout, graded or discarded, with its request and the name of its rollout file."""

    name: str
    request: GroupRequest
    outcome: Rollout | DiscardedRollout


def newest_file(run: RunFolder) -> str:
    """Return the name of the newest rollout file.

    Raises:
        UserError: The run has no rollouts.
    """
    run.index.catch_up()
    files = run.index.files()
    if not files:
        raise UserError(
            f"{run.path} contains no rollouts. Give the folder of a run with rollouts, such as runs/20261121-..."
        )
    return files[-1].name


def find_traces(
    run: RunFolder, rollout_filter: RolloutFilter, order: Order = "oldest", limit: int | None = None
) -> Iterator[Trace]:
    """Yield the traces that match `rollout_filter`, in file order or by grade; memory use is constant.

    Raises:
        UserError: The run has no rollouts, or no rollout matches.
    """
    newest_file(run)
    rollout_filter = run.index.check_filter(rollout_filter)
    found = run.index.iter_rollouts(rollout_filter, order, limit if rollout_filter.text is None else None)
    if rollout_filter.text is not None:
        found = islice(
            (entry for entry, has_text in run.index.search_text(found, rollout_filter.text) if has_text), limit
        )
    first = next(found, None)
    if first is None and (order == "oldest" or not run.index.page(rollout_filter, "oldest", 1)):
        raise UserError(
            f"{run.path} has no rollout{rollout_filter}"
            + "".join(f"; {p}" for p in damaged_file_problems(run, rollout_filter))
        )
    for entry, request, end in run.index.read_rollouts(chain([] if first is None else [first], found)):
        yield Trace(entry.name, request, end)


def damaged_file_problems(run: RunFolder, rollout_filter: RolloutFilter) -> list[str]:
    """Return the problems of damaged rollout files that may contain traces for this filter."""
    return [f.problem for f in run.index.files() if f.problem and rollout_filter.name in (None, f.name)]


def trace_json(trace: Trace) -> str:
    """Return the request and the full rollout as one line of JSON, in the format of the run folder."""
    end = trace.outcome
    single = Group(trace.request, (end,)) if isinstance(end, Rollout) else Group(trace.request, (), (end,))
    _, line = iter_group_lines(single)
    return json.dumps({"name": trace.name, "request": request_to_json(trace.request)} | line, default=str)


def trace_from_json(name: str, request: dict[str, Any], outcome: dict[str, Any]) -> Trace:
    """Create a trace from the parts of an object that `trace_json` returned."""
    task = task_from_json(request["task"])
    return Trace(name, GroupRequest(**request | {"task": task}), outcome_from_json(outcome))


def split_reasoning(turn: Turn) -> tuple[str, str]:
    """Return the reasoning and the text of a turn. The text includes tool calls only if a call was malformed."""
    reasoning, _, text = turn.text.rpartition("</think>")
    if turn.calls and all(result.error != "malformed_call" for result in turn.results):
        text = re.sub(r"<tool_call>.*?(</tool_call>|$)", "", text, flags=re.DOTALL)
    return reasoning.replace("<think>", "").strip(), text.strip()


def cut(text: str, limit: int = SHOWN_CHARS) -> str:
    """Return the first `limit` characters of `text`, with a note about how many characters were left out."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]} … [{left_out:,} more characters]"


def summarize_rollout(rollout: Rollout) -> str:
    """Summarize a rollout in one line: grade, reward, calls, tokens, time and policy version."""
    parts = ", ".join(f"{name} {score:.3f}" for name, score in rollout.grade.scores.items())
    versions = sorted(set(rollout.sampled_versions.tolist()))
    calls, turns = len(rollout.calls), len(rollout.turns)
    shown = [
        f"grade {rollout.grade.value:.3f}" + (f" ({parts})" if parts else "") + _grade_notes(rollout.grade),
        f"reward {rollout.reward:.3f}",
        f"ended by {rollout.finish}",
        f"{calls} call{'s' * (calls != 1)} in {turns} turn{'s' * (turns != 1)}",
        f"{rollout.num_sampled:,} of {rollout.num_tokens:,} tokens sampled"
        + (f" in {len(rollout.segments)} segments" if len(rollout.segments) > 1 else ""),
        f"busy {rollout.busy_s:.2f} s of {rollout.wall_s:.2f} s",
        f"policy version {'-'.join(str(v) for v in (versions[:1] + versions[1:][-1:])) or 'none'}",
    ]
    return " · ".join(shown)


def _grade_notes(grade: Grade) -> str:
    """Return notes on a grade: the guard that set it, the held-out grade, and whether it is left out of training."""
    guard = f" set by the guard {grade.guard}" if grade.guard is not None else ""
    held_out = f", held out {grade.held_out:.3f}" if grade.held_out is not None else ""
    return guard + held_out + ("" if grade.train else ", not trained on")


def extra_fields(task: Task) -> list[tuple[str, str]]:
    """Return a row's extra fields, such as its reference answer. Graders and tools see them; the model does not."""
    own = [(key, value) for key, value in task.item.items() if key not in ("messages", "tools")]
    texts = [(cut(k, KEY_CHARS), v if isinstance(v, str) else json.dumps(v)) for k, v in own[:SHOWN_KEYS]]
    more = len(own) - SHOWN_KEYS
    return texts + ([("…", f"{more:,} more fields")] if more > 0 else [])


def turn_note(turn: Turn) -> str:
    """Return the number of tokens, the model time and the number of parallel calls of a turn, as text."""
    together = f", {len(turn.calls)} calls in parallel" if len(turn.calls) > 1 else ""
    return f"{turn.stop - turn.start:,} tokens, {turn.model_s:.2f} s{together}"


def call_note(result: ToolResult) -> str:
    """Return a tool call's latency, error, retries and truncation in one line."""
    notes = [f"{result.latency_s:.2f} s", result.error or ""]
    notes += [f"{result.retries} retries"] if result.retries else []
    notes += ["truncated for the model"] if result.truncated else []
    return ", ".join(note for note in notes if note)


def print_traces(traces: Iterable[Trace], console: Console) -> None:
    """Print each trace from prompt to answer. Long text is truncated.

    If several traces of the same row follow each other, the prompt is printed only once.
    """
    row = None
    for trace in traces:
        end = trace.outcome
        console.print(
            Rule(Text(safe_text(f"{trace.name} · row {end.row_id} · {end.trace_id}"), style="bold"), align="left")
        )
        if row != (trace.name, end.row_id):
            for message in trace.request.task.messages:
                content = message.get("content") or json.dumps(message.get("tool_calls"))
                _print_labeled(console, str(message["role"]), str(content), "dim")
            for key, value in extra_fields(trace.request.task):
                _print_labeled(console, "row", f"{key}: {value}", "magenta")
        row = (trace.name, end.row_id)
        if isinstance(end, DiscardedRollout):
            _print_labeled(console, "discarded", f"sample {end.sample}: {end.reason}: {end.message}", "yellow")
        else:
            _print_rollout(console, end)
        console.print()


def _print_rollout(console: Console, rollout: Rollout) -> None:
    _print_labeled(console, f"sample {rollout.sample}", summarize_rollout(rollout), "cyan")
    if rollout.grade.reason:
        _print_labeled(console, "reason", rollout.grade.reason, "yellow")
    for number, turn in enumerate(rollout.turns, start=1):
        reasoning, text = split_reasoning(turn)
        _print_labeled(console, f"turn {number}", turn_note(turn), "dim")
        if reasoning:
            _print_labeled(console, "", reasoning, "dim italic")
        if text and text != rollout.answer:
            _print_labeled(console, "", text, "")
        for call, result in zip(turn.calls, turn.results, strict=True):
            _print_labeled(console, "→", f"{call.name} {call.arguments}", "green")
            _print_labeled(console, "←", result.output, "red" if result.error else "", call_note(result))
    _print_labeled(console, "answer", rollout.answer, "bold")


def _print_labeled(console: Console, label: str, text: str, style: str, note: str = "") -> None:
    """Print a label on the left and its wrapped text on the right."""
    line = Table.grid(padding=(0, 1))
    line.add_column(width=LABEL_WIDTH, justify="right", style="blue")
    line.add_column()
    content = Text(safe_text(cut(text)), style=style)
    line.add_row(Text(safe_text(label)), content.append(f"  ({note})", style="not bold dim") if note else content)
    console.print(line)


# -- two files side by side --------------------------------------------------------------------------------------------

MIN_WIDTH = 40


def pair_traces(before: Iterable[Trace], after: Iterable[Trace]) -> Iterator[tuple[Trace, Trace]]:
    """Yield a pair of traces for each row in both files, in the order of `after`.

    The trace of a row is its first graded rollout, or its first discarded rollout if no rollout was graded.
    """
    first, second = _select_by_row(before), _select_by_row(after)
    return ((first[row], trace) for row, trace in second.items() if row in first)


def _select_by_row(traces: Iterable[Trace]) -> dict[str, Trace]:
    found: dict[str, Trace] = {}
    for trace in traces:
        current = found.get(trace.outcome.row_id)
        if current is None or (isinstance(trace.outcome, Rollout) and not isinstance(current.outcome, Rollout)):
            found[trace.outcome.row_id] = trace
    return found


def print_pairs(pairs: Iterable[tuple[Trace, Trace]], console: Console) -> int:
    """Print the two traces of each pair side by side; return the number of pairs."""
    width, count = max(MIN_WIDTH, (console.width - 3) // 2), 0
    for count, (before, after) in enumerate(pairs, start=1):  # noqa: B007 - it is returned
        console.print(
            Rule(
                Text(
                    f"row {safe_text(after.outcome.row_id)}: {_grade_text(before)} → {_grade_text(after)}", style="bold"
                )
            )
        )
        table = Table.grid(padding=(0, 3, 0, 0))
        table.add_column(width=width)
        table.add_column(width=width)
        table.add_row(*(Text.from_ansi(_render_trace(trace, width, console)) for trace in (before, after)))
        console.print(table)
    return count


def _grade_text(trace: Trace) -> str:
    return f"{trace.outcome.grade.value:.3f}" if isinstance(trace.outcome, Rollout) else "discarded"


def _render_trace(trace: Trace, width: int, console: Console) -> str:
    out = io.StringIO()
    narrow = Console(
        file=out,
        width=width,
        color_system="truecolor" if console.color_system else None,
        force_terminal=console.is_terminal,
        emoji=False,
    )
    print_traces([trace], narrow)
    return out.getvalue()
