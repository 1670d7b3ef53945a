"""Sources of Python's standard library, and the three tools that read them.

All files are read once. A tool looks up a path among these files and never opens a file, so no path leads outside.
The words of a query are searched for literally, so no query takes longer than one pass over the library.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from examples.common.tool import Tool, by_name

LEFT_OUT: Final = frozenset(
    {"__pycache__", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "turtledemo"}
)
MAX_FILE_BYTES: Final = 400_000
MAX_QUERY_CHARS: Final = 200
MAX_WORDS: Final = 8
MAX_FOUND: Final = 20
MAX_LINES: Final = 60
"""Maximum number of lines that `retrieve` or `outline` returns."""
MAX_LINE_CHARS: Final = 160
NOT_FOUND: Final = "error: no such file; search gives paths"
_DEFINITION: Final = re.compile(r"\s*(?:async def|def|class) (\w+)")


class Library:
    """Files of the standard library by path, such as `json/decoder.py`. It never changes, so threads may share it."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read all sources of the running Python's standard library, or of `folder`."""
        root = folder or Path(sysconfig.get_path("stdlib"))
        self.files: Mapping[str, str] = dict(_sources(root))
        self._lower = {path: text.lower() for path, text in self.files.items()}
        self._defined = defaultdict[str, list[tuple[str, int]]](list)
        for path, text in self.files.items():
            for number, line in enumerate(text.splitlines(), 1):
                if found := _DEFINITION.match(line):
                    self._defined[found[1].lower()].append((path, number))
        self.outline = lru_cache(64)(self._outline)

    def search(self, query: str) -> str:
        """Return up to 20 lines as `path:line: text`: first definitions of a word, then lines with all words.

        Raises:
            ValueError: The query has no words, more than 8 words, or more than 200 characters.
        """
        words = query.lower().split()
        if not words or len(words) > MAX_WORDS or len(query) > MAX_QUERY_CHARS:
            raise ValueError(f"give 1 to {MAX_WORDS} words, {MAX_QUERY_CHARS} characters at most")
        defined = [place for word in dict.fromkeys(words) for place in self._defined.get(word, ())]
        found = dict.fromkeys(sorted(defined, key=lambda place: -sum(word in place[0].lower() for word in words)))
        for place in self._lines_with(words):
            if len(found) >= MAX_FOUND:
                break
            found[place] = None
        shown = [f"{path}:{line}: {self._line(path, line).strip()}" for path, line in list(found)[:MAX_FOUND]]
        return "\n".join(shown) or "nothing found"

    def retrieve(self, path: str, start: int = 1, end: int | None = None) -> str:
        """Return the lines `start` to `end` of a file with their numbers, at most 60 lines.

        Raises:
            ValueError: The file does not have these lines.
        """
        text = self.files.get(path)
        if text is None:
            return NOT_FOUND
        lines = text.splitlines()
        last = min(len(lines), start + MAX_LINES - 1, end if end is not None else len(lines))
        if not 1 <= start <= last:
            raise ValueError(f"{path} has lines 1 to {len(lines)}; give start and end among them")
        return "\n".join(f"{number} {_cut(lines[number - 1])}" for number in range(start, last + 1))

    def _outline(self, path: str) -> str:
        text = self.files.get(path)
        if text is None:
            return NOT_FOUND
        entries = list(_entries(ast.parse(text), ""))
        more = [f"... {len(entries) - MAX_LINES} more"] if len(entries) > MAX_LINES else []
        return "\n".join(entries[:MAX_LINES] + more) or "no classes and functions"

    def _lines_with(self, words: list[str]) -> Iterator[tuple[str, int]]:
        for path, text in self._lower.items():
            if all(word in text for word in words):
                for number, line in enumerate(text.splitlines(), 1):
                    if all(word in line for word in words):
                        yield path, number

    def _line(self, path: str, number: int) -> str:
        return _cut(self.files[path].splitlines()[number - 1])


def _sources(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        # A link could lead anywhere.
        if LEFT_OUT.isdisjoint(parts) and not path.is_symlink() and path.stat().st_size <= MAX_FILE_BYTES:
            # Lines are those that editors and `ast` count: form feeds would split them elsewhere.
            yield "/".join(parts), path.read_text("utf-8", errors="replace").replace("\f", " ")


def _entries(node: ast.AST, owner: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "class" if isinstance(child, ast.ClassDef) else "def"
            yield f"{child.lineno}-{child.end_lineno} {kind} {owner}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _entries(child, f"{owner}{child.name}.")


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 3] + "..."


TOOLS: Final[dict[str, Tool[Library]]] = by_name(
    Tool("search", "Lines with all words; definitions first.", {"query": str}, Library.search),
    Tool("retrieve", "Lines of a file, 60 at most.", {"path": str, "start": int, "end": int}, Library.retrieve),
    Tool("outline", "Classes and functions of a file.", {"path": str}, lambda library, path: library.outline(path)),
)
