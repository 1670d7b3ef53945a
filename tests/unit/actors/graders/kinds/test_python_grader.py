"""A python grader's source, and the choice of its sandbox: what can be checked without running anything."""

from __future__ import annotations

import errno
import platform
import struct
import sys

import pytest

from agent_rft.actors.graders.kinds.python_grader import find_missing_imports, python_source_problems
from agent_rft.actors.sandbox import seccomp
from agent_rft.actors.sandbox.sandbox_config import GRADER_PACKAGES, find_importable_modules
from agent_rft.actors.sandbox.sandbox_start import SandboxFailed, SandboxReport, choose_sandbox_method
from agent_rft.errors import UserError
from tests.support.paths import ROOT

# -- which sandbox -----------------------------------------------------------------------------------------------------


def test_without_a_sandbox_the_error_says_what_is_missing_and_what_to_do() -> None:
    nothing = SandboxReport(None, {}, {"bubblewrap": "bwrap is not installed", "namespaces": "not permitted"})
    with pytest.raises(UserError) as error:
        choose_sandbox_method(nothing, unsandboxed=False)
    for words in ("bwrap is not installed", "not permitted", "apt-get install bubblewrap", "unsandboxed_python: true"):
        assert words in error.value.message


def test_unsandboxed_python_counts_only_without_a_sandbox() -> None:
    assert choose_sandbox_method(SandboxReport(None), unsandboxed=True) == "none"
    assert choose_sandbox_method(SandboxReport("namespaces"), unsandboxed=True) == "namespaces"
    with pytest.raises(SandboxFailed, match="in time"):  # it may have one: no reason to go without
        choose_sandbox_method(
            SandboxReport(None, {}, {"namespaces": "not loaded within 60 s"}, is_late=True), unsandboxed=True
        )


def test_the_filter_ends_with_denial_and_knows_both_machines() -> None:
    forbidden = {"socket", "connect", "sendmsg", "ptrace", "mount", "bpf", "keyctl", "io_uring_setup", "memfd_create"}
    for machine in seccomp.MACHINES:
        program, numbers = (
            seccomp.build_filter(machine),
            seccomp.allowed_calls(machine) | seccomp.checked_calls(machine),
        )
        assert len(program) % 8 == 0 and program.endswith(seccomp.DENY.to_bytes(4, sys.byteorder))
        assert len(set(numbers.values())) == len(numbers) and not forbidden & set(numbers)
    assert platform.machine() in seccomp.MACHINES


def outcome(machine: str, number: int, *arguments: int, keeps_sigchld: bool = False) -> int:
    """What the filter does with a call: this runs its program as the kernel would."""
    data = struct.pack("=IIQ6Q", number, seccomp.AUDIT_ARCH[machine], 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", seccomp.build_filter(machine, keeps_sigchld=keeps_sigchld)))
    value = at = 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        if code == seccomp.RETURN:
            return int(operand)
        if code == seccomp.LOAD:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == seccomp.AND:
            value &= operand
        else:
            tests = {seccomp.EQUAL: value == operand, seccomp.GREATER_OR_EQUAL: value >= operand}
            at += yes if tests.get(code, bool(value & operand)) else no


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_decides_by_number_and_argument_on_both_machines(machine: str) -> None:
    numbers = seccomp.checked_calls(machine)
    for number in set(range(seccomp.LAST_KNOWN + 1)) - set(numbers.values()):
        allowed = number in seccomp.allowed_calls(machine).values()
        assert outcome(machine, number) == (seccomp.ALLOW if allowed else seccomp.DENY), number
    missing = seccomp.ERRNO | errno.ENOSYS
    assert outcome(machine, 1000) == outcome(machine, numbers["clone3"]) == missing
    good = {"socketpair": (1,), "mmap": (0, 1, 3, 0x22), "clone": (0x11,), "fcntl": (0, 3), "sendto": (0, 0, 0, 0x4000)}
    bad = {"socketpair": (30,), "mmap": (0, 1, 3, 0x21), "clone": (0x10000011,), "fcntl": (0, 1031), "prctl": (4,),
           "sendto": (0, 0, 0, 1), "prlimit64": (1,)}  # fmt: skip
    assert {outcome(machine, numbers[name], *given) for name, given in good.items()} == {seccomp.ALLOW}
    assert {outcome(machine, numbers[name], *given) for name, given in bad.items()} == {seccomp.DENY}
    assert outcome(machine, numbers["ioctl"], 0, 0x5412) == seccomp.ERRNO | errno.ENOTTY
    assert outcome(machine, numbers["fcntl"], 0, 6) == seccomp.ERRNO  # 0: it succeeds and does nothing
    action, sigchld = numbers["rt_sigaction"], (17, 1 << 32)
    assert outcome(machine, action, *sigchld) == seccomp.ALLOW
    assert outcome(machine, action, *sigchld, keeps_sigchld=True) == seccomp.DENY
    assert outcome(machine, action, 17, 0x1000, keeps_sigchld=True) == seccomp.DENY
    assert outcome(machine, action, 17, 0, keeps_sigchld=True) == seccomp.ALLOW  # it only asks
    assert outcome(machine, action, 15, 1, keeps_sigchld=True) == seccomp.ALLOW


# -- the source --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def grade(sample, item)\n    return 1", "line 1: expected ':'"),
        ("x = 1\n\ndef grade(:", "line 3: invalid syntax"),
        ("def score(sample, item): return 1", "the source does not define a function grade"),
        ("def grade(sample): return 1", "line 1: grade is called with two arguments"),
        ("def grade(a, b, c): return 1", "line 1: grade is called with two arguments"),
        ("def grade(a, b, *, c): return 1", "line 1: grade is called with two arguments"),
        ("async def grade(sample, item): return 1", "line 1: grade must be a plain function"),
        (
            "from agent_rft_grader import run_untrusted",
            "the source imports agent_rft_grader, which was removed in 0.2.0",
        ),
        ("x = '\0'", "the source cannot be parsed"),
        ("(" * 50_000, "line 1: too many nested parentheses"),
        ("-" * 40_000 + "1", "the source cannot be parsed"),
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


LISTED = next(name for name, module in GRADER_PACKAGES.items() if module not in find_importable_modules())
"""A package that OpenAI lists and that is not installed here."""


@pytest.mark.parametrize(
    ("statement", "fix"),
    [
        ("import torch", "import only the standard library and jsonschema, nltk, numpy, "),
        ("import torch.nn as nn", "or use an endpoint grader"),
        ("from torch import nn", "or use an endpoint grader"),
        ("def f():\n    with open('a'):\n        import torch", "or use an endpoint grader"),
        (f"import {GRADER_PACKAGES[LISTED]}.x", f"install the package {LISTED} on all machines that run graders"),
    ],
)
def test_imports_that_no_sandbox_has_are_found_with_the_fix(statement: str, fix: str) -> None:
    ((problem, found),) = find_missing_imports(f"{statement}\ndef grade(sample, item): return 1")
    name = GRADER_PACKAGES[LISTED] if LISTED in fix else "torch"
    assert problem == f"the source imports {name}, which the sandbox does not contain" and fix in found


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np, json, os.path, sympy, rapidfuzz, rouge_score, jsonschema, pydantic, yaml, nltk",
        "import mpmath, typing_extensions, regex",  # dependencies
        "from agent_rft import run_untrusted",
        "import grader",
        "from . import a",
        "try:\n    import torch\nexcept ImportError:\n    torch = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "import torch torch",
        "x = '\0'",
        "(" * 50_000,
        "import torch  # " + "x" * 50_000,
    ],
)
def test_imports_that_may_work_are_not_reported(source: str) -> None:
    assert find_missing_imports(source) == []


def test_the_manual_lists_the_importable_packages() -> None:
    text = " ".join((ROOT / "docs" / "graders.md").read_text().split())
    *some, last = GRADER_PACKAGES
    assert f"{', '.join(some)} and {last}." in text
    installed = [name for name, module in GRADER_PACKAGES.items() if module in find_importable_modules()]
    assert f"A standard installation contains these packages: {', '.join(installed)}." in text
