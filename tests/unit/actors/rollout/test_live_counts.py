"""Progress of the rollouts: counts of open groups, calls by tool, the slowest attempt and the newest trace."""

from __future__ import annotations

from dataclasses import replace

from agent_rft.actors.rollout.live_counts import RolloutProgress
from agent_rft.types import ToolCall, ToolResult, Turn
from tests.support.builders import group_request, rollout, task


def test_an_open_group_counts_its_rollouts_until_it_is_closed() -> None:
    board, request = RolloutProgress(), group_request(3, size=2)
    with board.track_group(request):
        board.record_end(request, rollout(request))
        assert board.num_ended("train", 3) == 1
        board.record_end(request, None)
        board.record_end(request, rollout(request))  # sampled again
        assert board.num_ended("train", 3) == 2
    assert board.num_ended("train", 3) == 0


def test_calls_and_errors_are_counted_by_tool_until_a_step_is_done() -> None:
    board, request = RolloutProgress(), group_request()
    calls = tuple(ToolCall(str(i), "cat" if i else "search", "{}") for i in range(3))
    results = tuple(ToolResult(str(i), "x", error="tool_error" if i == 1 else None) for i in range(3))
    with board.track_group(request):
        board.record_end(request, replace(rollout(request), turns=(Turn(2, 5, "text", calls, results),)))
    assert (dict(board.calls), dict(board.errors)) == ({"cat": 2, "search": 1}, {"cat": 1})
    assert board.newest_rollout is not None
    board.clear()
    assert not board.calls and not board.errors and board.newest_rollout is None


def test_the_slowest_attempt_is_the_oldest_in_flight() -> None:
    now = [0.0]
    board = RolloutProgress(lambda: now[0])
    assert board.slowest_attempt is None
    with board.track_attempt(task("1-a")):
        now[0] = 2.0
        with board.track_attempt(task("2-b")):
            now[0] = 5.0
            assert board.slowest_attempt == ("1-a", 5.0) and board.in_flight == 2
    assert board.slowest_attempt is None and board.in_flight == 0


def test_an_evaluation_is_waited_for_rather_than_training() -> None:
    board = RolloutProgress()
    with board.track_group(group_request(0)):
        assert board.purpose == "train"
        with board.track_group(group_request(0, purpose="validation")):
            assert board.purpose == "validation"
