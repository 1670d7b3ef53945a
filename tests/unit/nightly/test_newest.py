"""The report of an upstream's newest release: passed, failed at which step, or not run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.nightly.newest import Result, check


class Commands:
    """Stands for the shell: the index has `newest`, and the command that contains `fails` fails."""

    def __init__(self, newest: str, fails: str = "nothing") -> None:
        self._newest = newest
        self._fails = fails
        self.ran: list[str] = []

    def __call__(self, command: Sequence[str], text: str) -> Result:
        self.ran.append(" ".join(command))
        if self._fails in self.ran[-1]:
            return Result(1, "started\nthe last line\n\n")
        return Result(0, f"{text}=={self._newest}\n" if text else "")


def test_a_newer_release_is_installed_over_the_pins_and_tested() -> None:
    commands = Commands("2.61.0")
    assert check("ray", "2.60.0", commands) == "ray==2.61.0: passed (pinned: 2.60.0)"
    _, remove, setup, install, tests = commands.ran
    assert remove == "rm -rf build/newest/ray"
    assert setup == "make setup VENV=build/newest/ray"
    assert install.endswith("--python build/newest/ray/bin/python ray[default,serve]==2.61.0")
    assert tests.startswith("build/newest/ray/bin/python -m pytest tests/ray ")


def test_the_pinned_release_is_not_tested_again() -> None:
    commands = Commands("2.60.0")
    assert check("ray", "2.60.0", commands) == "ray==2.60.0: not run, as it is the pinned release"
    assert len(commands.ran) == 1


@pytest.mark.parametrize(
    ("fails", "what", "num_commands"),
    [
        ("make setup", "installing the pinned packages", 3),
        ("pip install", "installing the release", 4),
        ("pytest", "tests/ray", 5),
    ],
)
def test_a_release_that_breaks_something_is_reported_with_the_last_line(
    fails: str, what: str, num_commands: int
) -> None:
    commands = Commands("2.61.0", fails)
    assert check("ray", "2.60.0", commands) == f"ray==2.61.0: FAILED at {what} (pinned: 2.60.0): the last line"
    assert len(commands.ran) == num_commands


def test_an_index_that_does_not_answer_is_reported() -> None:
    report = check("ray", "2.60.0", Commands("2.61.0", "pip compile"))
    assert report == "ray: unknown, as the newest release was not found: the last line"
