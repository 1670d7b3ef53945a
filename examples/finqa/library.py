"""All reports, and the three tools that read them: `search`, `list` and `cat`.

The documents are read once, at the start. A tool looks up a path among their names, so no path leads to a file.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from annotated_types import Len
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, StringConstraints

NUM_HITS: Final = 4
MAX_QUERY_WORDS: Final = 32
MAX_LINE_CHARS: Final = 200
"""Maximum length of a line in search results."""
MAX_PART_CHARS: Final = 2000
"""Maximum length of a part of a page, and of a line in it."""
MAX_LISTED: Final = 50
NOT_FOUND: Final = "not found"
K1: Final = 1.5
"""Parameter of BM25 that limits the weight of repeated words. K1 and B have their usual values."""
B: Final = 0.75
"""Parameter of BM25 that lowers the scores of long documents."""
RANK_OFFSET: Final = 60
"""Offset of reciprocal rank fusion (Cormack et al., 2009), which merges the rankings by words and embeddings."""
_WORD: Final = re.compile(r"[a-z]+|[0-9]+")

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]
"""Function that returns the embeddings [N, D] of texts, each of length 1."""


class Document(BaseModel):
    """Page of a report: a path such as `ETR/2016/page_23`, its sentences, and the rows of its table."""

    model_config = ConfigDict(frozen=True)

    path: str
    lines: Annotated[tuple[str, ...], Len(1)]


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


class Bm25:
    """Okapi BM25 (Robertson and Zaragoza, 2009): ranks documents by the words that they share with a query."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        mean_words = sum(map(len, documents)) / max(1, len(documents))
        counted = list(map(Counter, documents))
        frequency = Counter(word for counts in counted for word in counts)
        self.idf = {word: math.log(1 + (len(counted) - n + 0.5) / (n + 0.5)) for word, n in frequency.items()}
        self._weights = defaultdict[str, list[tuple[int, float]]](list)
        for number, counts in enumerate(counted):
            norm = K1 * (1 - B + B * len(documents[number]) / mean_words) if documents[number] else 1.0
            for word, count in counts.items():
                self._weights[word].append((number, self.idf[word] * count * (K1 + 1) / (count + norm)))

    def best(self, query: Sequence[str], num: int) -> list[int]:
        """Return the indexes of the best documents, best first. Documents without a word of the query are left out."""
        scores = defaultdict[int, float](float)
        for word in dict.fromkeys(query):
            for number, weight in self._weights.get(word, ()):
                scores[number] += weight
        return heapq.nsmallest(num, scores, key=lambda number: (-scores[number], number))


class Library:
    """Documents, and the tools that read them. It never changes, so threads may share it."""

    def __init__(self, documents: Sequence[Document], embed: Embed | None = None) -> None:
        """Index the documents. With `embed`, also compute their embeddings now, for search by meaning."""
        self._documents = {document.path: document for document in documents}
        self._paths = list(self._documents)
        self._bm25 = Bm25([words_of(" ".join((d.path, *d.lines))) for d in self._documents.values()])
        self._embed = embed
        self._vectors = embed([" ".join((d.path, *d.lines)) for d in self._documents.values()]) if embed else None
        self._folders = defaultdict[str, dict[str, None]](dict)
        for path in sorted(self._paths):
            parts = path.split("/")
            for depth, name in enumerate(parts):
                self._folders["/".join(parts[:depth])][name] = None

    def search(self, query: str) -> str:
        """Return the best documents, one per line: the path, and the document's line that fits the query best."""
        words = words_of(query)[:MAX_QUERY_WORDS]
        numbers = self._bm25.best(words, NUM_HITS if self._vectors is None else 10 * NUM_HITS)
        if self._embed is not None and self._vectors is not None and query.strip():
            by_meaning = np.argsort(-(self._vectors @ self._embed([query])[0]), kind="stable")[: 10 * NUM_HITS]
            ranks = defaultdict[int, float](float)
            for order in (numbers, by_meaning.tolist()):
                for rank, number in enumerate(order):
                    ranks[number] += 1 / (RANK_OFFSET + rank)
            numbers = heapq.nsmallest(NUM_HITS, ranks, key=lambda number: (-ranks[number], number))
        return "\n".join(self._hit(self._documents[self._paths[number]], words) for number in numbers) or NOT_FOUND

    def _hit(self, document: Document, words: Sequence[str]) -> str:
        """Return the path, and the line with the rarest words of the query that the path does not contain."""
        others = set(words) - set(words_of(document.path))

        def weight(line: str) -> float:
            return sum(self._bm25.idf.get(word, 0.0) for word in others & set(words_of(line)))

        return f"{document.path}: {_cut(max(document.lines, key=weight), MAX_LINE_CHARS)}"

    def list_folder(self, folder: str) -> str:
        """Return the names in a folder, such as the years of a company; the folder "" contains the companies."""
        names = list(self._folders.get(folder.strip("/"), ()))
        more = [f"... {len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
        return ", ".join(names[:MAX_LISTED] + more) or NOT_FOUND

    def cat(self, path: str, part: int = 1) -> str:
        """Return a part of a document; the first part is 1."""
        document = self._documents.get(path.strip("/").removesuffix(".pdf"))
        if document is None:
            return NOT_FOUND
        parts = _parts(document.lines)
        if not 1 <= part <= len(parts):
            return f"there are parts 1 to {len(parts)}"
        return parts[part - 1] + (f"\n(part {part} of {len(parts)})" if len(parts) > 1 else "")


def _parts(lines: Sequence[str]) -> list[str]:
    parts = [""]
    for line in (_cut(line, MAX_PART_CHARS) for line in lines):
        if parts[-1] and len(parts[-1]) + 1 + len(line) > MAX_PART_CHARS:
            parts.append("")
        parts[-1] += ("\n" if parts[-1] else "") + line
    return parts


def _cut(line: str, num_chars: int) -> str:
    return line if len(line) <= num_chars else line[: num_chars - 3] + "..."


def read_documents(path: Path) -> list[Document]:
    """Read the documents from a file that `examples.finqa.convert` has written."""
    return [Document.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


Text = Annotated[str, StringConstraints(max_length=300)]


class Call(BaseModel):
    """Arguments of a tool. The docstring of a subclass is the tool's description for the model."""

    model_config = ConfigDict(strict=True, extra="forbid")

    def run(self, library: Library) -> str:
        raise NotImplementedError


class Search(Call):
    """Pages with these words."""

    query: Text

    def run(self, library: Library) -> str:
        return library.search(self.query)


class ListFolder(Call):
    """Names in a folder."""

    folder: Text

    def run(self, library: Library) -> str:
        return library.list_folder(self.folder)


class Cat(Call):
    """A page, or a part of it."""

    path: Text
    part: int = 1

    def run(self, library: Library) -> str:
        return library.cat(self.path, self.part)


TOOLS: Final[Mapping[str, type[Call]]] = {"search": Search, "list": ListFolder, "cat": Cat}


def tool_schema(name: str) -> dict[str, Any]:
    """Return a tool's description for the model, in OpenAI's format."""
    tool = TOOLS[name]
    form = tool.model_json_schema()
    properties = {key: {"type": value["type"]} for key, value in form["properties"].items()}
    parameters = {"type": "object", "properties": properties, "required": form["required"]}
    return {"type": "function", "function": {"name": name, "description": tool.__doc__, "parameters": parameters}}
