"""A file graded before and after training: each row is compared with itself."""

from __future__ import annotations

from dataclasses import replace

from agent_rft.cluster.views.before_after import compare_before_after, paired_changes
from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.types import Grade, Group
from tests.support.builders import group, group_request


def row(index: int, grade: float, held_out: float | None) -> Group:
    """A row with one rollout; None: its held-out grader failed, or there is none."""
    found = group(group_request(index, 1, "test"), [grade])
    graded = replace(found.rollouts[0], grade=Grade(grade, held_out=held_out))
    return replace(found, rollouts=(graded,))


def test_the_held_out_grade_is_paired_over_the_rows_that_have_it_in_both() -> None:
    before = [row(0, 0.5, 0.25), row(1, 0.5, 0.75), row(2, 0.5, 1.0)]
    after = [row(0, 1.0, 1.0), row(1, 0.75, 0.5), row(2, 1.0, None)]
    paired = paired_changes(before, after)
    assert {name: (round(interval.mean, 3), interval.n) for name, interval in paired.items()} == {
        "grade": (0.417, 3),
        "held_out": (0.25, 2),
    }
    changes = {
        change.name: change
        for change in compare_before_after(summarize(before, 1, 1.0), summarize(after, 1, 1.0), paired)
    }
    assert changes["held_out"].change == "+0.250" and changes["held_out"].change_bounds.startswith("[")
    assert changes["grade"].change == "+0.417"


def test_there_is_no_held_out_grade_without_a_held_out_grader() -> None:
    before, after = [row(0, 0.5, None)], [row(0, 1.0, None)]
    assert list(paired_changes(before, after)) == ["grade"]
    changes = compare_before_after(summarize(before, 1, 1.0), summarize(after, 1, 1.0), paired_changes(before, after))
    assert "held_out" not in {change.name for change in changes}
