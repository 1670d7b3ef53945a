"""Every route answers as it was recorded, to the byte.

A change of an answer is a change of the API: if it is meant, record the answers again with
`python -m tests.support.recorded_answers` and review what is different.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.recorded_answers import RECORDING, answers_of


async def test_each_route_answers_as_it_was_recorded(tmp_path: Path) -> None:
    found, routes = await answers_of(tmp_path)
    recorded = json.loads(RECORDING.read_text())
    assert found.keys() == routes == recorded.keys()
    for route, answers in found.items():
        assert answers == recorded[route], route
