"""Converts the FinQA data set to documents and rows: `python -m examples.finqa.convert FILE... --to FOLDER`.

A FILE is a JSON list of entries as in the release (github.com/czyssrs/FinQA, `dataset/*.json`). FOLDER gets
`documents.jsonl`, `train.jsonl` and `test.jsonl`. Training and test never share a company, as the release's splits do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from examples.common.rows import write_rows
from examples.finqa.grades import SCALES, Figure, figures, rounded
from examples.finqa.library import TOOLS, Document, tool_schema

MAX_FILE_BYTES: Final = 256 * 2**20
MAX_ENTRIES: Final = 20_000
NUM_DECIMALS: Final = 5
"""Number of decimals of `exe_ans`."""
MAX_PAGE_CHARS: Final = 200_000
MAX_SHOWN: Final = 10
"""Maximum number of problems that an error lists; the others are counted."""
TEST_PART: Final = 4
"""One of this many companies is in the test split."""
Split = Literal["train", "test"]
SYSTEM: Final = {
    "role": "system",
    "content": "Find the figure in the companies' reports. Answer with the value and its unit alone.",
}
SCHEMAS: Final = [tool_schema(name) for name in TOOLS]

Sentence = Annotated[str, StringConstraints(max_length=20_000)]
Cell = Annotated[str, StringConstraints(max_length=1_000)]
Name = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,80}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,80}){1,3}$")
]
"""Path of a company, folders such as years, and a page. No name in the path begins with a dot."""
_SCALE_ASKED: Final = re.compile(r"\b(?:in|how many) (thousand|million|billion)s?\b")
_COUNTED: Final = re.compile(
    r"\bhow many (?:(?:thousand|million|billion) )?(?!(?:thousand|million|billion)s?\b)(basis points|[a-z]+)"
    r"|\bin (dollars)\b"
)
_PAGE_END: Final = re.compile(r"(?:\.pdf)?(?:-[0-9]+)?$")


class Qa(BaseModel):
    """Question of an entry. `answer` is the result as a person wrote it, `exe_ans` the result of a program."""

    model_config = ConfigDict(strict=True)

    question: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
    exe_ans: float | Literal["yes", "no"]
    answer: Annotated[str, StringConstraints(max_length=2_000)] | float | None = None

    @field_validator("exe_ans", mode="plain")
    @classmethod
    def _number_or_word(cls, value: object) -> object:
        if value in ("yes", "no") or (
            isinstance(value, int | float) and type(value) is not bool and abs(value) <= 1e15
        ):
            return value
        raise ValueError("give a number, 1e15 at most in size, or yes or no")


class Entry(BaseModel):
    """Entry of the release. Its other fields are not used."""

    model_config = ConfigDict(strict=True)

    id: Name
    filename: Name | None = None
    pre_text: Annotated[list[Sentence], Field(max_length=1_000)]
    post_text: Annotated[list[Sentence], Field(max_length=1_000)]
    table: Annotated[list[Annotated[list[Cell], Field(max_length=100)]], Field(max_length=500)]
    qa: Qa

    @property
    def path(self) -> str:
        """Path of the page in the library, such as `ETR/2016/page_23`."""
        return _PAGE_END.sub("", self.filename or self.id)

    @property
    def company(self) -> str:
        return self.path.partition("/")[0]

    def lines(self) -> list[str]:
        """Return the page's sentences, and the rows of its table with the names of the columns."""
        header, *body = self.table or [[]]
        columns, body = (header, body) if body else ([], [header])
        cells = [
            [f"{name}: {cell}" if name and cell else cell for name, cell in zip_longest(columns, row, fillvalue="")]
            for row in body
        ]
        sentences = (*self.pre_text, *(" | ".join(filter(None, map(str.strip, row))) for row in cells), *self.post_text)
        return [line for sentence in sentences if len(line := " ".join(sentence.split())) > 1]


class BadRelease(ValueError):
    """A file does not have the release's format. The message names entries and fields."""


def read_release(path: Path, skip_bad: bool = False) -> tuple[list[Entry], list[str]]:
    """Return the entries of a file, and the problems of the bad entries that `skip_bad` leaves out.

    Raises:
        BadRelease: The file is not a list of entries, is too large or, without `skip_bad`, has bad entries.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BadRelease(f"{path}: larger than {MAX_FILE_BYTES} bytes; split it into several files")
    try:
        loaded = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadRelease(f"{path}: not JSON ({str(error)[:200]}); give a file of the release") from None
    if not isinstance(loaded, list) or not 0 < len(loaded) <= MAX_ENTRIES:
        raise BadRelease(f"{path}: not a list of 1 to {MAX_ENTRIES} entries; give a file of the release")
    entries, problems = dict[str, Entry](), list[str]()
    for number, each in enumerate(loaded, 1):
        try:
            entry = Entry.model_validate(each)
        except ValidationError as error:
            problems += (f"{_named(each, number)}: {field}" for field in _fields(error))
        else:
            if not 0 < sum(map(len, entry.lines())) <= MAX_PAGE_CHARS:
                wanted = f"give 1 to {MAX_PAGE_CHARS} characters in all"
                problems.append(f"{_named(each, number)}: pre_text, table, post_text: empty or too long; {wanted}")
            elif entry.id in entries:
                problems.append(f"{_named(each, number)}: id is that of an earlier entry; give each its own")
            else:
                entries[entry.id] = entry
    if problems and not skip_bad:
        more = [f"... {len(problems) - MAX_SHOWN} more"] if len(problems) > MAX_SHOWN else []
        listed = "\n  ".join(problems[:MAX_SHOWN] + more)
        raise BadRelease(f"{path}:\n  {listed}\ncorrect them, or leave these entries out with --skip-bad")
    if not entries:
        raise BadRelease(f"{path}: all entries are bad, for example {problems[0]}")
    return list(entries.values()), problems


def _named(entry: Any, number: int) -> str:
    """Name an entry by its number and its id, which may have any type here."""
    name = entry.get("id") if isinstance(entry, dict) else None
    return f"entry {number}" + (f" ({name[:100]!r})" if isinstance(name, str) else "")


def _fields(error: ValidationError) -> Iterator[str]:
    for found in error.errors(include_url=False, include_input=False)[:MAX_SHOWN]:
        yield f"{'.'.join(map(str, found['loc'])) or 'entry'}: {found['msg'].removeprefix('Value error, ')}"


def answer_of(qa: Qa) -> tuple[Figure, Decimal] | str:
    """Return the right answer in the expected notation, and its value with all known decimals; or "yes" or "no".

    The value is `exe_ans`, which has five decimals, and the notation is that of `answer` if both agree. They may differ
    in the sign, because a question such as "how much did it fall" implies the sign.
    """
    if isinstance(qa.exe_ans, str):
        return qa.exe_ans
    result = rounded(Decimal(repr(float(qa.exe_ans))), NUM_DECIMALS)
    for found in figures(str(qa.answer or ""))[:1]:
        written = replace(found, unit="") if found.unit == "times" else found
        shares = (result, result / SCALES[written.unit]) if written.unit in ("percent", "basis points") else (result,)
        for share in (*shares, *(-share for share in shares)):
            if rounded(share, written.decimals) == written.number:
                return written, share
    if "percent" in qa.question.lower() or "%" in qa.question:
        return Figure(rounded(100 * result, 2).normalize(), "percent"), result / SCALES["percent"]
    return Figure(result.normalize()), result


def unit_asked(question: str, unit: str) -> str:
    """Return the words that may follow a figure with this unit, such as "million", "thousand tons" or "times".

    Only the held-out grade uses them, because `grade` reads the question itself.
    """
    asked = question.lower()
    scale, counted = _SCALE_ASKED.search(asked), _COUNTED.search(asked)
    words = [scale[1]] if scale and not unit else []
    words += [word for word in (counted.groups() if counted else ()) if word and word != unit]
    return " ".join(words) or ("times" if "ratio" in asked and not unit else "")


def split_of(company: str) -> Split:
    return "test" if _digest(company)[0] % TEST_PART == 0 else "train"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def row(entry: Entry) -> dict[str, Any]:
    """Return the row of a task. Tools and graders receive the full row as `item`; it has no text of the report."""
    found = answer_of(entry.qa)
    if isinstance(found, str):
        keys = {"answer": found, "figure": found, "unit": "", "unit_asked": "", "exact": ""}
    else:
        answer, exact = found
        keys = {"answer": str(answer), "figure": f"{answer.number.normalize():f}", "unit": answer.unit}
        keys |= {"unit_asked": unit_asked(entry.qa.question, answer.unit), "exact": f"{exact:f}"}
    return {
        "messages": [SYSTEM, {"role": "user", "content": entry.qa.question}],
        "tools": SCHEMAS,
        "question": entry.qa.question,
        **keys,
        "report": entry.path,
        "company": entry.company,
    }


def documents(entries: Iterable[Entry]) -> list[Document]:
    """Return one document per page, with the lines of all entries about the page."""
    pages = dict[str, dict[str, None]]()
    for entry in entries:
        pages.setdefault(entry.path, {}).update(dict.fromkeys(entry.lines()))
    return [Document(path=path, lines=tuple(lines)) for path, lines in pages.items()]


def rows(entries: Iterable[Entry], split: Split) -> list[dict[str, Any]]:
    """Return the rows of a split, sorted by hash, so that the first rows belong to many companies."""
    return [row(entry) for entry in sorted(entries, key=lambda e: _digest(e.id)) if split_of(entry.company) == split]


def convert(paths: Sequence[Path], folder: Path, num_rows: int | None = None, skip_bad: bool = False) -> list[str]:
    """Write the three files, with at most `num_rows` rows for training, and return lines that describe the result.

    Raises:
        BadRelease: See `read_release`.
        OSError: A file cannot be read or written.
    """
    read = [read_release(path, skip_bad) for path in paths]
    entries = [entry for found, _ in read for entry in found]
    if len({entry.id for entry in entries}) < len(entries):
        raise BadRelease("two files have an entry with the same id; give each file once")
    pages = documents(entries)
    train, test = rows(entries, "train")[:num_rows], rows(entries, "test")
    write_rows(folder / "documents.jsonl", (page.model_dump() for page in pages))
    write_rows(folder / "train.jsonl", train)
    write_rows(folder / "test.jsonl", test)
    done = f"{len(pages)} documents, {len(train)} rows for training, {len(test)} for the test, of other companies"
    return [*(f"left out: {problem}" for _, problems in read for problem in problems), f"{folder}: {done}"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.finqa.convert")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="such as dataset/train.json")
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER", help="is created if necessary")
    parser.add_argument("--train", type=int, metavar="N", help="rows for training at most; default: all")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad entries out and list them")
    options = parser.parse_args()
    if options.train is not None and options.train < 1:
        parser.error("--train: give a number of at least 1")
    try:
        print("\n".join(convert(options.files, options.to, options.train, options.skip_bad)))
    except (BadRelease, OSError) as error:
        raise SystemExit(f"error {error}") from None


if __name__ == "__main__":
    main()
