"""A pytest plugin that shows the log records of a failed test, like pytest's own but at no cost per test.

Pytest's logging plugin visits all loggers six times per test, and PyTorch alone creates about 300. This one adds a
single handler to the root logger for the whole session. It misses loggers that do not propagate, such as Ray's and
vLLM's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator

import pytest

MAX_RECORDS = 500
"""The latest records that a failed test shows."""
FORMAT = "%(asctime)s %(levelname)-8s %(name)s:%(lineno)d %(message)s"


class LogPlugin(logging.Handler):
    """Keeps what was logged since the current test's setup and adds it to the reports of failures."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._lines: deque[str] = deque(maxlen=MAX_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))  # raises where the arguments do not fit, which fails the test

    def pytest_sessionstart(self) -> None:
        logging.getLogger().addHandler(self)

    def pytest_sessionfinish(self) -> None:
        logging.getLogger().removeHandler(self)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._lines.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and self._lines:
            report.sections.append(("Captured log", "\n".join(self._lines)))
        return report
