"""The pages of the views: one style, no network, and all text of rows, models and tools escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


@cache
def _environment() -> Environment:
    loader = PackageLoader("agent_rft.cluster.views", "")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def page_template(room: str, functions: dict[str, Any]) -> Template:
    """The `page.html` of a room of this package, which may call these functions."""
    return _environment().get_template(f"{room}/page.html", globals=functions)
