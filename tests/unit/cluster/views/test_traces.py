import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.traces import print_traces, split_reasoning, summarize_rollout, trace_json
from agent_rft.errors import UserError
from agent_rft.types import Rollout, ToolCall, ToolResult, Turn
from tests.support.builders import group_request, rollout, untrained
from tests.support.traces import select_traces


@pytest.fixture
def run(tmp_path, synthetic):
    return synthetic.run(tmp_path / "run", steps=3, total=3, validation_every=3)


def printed(traces):
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_traces(traces, console)
    return console.file.getvalue()


def test_traces_are_selected_by_step_or_name_and_default_to_the_newest_file(run):
    assert {t.name for t in select_traces(run, name="step-000002")} == {"step-000002"}
    assert {t.name for t in select_traces(run, name="validation-000003")} == {"validation-000003"}
    assert {t.name for t in select_traces(run, name="step-2")} == {"step-000002"}
    assert {t.name for t in select_traces(run)} == {"test-after"}
    assert len(select_traces(run, name="step-000001")) == 6 * 4


def test_a_row_or_a_trace_is_searched_in_all_files(run):
    by_line, by_id = (select_traces(run, row=row) for row in ("1", "1-00000001"))
    assert [t.outcome.trace_id for t in by_line] == [t.outcome.trace_id for t in by_id]
    assert len({t.name for t in by_line}) == 2 + 2 + 3
    wanted = select_traces(run, name="step-000002")[3].outcome.trace_id
    (found,) = select_traces(run, trace=wanted[:15])
    assert found.outcome.trace_id == wanted and found.name == "step-000002"


def test_worst_and_best_go_by_grade_and_skip_discarded_rollouts(run):
    worst, best = select_traces(run, name="step-000003", worst=4), select_traces(run, name="step-000003", best=4)
    assert len(worst) == len(best) == 4
    assert max(t.outcome.grade.value for t in worst) <= min(t.outcome.grade.value for t in best)
    everything = select_traces(run, name="step-000003", worst=1000)
    assert len(everything) == 23 and all(isinstance(t.outcome, Rollout) for t in everything)


def test_an_unknown_name_is_refused_with_the_known_ones(run, tmp_path):
    with pytest.raises(UserError, match=r"step-000009.*test-before"):
        select_traces(run, name="step-000009")


def test_a_trace_is_printed_from_prompt_to_answer(run):
    (trace,) = select_traces(run, name="step-000003", best=1)
    text = printed([trace])
    rollout = trace.outcome
    for part in (
        trace.outcome.trace_id,
        "what was net income",
        "grade 1.000 (exact 1.000",
        "reward ",
        "policy version 2-3",
        "I look at",
        '→ search {"query": "company 0"}',
        f"{rollout.results[0].latency_s:.2f} s",
        "more characters",
        f"answer {rollout.answer}",
    ):
        assert part in text or part.replace("search", rollout.calls[0].name) in text, part


def test_a_discarded_rollout_shows_its_reason(run):
    text = printed(select_traces(run, name="step-000003", row="1"))
    assert "tool_failed: search answered 503" in text
    assert text.count("what was net income") == 1  # rollouts of one row share the prompt


def test_text_from_models_and_tools_cannot_control_the_terminal(tmp_path, synthetic):
    run = synthetic.run(tmp_path, steps=1, total=1, hostile=True)
    text = printed(select_traces(run, name="test-after"))
    assert "\x1b" not in text and "[bold]red[/bold]" in text


def test_a_rollout_of_several_segments_says_so() -> None:
    one = rollout(group_request())
    assert "3 of 5 tokens sampled ·" in summarize_rollout(one)
    assert "grade 1.000 ·" in summarize_rollout(one)
    assert "grade 1.000, not trained on ·" in summarize_rollout(untrained(one))
    assert "6 of 10 tokens sampled in 2 segments ·" in summarize_rollout(replace(one, segments=one.segments * 2))


def test_json_contains_the_whole_rollout(run):
    rollout, lost = (json.loads(trace_json(t)) for t in select_traces(run, name="step-000003", row="1")[-2:])
    assert (
        rollout["name"] == "step-000003" and rollout["kind"] == "rollout" and rollout["turns"] and rollout["segments"]
    )
    assert rollout["request"]["task"]["item"]["reference_answer"] == "1001"
    assert lost["kind"] == "discarded" and lost["reason"] == "tool_failed"


def test_the_text_of_a_turn_leaves_out_tool_calls_unless_malformed():
    turn = Turn(0, 9, "<think>\nhm\n</think>\nLooking.\n<tool_call>\n{}\n</tool_call>", (ToolCall("c", "cat", "{}"),))
    assert split_reasoning(replace(turn, results=(ToolResult("c", "x"),))) == ("hm", "Looking.")
    broken = replace(turn, results=(ToolResult("c", "x", "malformed_call"),))
    assert "<tool_call>" in split_reasoning(broken)[1]
    assert split_reasoning(Turn(0, 9, "42")) == ("", "42")


def test_finding_nothing_is_an_error(run, tmp_path):
    with pytest.raises(UserError, match=r"contains no rollouts\. Give the folder"):
        select_traces(RunFolder(tmp_path / "typo"))
    with pytest.raises(UserError, match="no rollout with trace 'trace_x' in step-000001"):
        select_traces(run, name="step-000001", trace="trace_x")
