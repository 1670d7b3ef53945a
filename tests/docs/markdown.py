"""Reads the repository's Markdown files: their blocks, links and headings.

A fenced block has a language and, as needed, a title: the name of its file, or of the file and the place in it
(`job.yaml, below method.reinforcement`). `<!-- run -->` before a block means that the tests execute it, and
`<!-- run nightly -->` that only the nightly tests do.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from tests.support.paths import ROOT

_MARK = re.compile(r"<!-- (run(?: kubernetes| nightly)?) -->\s*\Z")
_TITLE = re.compile(r'title="([^"]*)"')
_GENERATED = "docs/reference/"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `mark` is `run`, `run nightly`, `run kubernetes` or empty; `line` is where its content starts."""

    page: str
    line: int
    language: str
    title: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Link:
    page: str
    line: int
    target: str


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    blocks: tuple[Block, ...]
    links: tuple[Link, ...]
    anchors: frozenset[str]


def guides() -> list[Page]:
    """All pages that people write."""
    return [page for page in pages() if not page.path.startswith(_GENERATED)]


@cache
def pages() -> list[Page]:
    """All Markdown files in git, and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [_read(name) for name in sorted(set(names)) if (ROOT / name).exists()]


def _read(name: str) -> Page:
    text = Path(ROOT, name).read_text(encoding="utf-8").removeprefix("---\n")
    blocks, links, anchors, mark = [], [], set(), ""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for i, token in enumerate(tokens):
        line = (token.map or [0])[0] + 1
        if token.type == "fence":
            language, _, options = token.info.strip().partition(" ")
            title = _TITLE.search(options)
            blocks.append(Block(name, line + 1, language, title[1] if title else "", mark, token.content))
        elif token.type == "inline":
            found = [child.attrGet(key) for child in token.children or () for key in ("href", "src")]
            links += [Link(name, line, str(target)) for target in found if target is not None]
            if tokens[i - 1].type == "heading_open":
                shown = "".join(child.content for child in token.children or ())
                anchors |= {_github_slug(shown), re.sub("-+", "-", _github_slug(shown))}
        if token.type == "html_block":
            anchors |= set(re.findall(r'id="([^"]+)"', token.content))
            found_mark = _MARK.search(token.content)
            mark = found_mark[1] if found_mark else ""
        else:
            mark = ""
    return Page(name, tuple(blocks), tuple(links), frozenset(anchors))


def _github_slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
