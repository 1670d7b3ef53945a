"""What the topics share: text that Markdown leaves as it is, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown, in which line ends and bars are replaced."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def narrow_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the columns in which all cells are empty."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return table([head[i] for i in kept], ([row[i] for i in kept] for row in rows))


def code(text: str) -> str:
    """The text in code font."""
    return f"`{text}`" if text else ""


def plain(text: str) -> str:
    """A sentence in which `<` opens no HTML tag outside of code font."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
