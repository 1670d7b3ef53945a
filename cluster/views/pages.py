"""HTML templates of the views. All pages share one style, need no network, and escape all untrusted text."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


@cache
def _environment() -> Environment:
    loader = PackageLoader("agent_rft.cluster.views", "")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def load_page_template(folder: str, functions: dict[str, Any]) -> Template:
    """Load the `page.html` of a folder in this package; the template may call `functions`."""
    return _environment().get_template(f"{folder}/page.html", globals=functions)
