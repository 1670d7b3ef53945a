"""The table of tool outputs on the page about endpoints: each row does what it says."""

from __future__ import annotations

import json
import re

import pytest

from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.spec.endpoints import ToolSpec
from agent_rft.types import ToolCall
from tests.support.fakes_http import LOCAL, FakeEndpoint, says
from tests.support.paths import ROOT

TABLE = (ROOT / "docs/endpoints.md").read_text().split("### Tool outputs")[1].split("\n\n")[1]
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines()[2:]]


@pytest.mark.parametrize(("output", "reads"), ROWS)
async def test_each_output_of_the_table_is_read_as_it_says(output: str, reads: str) -> None:
    value = json.loads(re.findall(r"`(.*?)`", output)[0])
    async with FakeEndpoint(says({"output": value})) as server:
        dispatcher = Dispatcher([ToolSpec(name="search", server_url=server.url)], LOCAL)
        (result,) = await dispatcher.call_turn("trace_1", {}, [ToolCall("call_1", "search", "{}")])
        await dispatcher.close()
    expected = {"an empty result": "", "the texts as lines": "a\nb"}.get(reads)
    assert result.output == (re.findall(r"`(.*?)`", reads)[0] if expected is None else expected)
    assert (result.error == "tool_error") == ("tool_error" in reads or result.output.startswith("Error: "))
