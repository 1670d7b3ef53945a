"""Fixtures of the endpoint tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import ToolFailed
from agent_rft.spec.endpoints import Endpoint
from tests.support.fakes_http import LOCAL, FakeTime

Connect = Callable[..., EndpointClient]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A factory of clients, which closes them after the test."""
    clients = []

    def make(
        url: str, timing: Timing | None = None, hedge_after_s: float | None = None, **endpoint: object
    ) -> EndpointClient:
        client = EndpointClient(
            "tool 'search'",
            url,
            Endpoint.model_validate(endpoint),
            ToolFailed,
            timing or FakeTime().timing(),
            allowed_networks=LOCAL.allowed_networks,
            hedge_after_s=hedge_after_s,
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()
