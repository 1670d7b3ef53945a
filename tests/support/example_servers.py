"""An example's server on a free port, and an operator's judge that always says the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from tests.support.fakes_http import LOCAL, FakeEndpoint, until


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Yields the URL of the app."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started, within_s=30)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await running


def verdict(score: float) -> dict[str, Any]:
    """A judge's answer, as chat completions."""
    content = json.dumps({"steps": [], "result": score})
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}


def judged_by(judge: FakeEndpoint) -> OperatorConfig:
    """An operator whose model `judge` is this endpoint."""
    return LOCAL.model_copy(update={"models": {"judge": ModelEndpoint(base_url=judge.url)}})
