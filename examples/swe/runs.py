"""Runs of a rollout's files in the sandbox: tests, terminal, linter, and the checks of the grader.

Each run gets a new sandbox, which contains only the files passed to the run and is deleted afterwards. A sandbox has no
network, 256 MiB of memory, 32 processes and five CPU seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import BoundedSemaphore, Lock, Semaphore
from typing import Final

from agent_rft import UntrustedRun, run_untrusted
from examples.swe.projects import Check, Project

LIMITS: Final[dict[str, float]] = {"wall_s": 15, "cpu_s": 5, "memory_bytes": 256 << 20, "output_bytes": 16_384}
TERMINAL_LIMITS: Final[dict[str, float]] = {**LIMITS, "wall_s": 5}
"""Shorter time limit, because a sleeping terminal also occupies a sandbox that other rollouts may need."""
WAIT_S: Final = 5.0
"""Seconds that a call waits for a sandbox or a workspace. The server then refuses the call to free its thread."""
MAX_OUTPUT_CHARS: Final = 1_500
"""Characters from the end of a run's output that the model sees."""
TESTS: Final = """\
import sys, unittest
unittest.main(module=None, argv=["tests", *sys.stdin.read().split()])
"""
CHECKS: Final = """\
import json, sys
task = json.load(sys.stdin)
names, results = {}, []
exec(task["setup"], names)
for expression in task["expressions"]:
    try:
        results.append(repr(eval(expression, names)))
    except Exception as error:
        results.append("raises " + type(error).__name__)
print()
print(json.dumps(results))
"""
TERMINAL: Final = """\
import code, json, sys
console = code.InteractiveConsole()
*before, last = json.load(sys.stdin)
for text in before:
    console.runsource(text, "<terminal>", "exec")
for output in (sys.stdout, sys.stderr):
    print(MARK, file=output, flush=True)
console.runsource(last, "<terminal>", "exec")
"""
LINT: Final = (Path(__file__).parent / "lint.py").read_text("utf-8")
Run = Callable[[str, str, Mapping[str, str], Mapping[str, float]], UntrustedRun]
_AT_ONCE: Final = BoundedSemaphore(max(2, os.cpu_count() or 2))


class Busy(Exception):
    """The resource is in use by other calls; the same call may succeed later."""


@contextmanager
def held(place: Lock | Semaphore, wait_s: float = WAIT_S) -> Iterator[None]:
    """Context manager that holds a lock or a semaphore.

    Raises:
        Busy: The lock or semaphore was not available within `wait_s`.
    """
    if not place.acquire(timeout=wait_s):
        raise Busy
    try:
        yield
    finally:
        place.release()


def sandboxed(
    code: str,
    stdin: str,
    files: Mapping[str, str],
    limits: Mapping[str, float],
    places: Semaphore = _AT_ONCE,
    wait_s: float = WAIT_S,
) -> UntrustedRun:
    """Run code in a sandbox. Concurrent runs are limited to the number of CPU cores; more runs wait.

    Raises:
        Busy: No sandbox was available within `wait_s`.
    """
    with held(places, wait_s):
        return run_untrusted(code, stdin, files, limits)


def run_tests(files: Mapping[str, str], names: Sequence[str], run: Run = sandboxed) -> str:
    """Run the tests `names` with unittest, and return the end of its output."""
    done = run(TESTS, " ".join(names), files, LIMITS)
    return _ended(done, f"{done.stdout}{done.stderr}")


def run_terminal(files: Mapping[str, str], texts: Sequence[str], mark: str, run: Run = sandboxed) -> str:
    """Run all inputs of a Python terminal. Return the last input's output, which follows a printed line `mark`."""
    done = run(f"MARK = {mark!r}\n{TERMINAL}", json.dumps(texts), files, TERMINAL_LIMITS)
    return _ended(done, "".join(text.partition(f"{mark}\n")[2] for text in (done.stdout, done.stderr)))


def run_lint(files: Mapping[str, str], paths: Sequence[str], run: Run = sandboxed) -> list[str]:
    """Return the linter's findings in the files at `paths`, which are parsed but not run."""
    done = run(LINT, "\n".join(paths), files, LIMITS)
    stopped = [f"{paths[-1]}:1: the linter cannot read these files"] if done.exit else []
    return done.stdout.splitlines() + stopped


def failed_checks(project: Project, files: Mapping[str, str], run: Run = sandboxed) -> list[Check]:
    """Return the checks that the package in `files` fails. The sandbox gets no other files and no expected results."""
    package = {path: text for path, text in files.items() if project.is_source(path)}
    task = {"setup": project.setup, "expressions": [check.expression for check in project.checks]}
    try:
        done = run(CHECKS, json.dumps(task), package, LIMITS)
        results = json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])
    except (ValueError, RecursionError):  # not the output of the checks, or files that cannot be written
        results = None
    if not isinstance(results, list) or len(results) != len(project.checks):
        return list(project.checks)
    return [check for check, result in zip(project.checks, results, strict=True) if result != check.result]


def _ended(done: UntrustedRun, output: str) -> str:
    why = "too much memory" if done.over_memory else "too slow" if done.timed_out else ""
    return output[-MAX_OUTPUT_CHARS:] + (f"\nended: {why}" if why else "") or "(no output)"
