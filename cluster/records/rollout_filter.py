"""Filter for recorded rollouts, and its SQL condition for the tables of the index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

DISCARDED = "discarded"
"""The `finish` of a rollout without a grade."""
RecordedFinish = Literal["answer", "max_steps", "max_tokens", "context", "discarded"]
"""`agent_rft.types.Finish` or DISCARDED. Repeated here, since that module loads numpy and the CLI must not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Filter for rollouts; None matches every rollout. Rollouts without a grade match no range of grades or rewards.

    Attributes:
        name: Rollout file, such as step-000012.
        step: Step of the file, which may be a validation file.
        row: Row id, or its line number.
        trace: Start of the trace id.
        finish: The `finish` of a rollout, or DISCARDED.
        error: Error of a call, or reason for discarding the rollout.
        tool: Tool that the rollout called.
        text: String in the prompt, turns, answer or reason; not part of `condition`, see `text_search`.
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
        """Return the filter as the end of a message such as "no rollout with tool 'search' in step-000001"."""
        given = {name: value for name, value in asdict(self).items() if value is not None and name != "name"}
        which = " and ".join(f"{name} {value!r}" for name, value in given.items())
        return (f" with {which}" if which else "") + (f" in {self.name}" if self.name else "")

    def to_sql(self) -> tuple[str, list[Any]]:
        """Return an SQL condition on table `rollouts` as r and `files` as f, and its values."""
        begins = "substr({}, 1, length(?)) = ?"
        tests: list[tuple[str, list[Any]]] = [("1", [])]
        if self.name is not None:
            tests.append(("f.name = ?", [self.name]))
        if self.step is not None:
            tests.append(("f.step = ?", [self.step]))
        if self.row is not None:
            first = f"{self.row}-"
            tests.append((f"(r.row_id = ? OR {begins.format('r.row_id')})", [self.row, first, first]))
        if self.trace is not None:
            tests.append((begins.format("r.trace_id"), [self.trace, self.trace]))
        for column, low, high in (
            ("r.grade", self.min_grade, self.max_grade),
            ("r.reward", self.min_reward, self.max_reward),
        ):
            if low is not None:
                tests.append((f"{column} >= ?", [low]))
            if high is not None:
                tests.append((f"{column} <= ?", [high]))
        if self.finish is not None:
            tests.append(("r.finish = ?", [self.finish]))
        if self.error is not None:
            tests.append(("instr(r.errors, ?)", [join_names([self.error])]))
        if self.tool is not None:
            tests.append(("instr(r.tools, ?)", [join_names([self.tool])]))
        values = [replace_surrogates(v) if isinstance(v, str) else v for _, of_test in tests for v in of_test]
        return " AND ".join(test for test, _ in tests), values


def join_names(names: Iterable[str]) -> str:
    """Return the names as one string, each between newlines, so that a substring search finds a name."""
    known = sorted({replace_surrogates(name).replace("\n", " ") for name in names})
    return "".join(f"\n{name}" for name in known) + "\n" if known else ""


def replace_surrogates(value: str) -> str:
    """Return the string without lone surrogates, which models may write and SQLite cannot store."""
    return value.encode(errors="replace").decode()
