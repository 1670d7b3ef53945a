"""The best draw of each row as a supervised row: what the model did right once is shown to it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_rft.actors.engine.chat.parsing import ParsedTurn, parser_of
from agent_rft.actors.rollout.trajectory import Trajectory, read_turn
from agent_rft.chat.renderer import Renderer
from agent_rft.rows.durable import write_durably
from agent_rft.types import Group, Rollout, Task, ToolSchema

ReadTurn = Callable[[Sequence[int], Sequence[ToolSchema]], ParsedTurn]
"""A turn's sampled tokens and the row's tools -> what it says."""


def reader_of(renderer: Renderer) -> ReadTurn:
    """Reads turns as they were read while they were sampled."""
    parse = parser_of(renderer.family, renderer.tokenizer)
    return lambda token_ids, tools: read_turn(renderer, parse, token_ids, tools)[0]


def write_best_draws(path: Path, groups: Sequence[Group], pass_threshold: float, read: ReadTurn) -> int:
    """Write a JSONL file of conversations, one for each row with a draw that passes; returns their number.

    Raises:
        OSError: The file cannot be written.
    """
    rows = list(best_draws(groups, pass_threshold, read))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return len(rows)


def best_draws(groups: Sequence[Group], pass_threshold: float, read: ReadTurn) -> Iterator[dict[str, Any]]:
    """Rows of a supervised job, with the rollout of the highest reward that passes; of equal ones, the shortest.

    Draws with a mistake in a call, and those that ended at a limit, are not worth imitating.
    """
    for group in groups:
        good = [r for r in group.rollouts if r.grade.value >= pass_threshold and r.finish == "answer" and _clean(r)]
        if good:
            best = min(good, key=lambda r: (-r.reward, r.num_sampled, r.sample))
            yield conversation(group.request.task, best, read)


def _clean(rollout: Rollout) -> bool:
    return all(result.error in (None, "tool_error") for result in rollout.results)


def conversation(task: Task, rollout: Rollout, read: ReadTurn) -> dict[str, Any]:
    """The rollout as a row of the supervised method, with its messages as the engine's next turn saw them."""
    trajectory = Trajectory([], list(task.messages), [])
    for turn in rollout.turns:
        sampled = rollout.segments[turn.segment].token_ids[turn.start : turn.stop].tolist()
        trajectory.add_turn(turn, read(sampled, task.tools), [[] for _ in turn.calls])
    messages = [{key: value for key, value in m.items() if value != []} for m in trajectory.messages]
    return {"messages": messages} | ({"tools": list(task.tools)} if task.tools else {})
