"""Finds ZeroMQ contexts that are still open."""

from __future__ import annotations

import gc

import zmq


def open_contexts() -> set[int]:
    """Ids of the open ZeroMQ contexts of this process, except shadows, which own nothing.

    Contexts that were created before the tests were collected are not found (see `gc.freeze`).
    """
    contexts = [held for held in gc.get_objects() if isinstance(held, zmq.Context)]
    return {id(context) for context in contexts if not context.closed and not context._shadow}
