"""Formatting of server-sent events (SSE)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def format_sse_event(event: Mapping[str, Any], named: bool = False) -> str:
    """Format an event as a server-sent event; if `named` is true, its `type` is also sent as the event's name."""
    name = f"event: {event['type']}\n" if named and "type" in event else ""
    return f"{name}data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}\n\n"


def format_resumable_event(event: Mapping[str, Any]) -> str:
    """Format an event as a server-sent event with an `id`, from which a client can resume the stream.

    An empty event becomes a comment, which clients ignore.
    """
    if not event:
        return ": nothing new\n\n"
    data = json.dumps({name: value for name, value in event.items() if name != "id"}, separators=(",", ":"))
    return f"event: {event['type']}\nid: {event['id']}\ndata: {data}\n\n"
