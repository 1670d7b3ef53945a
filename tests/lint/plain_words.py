"""Finds odd English in all tracked files: `python -m tests.lint.plain_words`, a part of `make lint`.

In Python it checks docstrings, comments and string literals, in other files the whole text. It exits with 1 if it finds
a phrase.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.paths import ROOT

# Patterns match whole words and ignore case; a space matches any white space. A phrase is here only if it is nearly
# always wrong: "told", "beside" or "goes on" are sometimes right and are left to reviewers.
_IS = r"(?:is|are|was|were)"
_NOT_A = rf"(?<!there ){_IS} no"
_KIND = r"(?!longer|more|less|fewer|larger|smaller|better|worse|later|earlier|other|need|guarantee|exception)[\w-]+"
_NOUN = "start with the noun: what it is or returns"

PHRASES: list[tuple[str, str]] = [
    # Archaic or literary.
    (r"whoever", "who it is: the caller, the operator, the client"),
    (r"anew|afresh", "again; for 'begin anew': restart"),
    (r"affairs?", "responsibility, or say who handles it"),
    (r"mend(?:s|ed|ing)?", "fix"),
    (r"reckon(?:s|ed|ing)?", "compute, estimate"),
    (r"the begin", "the start"),
    (r"if need be", "if needed"),
    (r"for want of", "without, for lack of"),
    (r"in vain", "without success"),
    (r"for ever", "forever, without a timeout"),
    (r"just now", "currently"),
    (r"all the while", "throughout"),
    (r"of its own accord", "by itself, automatically"),
    (r"as it were", "leave it out"),
    (r"slips? of the hand", "typo, mistake"),
    (
        r"(?:there|where|here)(?:of|in|from|upon)|hence(?:forth)?|hitherto|lest|till|whilst|amongst|nay|ere",
        "plain words",
    ),
    (r"in good order", "cleanly"),
    (r"in mid-\w+", "during"),
    (r"in the moment (?:in which|when)", "when"),
    (r"by turns", "alternately, in turn"),
    (r"one behind the other", "one after the other, concatenated"),
    (r"of then", "of that time"),
    (r"sees? to (?:it|the rest)", "ensure(s), handle(s)"),
    (r"none such", "name what is missing"),
    # What a thing is, has or does.
    (rf"{_NOT_A} {_KIND}", "is not a ..., is not valid ..."),
    (r"(?<!there )is none of", "is not one of"),
    (r"knows? none(?: such)?", "unknown ..., invalid ..."),
    (r"st(?:ands?|ood|anding) (?:there )?twice", "is duplicated"),
    (r"st(?:ands?|ood|anding) still", "hang, stall, be unresponsive"),
    (r"st(?:ands?|anding) (?:there|here|beside|in (?:the|its|it|them))", "is, is in, comes with"),
    (r"how (?:it|things|they|\w+ and \w+) stands?", "state, status"),
    (r"lead(?:s|ing)? nowhere", "does not resolve, does not exist"),
    (r"go(?:es|ing)? nowhere", "is discarded"),
    (r"(?:comes?|came|coming) to nothing", "fail(ed), had no effect"),
    (r"(?:comes?|came) of (?:it|them|that|this|each|the)", "the result, the outcome"),
    (r"what (?:it|they|this|that) comes? to", "the result"),
    (r"(?:comes?|came|coming) to (?:its|an|the) end", "end, finish"),
    (r"(?:go(?:es|ing)?|went) behind", "fall behind, go back past"),
    (r"(?:go(?:es|ing)?|went|gone) on from", "resume from"),
    (r"(?:nothing|everything|it|that|this|they|jobs?|plans?|listings?) goes? by|to go by", "is based on, is sorted by"),
    (r"(?:lies?|lay) (?:in memory|on|under|there|beside)", "is (stored) in"),
    (r"taken and ignored", "accepted but ignored"),
    (r"let(?:s|ting)? in", "admit"),
    (r"g(?:ive|ives|iving|ave|iven) back", "return, release"),
    (r"hand(?:s|ed|ing)? in", "pass, submit"),
    (r"at most so (?:long|many|much|often)|for so (?:long|often)|so often", "name the limit: at most `timeout_s`"),
    (rf"{_IS} held to", "is constrained to, is limited to"),
    (r"it is well|is well(?=[.,;:)])", "is healthy"),
    (r"so that none", "so that no ..."),
    # Saying, telling, knowing, asking.
    (r"(?:tells?|told|telling) of", "report, describe, notify about"),
    (rf"{_IS} said (?:of|once|so|here)|(?:what|nothing|nothing else) is said", "is reported, is documented"),
    (rf"{_IS} asked of|\AAsked of", "queried from"),
    (r"(?:is|are) to be (?:told|said|known)", "to report, to know"),
    (r"to be had", "available"),
    (r"spoken to", "reached"),
    (r"in the words of", "in the terms of, as ... defines it"),
    (r"(?:leaves? )?word of (?:itself|that|it)", "name what is left or reported"),
    # A docstring or comment that opens with half a sentence.
    (r"\A(?-i:Of) (?!course|these|those|the (?:two|three|four|\d+) )\S+(?: \w+)?", _NOUN),
    (r"\A(?-i:That) (?:of|no)", _NOUN),
    (r"\A(?-i:So) (?:long|often|many|much)", "start with the noun: the time or the limit"),
    (r"\A(?-i:Said) (?:of|where|when)", "start with the noun: the message for ..."),
    (
        r"(?-i:Who) (?:does|runs|has|wants|gives|takes|asks|sends|saves)\b[^?.]*\.",
        "who it is: the caller, the operator, a process",
    ),
]

OPENINGS = re.compile(
    r"(?:What|How|Where|Which|Who|Whose|Those|That|Of|Such|So|Also|Not|In it|In which|As it|Nothing|Kept|Said)\b"
)
"""First words of half a sentence; english.md's first rule."""
OTHER_FOLDERS = ("tests/", "docs/", "benchmarks/", "examples/", "requirements/")
"""Folders whose docstrings are not checked for their opening: they are not the product."""
TEXT_FILES = (".md", ".yaml", ".yml", ".toml", ".html", ".svelte", ".ts", "Makefile", "Dockerfile", ".ci/run")
EXEMPT = ("tests/lint/plain_words.py", "tests/unit/lint/test_plain_words.py")
"""Files that name the phrases."""


class Hit(NamedTuple):
    line: int
    phrase: str
    say: str


class Text(NamedTuple):
    """Words of one docstring, comment, string literal or file; `lines[i]` is the line of `words[i]`, from 1."""

    words: list[str]
    lines: list[int]

    @classmethod
    def of(cls, text: str, first_line: int) -> Text:
        rows = [row.split() for row in text.split("\n")]
        # A phrase may span two comment lines of a YAML file, Makefile or Dockerfile.
        found = [(word, first_line + i) for i, row in enumerate(rows) for word in row if word.strip("#")]
        return cls([word for word, _ in found], [line for _, line in found])


def main() -> int:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = False
    for name in tracked.split("\0"):
        if name.endswith((".py", *TEXT_FILES)) and name not in EXEMPT and (ROOT / name).exists():
            for hit in hits(name, (ROOT / name).read_text()):
                found = True
                print(f"{name}:{hit.line}: {hit.phrase!r} -> say {hit.say}")
    return int(found)


def hits(name: str, source: str) -> list[Hit]:
    """The phrases in a file, by line. `name` decides whether it is read as Python."""
    if not name.endswith(".py"):
        return sorted(_hits_of(Text.of(source, 1)))
    found = [hit for text in (*_strings(source), *_comments(source)) for hit in _hits_of(text)]
    if not name.startswith(OTHER_FOLDERS):
        found += _openings(source)
    return sorted(found)


def _openings(source: str) -> Iterator[Hit]:
    """Docstrings, those of attributes included, that open with half a sentence."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                if found := OPENINGS.match(text.lstrip()):
                    yield Hit(node.lineno, found.group(), "the noun that it is, or the verb that it does")


def _hits_of(text: Text) -> Iterator[Hit]:
    joined = " ".join(text.words)
    if not _ANY.search(joined):
        return
    for pattern, say in _PATTERNS:
        for match in pattern.finditer(joined):
            yield Hit(text.lines[joined.count(" ", 0, match.start())], match.group(), say)


def _strings(source: str) -> Iterator[Text]:
    """Docstrings and string literals; the values inside an f-string read as `{}`."""
    lines = source.splitlines()
    parts: set[ast.AST] = set()  # of f-strings, which come before their parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            value = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            value = node.value
        else:
            continue
        text = Text.of(value, node.lineno)
        if node.end_lineno is not None and node.end_lineno != node.lineno + value.count(
            "\n"
        ):  # escapes, or literals on several lines
            where, row = [], node.lineno
            for word in text.words:
                row = next((later for later in range(row, node.end_lineno + 1) if word in lines[later - 1]), row)
                where.append(row)
            text = Text(text.words, where)
        yield text


def _comments(source: str) -> Iterator[Text]:
    """Comments; those of successive lines as one text."""
    block: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, column = token.start
        if not block or row != first + len(block) or token.line[:column].strip():
            yield Text.of("\n".join(block), first)
            block, first = [], row
        block.append(token.string.lstrip("#"))
    yield Text.of("\n".join(block), first)


_PATTERNS = [(re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE), say) for pattern, say in PHRASES]
_ANY = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _ in _PATTERNS), re.IGNORECASE)


if __name__ == "__main__":
    sys.exit(main())
