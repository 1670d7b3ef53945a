"""A failed test shows what was logged since its setup."""

from __future__ import annotations

import logging
from typing import Literal

import pytest

from tests.support.logs import LogPlugin


def report(plugin: LogPlugin, outcome: Literal["passed", "failed"]) -> list[tuple[str, str]]:
    """The sections of a test's report after the plugin's hook."""
    hook = plugin.pytest_runtest_makereport()
    next(hook)
    made = pytest.TestReport("test_x", ("test_x.py", 1, "test_x"), {}, outcome, None, "call")
    with pytest.raises(StopIteration) as end:
        hook.send(made)
    assert end.value.value is made
    return made.sections


def test_only_a_failed_test_shows_its_own_log_records() -> None:
    plugin = LogPlugin()
    logger = logging.Logger("agent_rft.test")
    logger.addHandler(plugin)
    logger.warning("from the previous test")
    plugin.pytest_runtest_setup()
    assert report(plugin, "failed") == []
    logger.warning("the disk is %s", "full")
    assert report(plugin, "passed") == []
    ((title, text),) = report(plugin, "failed")
    assert title == "Captured log"
    assert "WARNING" in text and text.endswith("the disk is full")
    assert "previous" not in text
