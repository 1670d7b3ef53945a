"""The source of our packages as syntax trees."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from tests.support.paths import ROOT

PACKAGES = ("agent_rft", "trainer", "actors", "cluster", "serve")


@functools.cache
def syntax_trees() -> dict[Path, ast.Module]:
    """The tree of each file of our packages; parsed once."""
    paths = (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
