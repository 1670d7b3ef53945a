"""Filter for recorded rollouts. The filter can be converted to an SQL condition for the tables of the rollout index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

DISCARDED = "discarded"
"""The `finish` of a rollout without a grade."""
RecordedFinish = Literal["answer", "max_steps", "max_tokens", "context", "timeout", "discarded"]
"""Values of `agent_rft.types.Finish`, and DISCARDED. They are repeated here because the CLI must not load numpy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Filter for recorded rollouts. A field that is None matches every rollout.

    A rollout without a grade does not match a filter with a limit for grades or rewards.

    Attributes:
        name: Rollout file, such as step-000012.
        step: Training step of the rollout file; validation files have a step, too.
        row: Row id, or line number of the row.
        trace: Start of the trace id.
        finish: The `finish` of a rollout, or DISCARDED.
        error: Error of a call, or reason for discarding the rollout.
        tool: Tool that the rollout called.
        text: String in the prompt, turns, answer or reason. `to_sql` ignores it; see `text_search`.
    """

    name: str | None = None
    step: int | None = None
    row: str | None = None
    trace: str | None = None
    min_grade: float | None = None
    max_grade: float | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    finish: str | None = None
    error: str | None = None
    tool: str | None = None
    text: str | None = None

    def __str__(self) -> str:
        """Return the filter as a phrase such as " with tool 'search' in step-000001"."""
        given = {name: value for name, value in asdict(self).items() if value is not None and name != "name"}
        which = " and ".join(f"{name} {value!r}" for name, value in given.items())
        return (f" with {which}" if which else "") + (f" in {self.name}" if self.name else "")

    def to_sql(self) -> tuple[str, list[Any]]:
        """Return an SQL condition and its parameters. `r` and `f` are aliases of the tables `rollouts` and `files`."""
        begins = "substr({}, 1, length(?)) = ?"
        conditions: list[tuple[str, list[Any]]] = [("1", [])]
        if self.name is not None:
            conditions.append(("f.name = ?", [self.name]))
        if self.step is not None:
            conditions.append(("f.step = ?", [self.step]))
        if self.row is not None:
            first = f"{self.row}-"
            conditions.append((f"(r.row_id = ? OR {begins.format('r.row_id')})", [self.row, first, first]))
        if self.trace is not None:
            conditions.append((begins.format("r.trace_id"), [self.trace, self.trace]))
        for column, low, high in (
            ("r.grade", self.min_grade, self.max_grade),
            ("r.reward", self.min_reward, self.max_reward),
        ):
            if low is not None:
                conditions.append((f"{column} >= ?", [low]))
            if high is not None:
                conditions.append((f"{column} <= ?", [high]))
        if self.finish is not None:
            conditions.append(("r.finish = ?", [self.finish]))
        if self.error is not None:
            conditions.append(("instr(r.errors, ?)", [join_names([self.error])]))
        if self.tool is not None:
            conditions.append(("instr(r.tools, ?)", [join_names([self.tool])]))
        values = [replace_surrogates(v) if isinstance(v, str) else v for _, of_test in conditions for v in of_test]
        return " AND ".join(test for test, _ in conditions), values


def join_names(names: Iterable[str]) -> str:
    """Return the names as one string, each between newlines, so that a substring search finds only full names."""
    known = sorted({replace_surrogates(name).replace("\n", " ") for name in names})
    return "".join(f"\n{name}" for name in known) + "\n" if known else ""


def replace_surrogates(value: str) -> str:
    """Replace lone surrogates with question marks. Models may write lone surrogates, but SQLite cannot store them."""
    return value.encode(errors="replace").decode()
