"""The manual's table of environment variables names all that the code reads, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

PACKAGES = ("agent_rft", "serve", "cluster", "actors", "trainer")
OURS = re.compile(r"\b(?:AGENT_RFT|OPENAI|RAY|GLOO)_[A-Za-z]\w*")
ROW = re.compile(r"^\| (`[A-Z][^|]*)\|", re.MULTILINE)


def test_the_table_of_environment_variables_is_complete() -> None:
    code = {name for package in PACKAGES for path in (ROOT / package).rglob("*.py") for name in variables(path)}
    rows = ROW.findall((ROOT / "docs/clusters.md").read_text())
    table = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert table == code


def variables(path: Path) -> Iterator[str]:
    """Names in strings that look like ours or those of OpenAI, Ray and gloo, and all that are looked up."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from OURS.findall(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("get", "setdefault") and _is_environment(node.func.value):
                yield from _name(node.args[0])
        elif isinstance(node, ast.Subscript) and _is_environment(node.value):
            yield from _name(node.slice)


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node).removeprefix("self._") in ("environment", "os.environ")


def _name(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
