"""The order of the tests, and settings of the process that runs them."""

from __future__ import annotations

import atexit
import gc
import os
from pathlib import Path

import pytest

from tests.support.logs import LogPlugin

TESTS = Path(__file__).parent
ORDER = ("e2e", "chaos", "ray", "console", "contracts", "docs", "attacks", "integration", "unit", "kubernetes")
"""Folders by the duration of their longest files, which start first so that no worker runs one alone at the end."""


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # imports create no garbage
    if hasattr(config, "workerinput"):
        # Skips six seconds of freeing objects. Handlers that are registered later run earlier.
        atexit.register(os._exit, 0)
    config.pluginmanager.register(LogPlugin())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.relative_to(TESTS).parts[0]))


def pytest_collection_finish() -> None:
    """Exclude the two million objects of imports from collections, which would take a sixth of the unit tests' time."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        gc.unfreeze()  # otherwise C++ libraries report leaks at exit
