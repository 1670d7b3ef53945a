"""A server's folder that version 0.2.0 wrote: this version finds all of its data, with the same values."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.recorded_answers import RecordedServer
from tests.support.version_folders import PAGES, SERVER, list_differences, read_pages, unpack


async def test_a_server_of_version_0_2_0_keeps_its_data(tmp_path: Path) -> None:
    recorded = json.loads(PAGES.read_text())
    async with RecordedServer(unpack(SERVER, tmp_path)) as server:
        pages = await read_pages(server.client)
        assert list(list_differences(recorded["pages"], pages)) == []
        assert server.state.keys.find(recorded["key"]) is not None
