"""A stand-in of OpenAI's API for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.openai_api import FakeOpenAI


@pytest.fixture
def api() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as served:
        yield served
