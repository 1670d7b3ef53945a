"""Public interface of agent-rft, which trains tool-using models on your own tools and grader.

Public names are imported from their modules only when they are first used.
"""

from __future__ import annotations

from importlib import import_module

_PUBLIC = {
    "NoSandbox": "agent_rft.untrusted",
    "UntrustedRun": "agent_rft.untrusted",
    "run_untrusted": "agent_rft.untrusted",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
