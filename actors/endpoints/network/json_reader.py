"""Parser of JSON from endpoints. Large texts are parsed in threads. One API key may use at most half of the threads.

A thread holds Python's lock while it parses. `parse_untrusted_json` therefore also limits the cost of one text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from agent_rft.actors.runtime.fair_slots import FairSlots
from agent_rft.rows.strict_json import ParsedJson, parse_untrusted_json

MAX_INLINE_BYTES = 64_000
"""Maximum size of a text that is parsed on the event loop."""
MAX_THREADS = 2
_KEY: ContextVar[str] = ContextVar("json_key", default="")
_SLOTS: WeakKeyDictionary[asyncio.AbstractEventLoop, FairSlots] = WeakKeyDictionary()
"""Slots for threads, by event loop. One key may use half of them."""


@contextmanager
def read_json_for(key: str) -> Iterator[None]:
    """Context manager that counts calls of `read_json` against the thread limit of an API key."""
    token = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(token)


async def read_json(text: str | bytes) -> ParsedJson:
    """Parse untrusted JSON, in a thread if it is large.

    Raises:
        ValueError: The text is not valid JSON, or exceeds a limit of `parse_untrusted_json`.
    """
    if len(text) <= MAX_INLINE_BYTES:
        return parse_untrusted_json(text)
    slots = _SLOTS.setdefault(asyncio.get_running_loop(), FairSlots(MAX_THREADS, max_share_per_key=0.5))
    async with slots.hold_slot(_KEY.get()):
        return await asyncio.to_thread(parse_untrusted_json, text)
