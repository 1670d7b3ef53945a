"""List of ICD-10-CM codes with a search: the codes that the example ships, or all codes.

Each line of a file has a code, its chapter and its text. A code that is the beginning of other codes is a group and
cannot be billed. Searches return only billable codes.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from examples.common.results import BUILD

EXTRACT: Final = Path(__file__).parent / "data" / "codes.tsv"
WHOLE: Final = BUILD / "icd10" / "codes.tsv"
NUM_HITS: Final = 4
TEXT_CHARS: Final = 70
QUERY_CHARS: Final = 200
NOT_FOUND: Final = "not found"
SEARCH: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "codes by words",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
"""Description of the search tool for the model, in OpenAI's format."""
_WORD: Final = re.compile(r"[a-z]+|[0-9]+")
_CODE: Final = re.compile(r"[A-Z][0-9][0-9A-Z](?:\.[0-9A-Z]{0,4})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Code:
    code: str
    chapter: int
    text: str

    @property
    def parent(self) -> str:
        """Code of the closest group: `H60.0` for `H60.01`, `C65` for `C65.1`."""
        return self.code[:-1].rstrip(".")


class CodeList:
    """Codes in order, the billable codes, and an index of the billable codes by the words of their text."""

    def __init__(self, codes: Iterable[Code]) -> None:
        ordered = sorted(codes, key=lambda code: code.code)
        after = [code.code for code in ordered[1:]]
        groups = {code.code for code, following in zip(ordered, after, strict=False) if following.startswith(code.code)}
        self.codes = {code.code: code for code in ordered}
        self.billable = [code for code in ordered if code.code not in groups]
        self.billable_names = {code.code for code in self.billable}
        self._words = [frozenset(_words(code.text)) for code in self.billable]
        self._having = defaultdict[str, list[int]](list)
        for at, words in enumerate(self._words):
            for word in words:
                self._having[word].append(at)

    @classmethod
    def read(cls, path: Path) -> CodeList:
        lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
        return cls(Code(code, int(chapter), text) for code, chapter, text in lines)

    def search(self, query: str) -> str:
        """Return the billable codes below a code or, for words, the codes that share the rarest words, best first."""
        asked = query[:QUERY_CHARS].strip()
        below = [code for code in self.billable if code.code.startswith(asked)] if _CODE.fullmatch(asked) else []
        found = (below or self._by_words(asked))[:NUM_HITS]
        return "\n".join(f"{code.code} {code.text[:TEXT_CHARS]}" for code in found) or NOT_FOUND

    def _by_words(self, query: str) -> list[Code]:
        scores = defaultdict[int, float](float)
        for word in dict.fromkeys(_words(query)):
            having = self._having.get(word, ())
            for at in having:
                scores[at] += math.log(1 + len(self.billable) / len(having))
        best = heapq.nsmallest(NUM_HITS, scores, key=lambda at: (-scores[at], len(self._words[at]), at))
        return [self.billable[at] for at in best]


def _words(text: str) -> list[str]:
    """Return the words without plural endings, so that `eyelid` finds `eyelids`."""
    found = _WORD.findall(text.lower())
    return [f"{word[:-3]}y" if word.endswith("ies") else word.removesuffix("s") for word in found]


def some_codes() -> CodeList:
    """Return the codes that the example ships."""
    return CodeList.read(EXTRACT)


def all_codes(path: Path = WHOLE) -> CodeList:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: write it with `make build/icd10/codes.tsv`")
    return CodeList.read(path)


def write(path: Path, codes: Iterable[Code]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{code.code}\t{code.chapter}\t{code.text}\n" for code in codes)
    path.write_text("".join(lines), encoding="utf-8")
