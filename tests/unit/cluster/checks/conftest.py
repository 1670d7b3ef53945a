"""The job that tests of the check change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fakes_http import FakeEndpoint, says
from tests.support.job_case import Case


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    async with FakeEndpoint(says({"output": "1"})) as tools, FakeEndpoint(says({"score": 0.5})) as grader:
        yield Case(tmp_path, tools, grader)
