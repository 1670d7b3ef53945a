"""The grade of a workspace: whether the bug is gone, how, and whether tests and linter were run before the end.

Nothing is taken from the model's answer. What ran, and what the files are now, the server knows itself.
"""

from __future__ import annotations

from typing import Final

from examples.swe import runs
from examples.swe.workspace import Workspace

STYLE, HABIT = 0.2, 0.1
FREE_LINES: Final = 6
"""Changed lines, removed and added ones, that cost nothing; most bugs need two."""
PER_LINE, PER_FINDING = 0.05, 0.25
Verdict = tuple[float, str]


def untouched(workspace: Workspace) -> Verdict:
    """1 if the tests are as they were, and all other files that are not of the package; else 0."""
    touched = [path for path in workspace.changed if not workspace.project.is_source(path)]
    return float(not touched), f"changed outside of the package: {', '.join(touched) or 'nothing'}"


def passed(workspace: Workspace) -> Verdict:
    """1 if all tests pass, those that the model never saw too, and nothing but the package was changed; else 0."""
    stayed, why = untouched(workspace)
    if not stayed:
        return 0.0, why
    failed = dict.fromkeys(
        check.test for check in runs.failed_checks(workspace.project, workspace.files, workspace.run)
    )
    return (0.0, f"failed: {', '.join(failed)}") if failed else (1.0, "fixed")


def style(workspace: Workspace) -> Verdict:
    """From 0 to 1, by code: less for a long change and for each new finding of the linter."""
    lines, new = workspace.num_changed_lines(), _num_new_findings(workspace)
    score = 1 - PER_LINE * max(0, lines - FREE_LINES) - PER_FINDING * new
    return max(0.0, score), f"{lines} changed lines, {new} new findings"


def habit(workspace: Workspace) -> Verdict:
    """1 if both the tests and the linter ran after the last change; by the server's own record."""
    left_out = sorted({"run_tests", "lint"} - workspace.done_since_change)
    return float(not left_out), f"not run after the last change: {', '.join(left_out) or 'nothing'}"


def grade(workspace: Workspace) -> Verdict:
    """The whole grade without a judge; 0 unless the bug is gone."""
    fixed, why = passed(workspace)
    if not fixed:
        return 0.0, why
    (styled, how), (ran, what) = style(workspace), habit(workspace)
    return 1 - STYLE * (1 - styled) - HABIT * (1 - ran), f"{why}; {how}; {what}"


def _num_new_findings(workspace: Workspace) -> int:
    """How many findings the changed files of the package have that they did not have before."""
    changed = [path for path in workspace.changed if workspace.project.is_source(path)]
    sides = {"before": workspace.original, "after": workspace.files}
    files = {f"{side}/{path}": of[path] for side, of in sides.items() for path in changed if path in of}
    found = runs.run_lint(files, list(files), workspace.run) if files else []
    return max(0, sum(1 if line.startswith("after/") else -1 for line in found))
