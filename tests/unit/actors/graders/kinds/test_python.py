"""A python grader's source, and the choice of its sandbox: what can be checked without running anything."""

from __future__ import annotations

import platform
import sys

import pytest

from actors.graders.kinds.python import python_source_problems
from actors.sandbox import seccomp
from actors.sandbox.start import SandboxReport, choose_way
from trainer.errors import UserError

# -- which sandbox -----------------------------------------------------------------------------------------------------


def test_without_a_sandbox_the_error_says_what_is_missing_and_what_to_do() -> None:
    nothing = SandboxReport(None, {}, {"bubblewrap": "bwrap is not installed", "namespaces": "not permitted"})
    with pytest.raises(UserError) as error:
        choose_way(nothing, unsandboxed=False)
    for words in ("bwrap is not installed", "not permitted", "apt-get install bubblewrap", "unsandboxed_python: true"):
        assert words in error.value.message


def test_unsandboxed_python_counts_only_without_a_sandbox() -> None:
    assert choose_way(SandboxReport(None), unsandboxed=True) == "none"
    assert choose_way(SandboxReport("namespaces"), unsandboxed=True) == "namespaces"


def test_the_filter_ends_with_allow_and_knows_both_machines() -> None:
    for machine, denied in seccomp.DENIED.items():
        program = seccomp.program(machine)
        assert len(program) % 8 == 0 and program.endswith(seccomp.ALLOW.to_bytes(4, sys.byteorder))
        assert set(denied) >= {"socket", "ptrace", "mount", "bpf", "keyctl", "io_uring_setup", "userfaultfd", "unshare"}
        assert len(set(denied.values())) == len(denied)
    assert platform.machine() in seccomp.DENIED


# -- the source --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def grade(sample, item)\n    return 1", "line 1: expected ':'"),
        ("x = 1\n\ndef grade(:", "line 3: invalid syntax"),
        ("def score(sample, item): return 1", "it does not define a function grade"),
        ("def grade(sample): return 1", "line 1: grade is called with two arguments"),
        ("def grade(a, b, c): return 1", "line 1: grade is called with two arguments"),
        ("def grade(a, b, *, c): return 1", "line 1: grade is called with two arguments"),
        ("async def grade(sample, item): return 1", "line 1: grade must be a plain function"),
        ("x = '\0'", "it cannot be parsed"),
        ("(" * 50_000, "line 1: too many nested parentheses"),
        ("-" * 100_000 + "1", "it cannot be parsed"),
    ],
)
def test_mistakes_in_the_source_are_found_without_running_it(source: str, problem: str) -> None:
    (found,) = python_source_problems(source)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "source",
    [
        "def grade(sample, item): return 1",
        "def grade(sample, item, /, strict=False): return '\\d'",
        "def grade(*values, **more): return 1",
        "try:\n    from fast import grade\nexcept ImportError:\n    def grade(sample, item): return 1",
        "grade = lambda sample, item: 1",
        "raise SystemExit('never run')\ndef grade(s, i): return 1",
    ],
)
def test_sources_that_may_be_valid_pass(source: str) -> None:
    assert python_source_problems(source) == []
