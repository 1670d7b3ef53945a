"""Grader of a workspace. It scores the bug fix, its style, and whether tests and linter ran after the last change.

The grade does not depend on the model's answer, only on the server's records of the files and of the tool calls.
"""

from __future__ import annotations

from typing import Final

from examples.swe import runs
from examples.swe.workspace import Workspace

STYLE, HABIT = 0.2, 0.1
FREE_LINES: Final = 6
"""Removed and added lines that do not lower the grade. Fixing most bugs takes two: one removed and one added line."""
PER_LINE, PER_FINDING = 0.05, 0.25
Verdict = tuple[float, str]
"""Score from 0 to 1, and its reason."""


def untouched(workspace: Workspace) -> Verdict:
    """Return 1 if no file outside the package, such as a test, was changed, or else 0."""
    touched = [path for path in workspace.changed if not workspace.project.is_source(path)]
    return float(not touched), f"changed outside of the package: {', '.join(touched) or 'nothing'}"


def passed(workspace: Workspace) -> Verdict:
    """Return 1 if all tests pass, including held-out tests, and only the package was changed, or else 0."""
    stayed, why = untouched(workspace)
    if not stayed:
        return 0.0, why
    failed = dict.fromkeys(
        check.test for check in runs.failed_checks(workspace.project, workspace.files, workspace.run)
    )
    return (0.0, f"failed: {', '.join(failed)}") if failed else (1.0, "fixed")


def style(workspace: Workspace) -> Verdict:
    """Return a style score from 0 to 1. Many changed lines and each new linter finding lower it."""
    lines, new = workspace.num_changed_lines(), _num_new_findings(workspace)
    score = 1 - PER_LINE * max(0, lines - FREE_LINES) - PER_FINDING * new
    return max(0.0, score), f"{lines} changed lines, {new} new findings"


def habit(workspace: Workspace) -> Verdict:
    """Return 1 if the model ran both the tests and the linter after its last change, or else 0."""
    left_out = sorted({"run_tests", "lint"} - workspace.done_since_change)
    return float(not left_out), f"not run after the last change: {', '.join(left_out) or 'nothing'}"


def grade(workspace: Workspace) -> Verdict:
    """Return the complete grade by code, without a judge; 0 if the bug is not fixed."""
    fixed, why = passed(workspace)
    if not fixed:
        return 0.0, why
    (styled, how), (ran, what) = style(workspace), habit(workspace)
    return 1 - STYLE * (1 - styled) - HABIT * (1 - ran), f"{why}; {how}; {what}"


def _num_new_findings(workspace: Workspace) -> int:
    """Return the increase in linter findings in the changed package files; 0 if their number fell."""
    changed = [path for path in workspace.changed if workspace.project.is_source(path)]
    sides = {"before": workspace.original, "after": workspace.files}
    files = {f"{side}/{path}": of[path] for side, of in sides.items() for path in changed if path in of}
    found = runs.run_lint(files, list(files), workspace.run) if files else []
    return max(0, sum(1 if line.startswith("after/") else -1 for line in found))
