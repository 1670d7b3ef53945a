"""Fixtures of the cluster's tests."""

from __future__ import annotations

import pytest

from tests.support.synthetic import Synthetic


@pytest.fixture
def synthetic() -> Synthetic:
    return Synthetic()
