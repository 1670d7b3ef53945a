"""Selects recorded rollouts and prints them, or two of a row side by side; discarded ones with their reason."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agent_rft.cluster.records.rollout_index import Order
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.records.wanted import Wanted
from agent_rft.cluster.views.live import safe_text
from agent_rft.errors import UserError
from agent_rft.rows.rollout_files import group_lines
from agent_rft.rows.rollout_json import outcome_from_json, task_from_json
from agent_rft.types import Discarded, Grade, Group, GroupRequest, Rollout, Task, ToolResult, Turn

LABEL_WIDTH = 10
SHOWN_CHARS = 600
"""Printed length of a prompt message, tool result or turn; `--json` prints them whole."""
SHOWN_KEYS, KEY_CHARS = 20, 60
"""Printed keys of a row, and their length."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One rollout, complete or discarded, with its request and the name of its rollout file."""

    name: str
    request: GroupRequest
    end: Rollout | Discarded


def newest_file(run: RunFolder) -> str:
    """The name of the newest file of rollouts.

    Raises:
        UserError: There are no rollouts.
    """
    run.index.catch_up()
    files = run.index.files()
    if not files:
        raise UserError(
            f"{run.path} contains no rollouts: give the folder of a run that has some, such as runs/20261121-..."
        )
    return files[-1].name


def find_traces(run: RunFolder, wanted: Wanted, order: Order = "oldest", limit: int | None = None) -> Iterator[Trace]:
    """The traces that are wanted, by file and in its order, or by grade; one after the other, in constant memory.

    Raises:
        UserError: There are no rollouts at all, or none that are wanted.
    """
    newest_file(run)
    wanted = run.index.checked(wanted)
    found = run.index.all(wanted, order, limit if wanted.text is None else None)
    if wanted.text is not None:
        found = islice((one for one, has_text in run.index.containing(found, wanted.text) if has_text), limit)
    first = next(found, None)
    if first is None and (order == "oldest" or not run.index.page(wanted, "oldest", 1)):
        raise UserError(f"{run.path} has no rollout{wanted}" + "".join(f"; {p}" for p in damaged(run, wanted)))
    for one, request, end in run.index.read(chain([] if first is None else [first], found)):
        yield Trace(one.name, request, end)


def damaged(run: RunFolder, wanted: Wanted) -> list[str]:
    """What is wrong with the files that may have these traces."""
    return [f.problem for f in run.index.files() if f.problem and wanted.name in (None, f.name)]


def trace_json(trace: Trace) -> str:
    """One line of JSON with everything: the request, and the rollout as in the run folder."""
    end = trace.end
    alone = Group(trace.request, (end,)) if isinstance(end, Rollout) else Group(trace.request, (), (end,))
    _, line = group_lines(alone)
    return json.dumps({"name": trace.name, "request": asdict(trace.request)} | line, default=str)


def trace_of(name: str, request: dict[str, Any], end: dict[str, Any]) -> Trace:
    """A trace from the parts of its `trace_json`."""
    task = task_from_json(request["task"])
    return Trace(name, GroupRequest(**request | {"task": task}), outcome_from_json(end))


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
    calls, turns = len(rollout.calls), len(rollout.turns)
    shown = [
        f"grade {rollout.grade.value:.3f}" + (f" ({parts})" if parts else "") + _besides(rollout.grade),
        f"reward {rollout.reward:.3f}",
        f"ended by {rollout.finish}",
        f"{calls} call{'s' * (calls != 1)} in {turns} turn{'s' * (turns != 1)}",
        f"{rollout.num_sampled:,} of {rollout.num_tokens:,} tokens sampled"
        + (f" in {len(rollout.segments)} segments" if len(rollout.segments) > 1 else ""),
        f"busy {rollout.busy_s:.2f} s of {rollout.wall_s:.2f} s",
        f"policy version {'-'.join(str(v) for v in (versions[:1] + versions[1:][-1:])) or 'none'}",
    ]
    return " · ".join(shown)


def _besides(grade: Grade) -> str:
    """What else is known about a grade: the guard that set it, the held-out grade."""
    guard = f" set by the guard {grade.guard}" if grade.guard is not None else ""
    held_out = f", held out {grade.held_out:.3f}" if grade.held_out is not None else ""
    return guard + held_out


def own_keys(task: Task) -> list[tuple[str, str]]:
    """A row's own keys, such as its reference answer, which graders and tools see and the model does not."""
    own = [(key, value) for key, value in task.item.items() if key not in ("messages", "tools")]
    texts = [(cut(k, KEY_CHARS), v if isinstance(v, str) else json.dumps(v)) for k, v in own[:SHOWN_KEYS]]
    more = len(own) - SHOWN_KEYS
    return texts + ([("…", f"{more:,} more keys")] if more > 0 else [])


def turn_note(turn: Turn) -> str:
    """What a turn cost, and whether its calls ran at the same time."""
    together = f", {len(turn.calls)} calls in parallel" if len(turn.calls) > 1 else ""
    return f"{turn.stop - turn.start:,} tokens, {turn.model_s:.2f} s{together}"


def call_note(result: ToolResult) -> str:
    """A tool call's latency, error, retries and truncation, in one line."""
    notes = [f"{result.latency_s:.2f} s", result.error or ""]
    notes += [f"{result.retries} retries"] if result.retries else []
    notes += ["cut for the model"] if result.truncated else []
    return ", ".join(note for note in notes if note)


def print_traces(traces: Iterable[Trace], console: Console) -> None:
    """Print each trace from prompt to answer, cutting long texts; consecutive traces of a row share one prompt."""
    row = None
    for trace in traces:
        end = trace.end
        console.print(
            Rule(Text(safe_text(f"{trace.name} · row {end.row_id} · {end.trace_id}"), style="bold"), align="left")
        )
        if row != (trace.name, end.row_id):
            for message in trace.request.task.messages:
                content = message.get("content") or json.dumps(message.get("tool_calls"))
                _say(console, str(message["role"]), str(content), "dim")
            for key, value in own_keys(trace.request.task):
                _say(console, "row", f"{key}: {value}", "magenta")
        row = (trace.name, end.row_id)
        if isinstance(end, Discarded):
            _say(console, "discarded", f"sample {end.sample}: {end.reason}: {end.message}", "yellow")
        else:
            _print_rollout(console, end)
        console.print()


def _print_rollout(console: Console, rollout: Rollout) -> None:
    _say(console, f"sample {rollout.sample}", facts(rollout), "cyan")
    if rollout.grade.reason:
        _say(console, "reason", rollout.grade.reason, "yellow")
    for number, turn in enumerate(rollout.turns, start=1):
        thought, text = said(turn)
        _say(console, f"turn {number}", turn_note(turn), "dim")
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


# -- two files side by side --------------------------------------------------------------------------------------------

MIN_WIDTH = 40


def pairs_of(before: Iterable[Trace], after: Iterable[Trace]) -> Iterator[tuple[Trace, Trace]]:
    """The first rollout of each row that both files have, graded if there is one, in the order of `after`."""
    first, second = _by_row(before), _by_row(after)
    return ((first[row], trace) for row, trace in second.items() if row in first)


def _by_row(traces: Iterable[Trace]) -> dict[str, Trace]:
    found: dict[str, Trace] = {}
    for trace in traces:
        known = found.get(trace.end.row_id)
        if known is None or (isinstance(trace.end, Rollout) and not isinstance(known.end, Rollout)):
            found[trace.end.row_id] = trace
    return found


def print_pairs(pairs: Iterable[tuple[Trace, Trace]], console: Console) -> int:
    """Print each pair and return how many there were."""
    width, count = max(MIN_WIDTH, (console.width - 3) // 2), 0
    for count, (before, after) in enumerate(pairs, start=1):  # noqa: B007 - it is returned
        console.print(
            Rule(Text(f"row {safe_text(after.end.row_id)}: {_graded(before)} → {_graded(after)}", style="bold"))
        )
        table = Table.grid(padding=(0, 3, 0, 0))
        table.add_column(width=width)
        table.add_column(width=width)
        table.add_row(*(Text.from_ansi(_printed(trace, width, console)) for trace in (before, after)))
        console.print(table)
    return count


def _graded(trace: Trace) -> str:
    return f"{trace.end.grade.value:.3f}" if isinstance(trace.end, Rollout) else "discarded"


def _printed(trace: Trace, width: int, console: Console) -> str:
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
