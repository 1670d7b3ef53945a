"""A checkpoint with the same reward and fewer calls than the best is pointed out; one that may be worse is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.comparison.fewer_calls import find_fewer_calls
from agent_rft.events import FewerCallsFound
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from agent_rft.types import Group, ToolCall, ToolResult, Turn
from tests.support.builders import group_request, rollout, task

ROWS = 12


def validated(row: int, reward: float, num_calls: int) -> Group:
    call = Turn(2, 5, "", (ToolCall("c", "search", "{}"),), (ToolResult("c", "out", None),))
    request = group_request(task=task(str(row)), purpose="validation")
    return Group(request, (rollout(request, 0, reward, turns=(call,) * num_calls),))


async def run_of(folder: Path, steps: dict[int, tuple[list[float], list[int]]], **state: bool) -> RunFolder:
    """A run with a checkpoint for each step, by the rewards and calls of its validation's rows."""

    async def nothing(path: Path) -> None: ...

    run, checkpoints = RunFolder(folder), Checkpoints(folder / "checkpoints")
    for step, (rewards, calls) in steps.items():
        mean = sum(rewards) / len(rewards)
        await checkpoints.save(LoopState(step, step, 0, [], 0, mean, **state), nothing)
        groups = [validated(i, *pair) for i, pair in enumerate(zip(rewards, calls, strict=True))]
        run.handle_groups(f"validation-{step:06d}", groups)
    run.flush()
    return run


BEST = ([0.9] * ROWS, [5, 6] * (ROWS // 2))


async def test_the_one_with_the_fewest_calls_is_named(tmp_path: Path) -> None:
    fewer = ([0.9] * (ROWS - 1) + [0.8], [3, 2] * (ROWS // 2))
    fewest = ([0.9] * (ROWS - 1) + [0.7], [1, 2] * (ROWS // 2))
    found = find_fewer_calls(await run_of(tmp_path, {4: BEST, 8: fewer, 12: fewest}))
    assert isinstance(found, FewerCallsFound)
    assert (found.cheaper_step, found.best_step, found.num_rows) == (12, 4, ROWS)
    assert (found.tool_calls, found.best_tool_calls) == (1.5, 5.5)
    assert found.reward_change == pytest.approx(-0.2 / ROWS)


@pytest.mark.parametrize(
    "other",
    [
        ([0.1, 0.2] * (ROWS // 2), [1, 2] * (ROWS // 2)),
        ([0.8] * ROWS, [5, 6] * (ROWS // 2)),
        ([0.8] * ROWS, [9, 2] * (ROWS // 2)),
    ],
    ids=["a worse reward", "as many calls", "calls that may be chance"],
)
async def test_no_other_is_named(tmp_path: Path, other: tuple[list[float], list[int]]) -> None:
    assert find_fewer_calls(await run_of(tmp_path, {4: BEST, 8: other})) is None


async def test_a_run_without_checkpoints_or_with_damaged_rollouts_has_none(tmp_path: Path) -> None:
    assert find_fewer_calls(RunFolder(tmp_path / "empty")) is None
    run = await run_of(tmp_path / "run", {4: BEST, 8: (BEST[0], [1] * ROWS)})
    assert find_fewer_calls(run) is not None
    (run.path / "rollouts" / "validation-000008.jsonl.zst").write_bytes(b"half")
    assert find_fewer_calls(run) is None
    (run.path / "checkpoints" / "step-000008" / "loop.json").write_text("{")
    assert find_fewer_calls(run) is None
