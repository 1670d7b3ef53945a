"""Every use of an undocumented part of vLLM goes through this module.

Each function names the upstream object that it uses, why it needs it, and what would make the function unnecessary.
"""

from __future__ import annotations

from traceback import walk_tb
from typing import Any

import zmq


def create_client(config: Any, log_stats: bool) -> Any:
    """Start the engine's processes and return the AsyncLLM that talks to them.

    If this raises, nothing stays open: no process, no socket and no ZeroMQ context.

    Uses: the frames of AsyncLLM.__init__ and MPClient.__init__ in the traceback of an error, and `MPClient.resources`.
    Why: MPClient creates a ZeroMQ context and never closes it. After an error nobody else has a reference to it, so
    the garbage collector finds it later and warns in unrelated code.
    Unnecessary once: MPClient closes its context in BackgroundResources.__call__.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        return AsyncLLM.from_vllm_config(config, disable_log_stats=not log_stats)
    except BaseException as error:  # on a signal too
        _close_after(error)
        raise


def _close_after(error: BaseException) -> None:
    """Close what the constructor that raised `error` left open."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import MPClient

    for frame, _ in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, AsyncLLM) and hasattr(owner, "engine_core"):
            shut_down(owner, timeout_s=0)
        elif isinstance(owner, MPClient) and hasattr(owner, "resources"):
            _close_connections(owner.resources)


def shut_down(client: Any, timeout_s: float) -> None:
    """Stop the processes of an AsyncLLM within `timeout_s` seconds and close its connections to them.

    Call it in the thread of the client's event loop, because ZeroMQ's sockets belong to that thread. A second call does
    nothing.

    Uses: `AsyncLLM.engine_core` and `MPClient.resources`.
    Why: AsyncLLM.shutdown closes the sockets, but not their ZeroMQ context.
    Unnecessary once: MPClient closes its context in BackgroundResources.__call__.
    """
    client.shutdown(timeout=timeout_s)
    _close_connections(client.engine_core.resources)


def _close_connections(resources: Any) -> None:
    """Close the sockets and the ZeroMQ context of an MPClient's BackgroundResources.

    The sockets come first, because the context waits for open ones. If the engine's core died, a thread of vLLM may not
    have closed them yet. They belong to an asynchronous context that shadows this one, so `destroy` does not find them.
    """
    for held in list(vars(resources).values()):
        if isinstance(held, zmq.Socket):
            held.close(linger=0)
    resources.ctx.destroy(linger=0)
