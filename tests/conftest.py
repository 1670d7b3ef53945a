"""The order of the tests: files that take minutes begin first, so that no worker is left alone with one at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ORDER = ("e2e", "chaos", "ray", "contracts", "integration", "unit")
"""Folders by how long their longest files take; within one as collected."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.relative_to(TESTS).parts[0]))
