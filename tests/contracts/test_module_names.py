"""Every module and file of ours that any text names exists: strings of code, docs, manifests and settings."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

LINKED = ("trainer", "actors", "cluster", "serve")
MODULE = re.compile(r"(?<![\w./-])agent_rft(?:\.[A-Za-z_]\w*){2,}")
"""Two words alone may be a span's attribute, an entry point or a file, such as `agent_rft.json`."""
PATH = re.compile(rf"(?<![\w./-])(?:agent_rft|{'|'.join(LINKED)})(?:/\w+)+\.py\b")
EXCEPT = re.compile(r"^(docs/reference/|serve/console/(bundle|app)/|CHANGELOG\.md|tests/fixtures/)")
"""Generated files, other languages, and texts about earlier versions."""


def texts() -> dict[str, str]:
    """The text of each tracked file, by its path; links and binary files are left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in listed.split("\0"):
        path = ROOT / name
        if not name or EXCEPT.match(name) or path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            found[name] = data.decode()
    return found


@cache
def module_file(name: str) -> Path | None:
    """The file of a module, or the folder of a package."""
    parts = name.split(".")[1:]
    base = ROOT.joinpath(*parts if parts and parts[0] in LINKED else ["agent_rft", *parts])
    return base.with_suffix(".py") if base.with_suffix(".py").is_file() else base if base.is_dir() else None


@cache
def defined_in(file: Path) -> set[str]:
    """The names that a module or a package's `__init__.py` defines or imports."""
    source = file / "__init__.py" if file.is_dir() else file
    names: set[str] = set()
    if source.is_file():
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Name):
                names.add(node.id)
    return names


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module defines."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (file := module_file(".".join(parts[:length]))) is not None:
            return length == len(parts) or parts[length] in defined_in(file)
    return False


def test_every_module_that_a_text_names_exists() -> None:
    missing = {f"{file}: {name}" for file, text in texts().items() for name in MODULE.findall(text) if not exists(name)}
    assert not missing


def test_every_file_of_a_package_that_a_text_names_exists() -> None:
    missing = {f"{file}: {name}" for file, text in texts().items() for name in PATH.findall(text)
               if not (ROOT / name).is_file()}  # fmt: skip
    assert not missing
