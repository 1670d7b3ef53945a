"""SIGINT, SIGTERM and SIGHUP stop `train`, `eval`, `ready` and `serve`, even if nobody reads their output.

Under `nohup` SIGHUP does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from tests.support.paths import ROOT

NOHUP, NOT_STOPPED = "nohup", 98  # as in tests.support.stopped_runs, which takes seconds to import
Outputs = tuple[str, str]
"""The states of standard output and standard error: `unread` is a pipe whose reader has ended."""
OUTPUTS = (("unread", "unread"), ("closed", "closed"), ("open", "open"))
COMMANDS = ("train", "eval", "ready", "serve")
NUMBERS = ("SIGINT", "SIGTERM", "SIGHUP")
ALWAYS = {
    (command, number, OUTPUTS[(i + j) % len(OUTPUTS)])
    for (i, command), (j, number) in product(enumerate(COMMANDS), enumerate(NUMBERS))
}
"""Each pair of a command, a signal and outputs is in a variant of these, which always run; the others are nightly."""
STOPPED = [
    pytest.param(*variant, marks=() if variant in ALWAYS else pytest.mark.nightly)
    for variant in product(COMMANDS, NUMBERS, OUTPUTS)
]
NOT_TOUCHED = list(product(COMMANDS, (NOHUP,), OUTPUTS))
STUCK = list(product(("stuck",), ("SIGINT", "SIGTERM"), OUTPUTS[:1]))
CLOSING = list(product(("closing",), NUMBERS, OUTPUTS[1:2]))


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
    """How each command ended, by its variant: those of the tests that were selected, in one process."""
    tests = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    variants = [tuple(test.callspec.params[name] for name in ("command", "number", "outputs")) for test in tests]
    command = [sys.executable, "-m", "tests.support.stopped_runs", str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(command, input=json.dumps(variants), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(variants, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("command", "number", "outputs"), STOPPED)
def test_a_signal_ends_a_command_in_order(
    ended: dict[Any, dict[str, Any]], command: str, number: str, outputs: Outputs
) -> None:
    found = ended[command, number, outputs]

    assert found["code"] == (0 if command == "serve" else 130), found
    if command != "serve":
        assert (found["outcome"], found["has_report"]) == ("stopped", True), found
    if command == "train":
        assert found["checkpoint"] is not None and found["checkpoint"] < found["steps"], found
    assert ("stopping gracefully" in found["text"]) == (outputs[1] == "open"), found
    assert (" --resume " in found["text"]) == (command == "train" and outputs[0] == "open"), found
    assert "Traceback" not in found["text"], found


@pytest.mark.parametrize(("command", "number", "outputs"), NOT_TOUCHED)
def test_a_command_under_nohup_goes_on_after_a_hangup(
    ended: dict[Any, dict[str, Any]], command: str, number: str, outputs: Outputs
) -> None:
    found = ended[command, number, outputs]

    assert found["code"] == (NOT_STOPPED if command == "serve" else 0), found
    assert found["outcome"] == (None if command == "serve" else "done"), found
    assert found["checkpoint"] == (found["steps"] if command == "train" else None), found
    assert "stopping" not in found["text"] and "Traceback" not in found["text"], found


@pytest.mark.parametrize(("command", "number", "outputs"), STUCK)
def test_a_second_signal_ends_a_command_that_goes_on(
    ended: dict[Any, dict[str, Any]], command: str, number: str, outputs: Outputs
) -> None:
    assert ended[command, number, outputs]["code"] == 130


@pytest.mark.parametrize(("command", "number", "outputs"), CLOSING)
def test_a_command_that_is_done_closes_its_run_even_if_a_signal_arrives(
    ended: dict[Any, dict[str, Any]], command: str, number: str, outputs: Outputs
) -> None:
    found = ended[command, number, outputs]
    assert (found["code"], found["outcome"], found["has_report"]) == (0, "done", True), found
