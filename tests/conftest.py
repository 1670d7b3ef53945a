"""The order of the tests, and what they all share a process with."""

from __future__ import annotations

import atexit
import gc
import os
from pathlib import Path

import pytest

from tests.support.logs import LogPlugin

TESTS = Path(__file__).parent
ORDER = ("e2e", "chaos", "ray", "contracts", "integration", "unit")
"""Folders by how long their longest files take; within one as collected. Files that take minutes begin first, so that
no worker is left alone with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # while modules are imported, of which nothing is garbage
    if hasattr(config, "workerinput"):
        # Else a worker takes six seconds to free its objects one by one. What registers later runs before.
        atexit.register(os._exit, 0)
    config.pluginmanager.register(LogPlugin())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.relative_to(TESTS).parts[0]))


def pytest_collection_finish() -> None:
    """Else each full collection walks two million objects of imports, a sixth of what the unit tests compute."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        gc.unfreeze()  # libraries in C++ say at the exit what was never freed
