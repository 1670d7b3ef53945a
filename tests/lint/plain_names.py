"""Finds odd names in the product: `python -m tests.lint.plain_names`, a part of `make lint`.

It checks modules, classes, functions, parameters, attributes and variables, and exits with 1 if it finds one that uses
a word that the glossary replaces, is a bare preposition, or if two classes have the same name.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from tests.support.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
OTHER_FOLDERS = ("tests/", "docs/", "benchmarks/", "examples/", "requirements/")
BARE = {
    "about",
    "after",
    "alone",
    "as",
    "at",
    "before",
    "beside",
    "by",
    "for",
    "from",
    "in",
    "inside",
    "into",
    "now",
    "of",
    "off",
    "on",
    "out",
    "over",
    "to",
    "under",
    "with",
}
"""A function or module that is called only this does not tell what it does or holds."""
ALLOWED = {"most_common"}
"""Names that others define."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Name(NamedTuple):
    file: str
    line: int
    kind: str
    name: str


class GlossaryRow(NamedTuple):
    term: str
    meaning: str
    see: str
    replaces: str
    """Words in code font that names do not contain; empty for most terms."""


def glossary_rows() -> list[GlossaryRow]:
    """Return the rows of the table in docs/glossary.md."""
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    return [GlossaryRow(*(cell.strip() for cell in line.split("|")[1:-1])) for line in lines[1:]]


def replaced_words(rows: list[GlossaryRow]) -> dict[str, str]:
    """Return the term to use for each word that the glossary replaces."""
    return {word: row.term.lower() for row in rows for word in re.findall(r"`(\w+)`", row.replaces)}


WORDS = replaced_words(glossary_rows())
"""Words that names do not contain, and the term to use."""


def main() -> int:
    tracked = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in tracked.stdout.split("\0") if name and not name.startswith(OTHER_FOLDERS)]
    names = [name for file in files for name in defined(file, (ROOT / file).read_text())]
    problems = [*odd(names), *repeated(names)]
    print(*problems, sep="\n", end="\n" if problems else "")
    return int(bool(problems))


def odd(names: list[Name]) -> Iterator[str]:
    """Report names that contain a replaced word, and functions and modules that are a bare preposition."""
    for file, line, kind, name in names:
        if name in ALLOWED:
            continue
        parts = [part.lower() for part in _PART.findall(name)]
        for part in parts:
            if part in WORDS:
                yield f"{file}:{line}: {kind} {name!r}: use {WORDS[part]} instead of {part!r}"
        if kind in ("function", "module") and len(parts) == 1 and parts[0] in BARE:
            yield f"{file}:{line}: {kind} {name!r}: name the action or the content"


def repeated(names: list[Name]) -> Iterator[str]:
    """Report classes with the name of another class."""
    places = defaultdict(list)
    for file, line, kind, name in names:
        if kind == "class":
            places[name].append(f"{file}:{line}")
    for name, found in places.items():
        if len(found) > 1:
            yield f"{found[0]}: class {name!r} is also defined in {', '.join(found[1:])}"


def defined(file: str, source: str) -> Iterator[Name]:
    """The names that a file defines, its own included."""
    yield Name(file, 1, "module", PurePath(file).stem)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield Name(file, node.lineno, "class", node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Name(file, node.lineno, "function", node.name)
        elif isinstance(node, ast.arg):
            yield Name(file, node.lineno, "parameter", node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Name(file, node.lineno, "variable", node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield Name(file, node.lineno, "attribute", node.attr)


if __name__ == "__main__":
    sys.exit(main())
