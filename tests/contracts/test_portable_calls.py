"""The packages make no call that fails in a container: one without a home, or with fewer cores than its machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

PACKAGES = ("agent_rft", "serve", "cluster", "actors", "trainer")
CORES = "agent_rft.actors.runtime.cpu_cores.count_usable_cores"
INSTEAD = {
    "Path.home": "os.path.expanduser, which does not raise where a user has no home",
    ".expanduser": "os.path.expanduser, which does not raise where a user has no home",
    "os.cpu_count": f"{CORES}, which knows the quota of a container",
    "multiprocessing.cpu_count": f"{CORES}, which knows the quota of a container",
}


def test_no_call_ignores_what_a_container_has() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [found for path in files for found in calls(path)] == []


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            method = f".{node.func.attr}" if not node.args else ""
            for call in {name, method} & INSTEAD.keys():
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {call}: use {INSTEAD[call]}"
