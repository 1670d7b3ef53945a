"""Writes the rows in `data/` in about two minutes: `python -m examples.swe.make_data [FOLDER]`.

Each row is a project with one bug, which fails at least one visible test and one held-out test. Every run writes the
same rows. `--warm-start FILE` writes conversations about other bugs of the training projects instead.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from examples.common.rows import turn, write_rows
from examples.swe import runs
from examples.swe.bugs import Bug, bugs
from examples.swe.projects import TEST_PROJECTS, Project, names, project
from examples.swe.workspace import TOOLS, Workspace

DATA: Final = Path(__file__).parent / "data"
PER_PROJECT: Final = 14
NUM_STEP: Final = 4
NUM_WARM_START: Final = 16
MAX_FAILING: Final = 3
SYSTEM: Final = {
    "role": "system",
    "content": "Make the failing tests pass. Change the package only, not the tests. Before you answer, run all tests "
    "and the linter. Then say in one sentence what was wrong.",
}
Found = tuple[Project, Bug, tuple[str, ...]]
"""Project, bug, and the names of the visible tests that fail because of the bug."""


def row(found: Found) -> dict[str, Any]:
    """Return the row of a task. Tools and grader get the complete row as `item`; the model sees only the messages."""
    some, bug, failing = found
    more = f" and {len(failing) - MAX_FAILING} more" if len(failing) > MAX_FAILING else ""
    return {
        "messages": [
            SYSTEM,
            {"role": "user", "content": f"Package {some.name}. Failing: {', '.join(failing[:MAX_FAILING])}{more}."},
        ],
        "tools": [tool.schema() for tool in TOOLS.values()],
        "project": some.name,
        "failing": list(failing),
        "bug": bug.as_row(),
    }


def bugs_of(some: Project) -> Iterator[Found]:
    """Yield, in a fixed order, the bugs that fail a visible and a held-out test but do not fail all checks."""
    made = [bug for path, source in some.files.items() if some.is_source(path) for bug in bugs(path, source)]
    for bug in sorted(made, key=lambda bug: hashlib.sha256(f"{bug.path} {bug.line} {bug.new}".encode()).digest()):
        failed = runs.failed_checks(some, bug.in_files(dict(some.files)))
        seen = tuple(dict.fromkeys(check.test for check in failed if check.test.startswith(some.tests)))
        if seen and len(seen) < len(failed) < len(some.checks) and any(c.test.startswith("held_out") for c in failed):
            yield some, bug, seen


def conversation(found: Found) -> dict[str, Any]:
    """Return a row for the SFT warm-up: the agent reads the file, fixes the bug, runs tests and linter, and answers."""
    _, bug, _ = found
    task = row(found)
    workspace = Workspace(task)
    calls: list[tuple[str, Mapping[str, Any]]] = [
        ("read_file", {"path": bug.path, "start": max(1, bug.line - 5), "end": bug.line + 5}),
        ("edit", {"path": bug.path, "start": bug.line, "end": bug.line, "text": bug.old}),
        ("run_tests", {}),
        ("lint", {}),
    ]
    for number, (tool, arguments) in enumerate(calls):
        task["messages"] += turn([(tool, arguments, TOOLS[tool].call(workspace, arguments))], first=number)
    answer = {"role": "assistant", "content": f"Line {bug.line} of {bug.path} was wrong."}
    return {"messages": [*task["messages"], answer], "tools": task["tools"]}


def write_data(folder: Path) -> None:
    """Write the rows for training, for the test and for `job_small.yaml`; `folder` is created if necessary."""
    found = {name: list(islice(bugs_of(project(name)), PER_PROJECT)) for name in names()}
    train = [
        row(one) for some in zip(*(found[n] for n in names() if n not in TEST_PROJECTS), strict=False) for one in some
    ]
    test = [row(one) for some in zip(*(found[n] for n in TEST_PROJECTS), strict=False) for one in some]
    for name, rows in (("train", train), ("test", test), ("step", train[:NUM_STEP])):
        write_rows(folder / f"{name}.jsonl", rows)


def write_warm_start(path: Path) -> None:
    """Write SFT conversations about bugs of the training projects that are not in the training rows."""
    others = [
        list(islice(bugs_of(project(n)), PER_PROJECT, PER_PROJECT + 4)) for n in names() if n not in TEST_PROJECTS
    ]
    write_rows(path, [conversation(one) for some in others for one in some][:NUM_WARM_START])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.swe.make_data", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help="default: data/")
    parser.add_argument("--warm-start", type=Path, metavar="FILE", help="write conversations to this file instead")
    options = parser.parse_args()
    if options.warm_start is not None:
        write_warm_start(options.warm_start)
    else:
        write_data(options.folder)


if __name__ == "__main__":
    main()
