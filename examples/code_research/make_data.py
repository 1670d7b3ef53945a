"""Writes the rows in `data/`: `python -m examples.code_research.make_data [FOLDER]`.

The files are the same every time for one minor version of Python, which each row names. For another version, write
your own rows: defaults and methods change between versions, and the facts must match the library that the tools read.
`--warm-start FILE` writes conversations instead. They quote the library of this computer, so they are not in `data/`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from examples.code_research.library import TOOLS, Library
from examples.code_research.questions import Part, parts_of
from examples.common.rows import turn, write_rows

DATA: Final = Path(__file__).parent / "data"
NUM_STEP: Final = 8
NUM_WARM_START: Final = 16
PER_FILE: Final = 6
PER_PACKAGE: Final = 28
MAX_SOURCE_CHARS: Final = 100_000
"""Maximum length of a source file. Larger files are skipped because they would take most of the time."""
READ_LINES: Final = 15
SYSTEM: Final = {
    "role": "system",
    "content": "Answer from the sources of Python's standard library; read them with the tools. "
    "Your answer is a list of `name: value`, one a line, and nothing else.",
}
SIMILAR: Final = ("ctypes/macholib/", "encodings/", "distutils/", "tkinter/", "turtle")
DIFFERS: Final = ("_", "antigravity", "config-", "datetime", "site.py", "sysconfig", "this.py")
"""Path prefixes of files that differ by platform or build, or from the C module that Python imports instead."""
REMOVED: Final = (
    *("aifc", "asynchat", "asyncore", "cgi", "chunk", "crypt", "imghdr", "imp.", "mailcap", "nntplib", "pipes"),
    *("smtpd", "sndhdr", "sunau", "telnetlib", "uu.", "xdrlib"),
)
"""Path prefixes of modules that newer versions of Python have removed."""
PATCHED: Final = (
    "email/",
    "html/",
    "http/",
    "ipaddress",
    "logging/config",
    "ssl",
    "tarfile",
    "urllib/",
    "xml/",
    "zipfile",
)
"""Path prefixes of files that patch releases of one minor version change."""
LEFT_OUT: Final = SIMILAR + DIFFERS + REMOVED + PATCHED
Split = Literal["train", "test"]
NUM_ROWS: Final[dict[Split, int]] = {"train": 240, "test": 100}
Task = tuple[str, tuple[Part, ...]]
"""Path of a source file, and the parts of the question about it."""


def module_of(path: str) -> str:
    """Return the module name of a path: `json.decoder` for `json/decoder.py`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def split_of(path: str) -> Split:
    """Return the split of a file, chosen by its package, because files of a package cite each other."""
    package = module_of(path).partition(".")[0]
    return "test" if _digest(package)[0] % 3 == 0 else "train"


def row(path: str, parts: Sequence[Part]) -> dict[str, Any]:
    """Return the row of a task. Tools and grader receive the full row as `item`."""
    facts = [{"name": fact.name, "value": fact.value} for part in parts for fact in part.facts]
    return {
        "messages": [SYSTEM, {"role": "user", "content": " ".join(part.text(module_of(path)) for part in parts)}],
        "tools": [tool.schema() for tool in TOOLS.values()],
        "facts": facts,
        "kinds": [part.kind for part in parts],
        "module": module_of(path),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def tasks(library: Library, split: Split) -> Iterator[Task]:
    """Yield all tasks of a split, file by file. Every second task has a part of another kind, too, if there is one."""
    taken = Counter[str]()
    for path in sorted(library.files, key=_digest):
        package = path.partition("/")[0]
        if path.startswith(LEFT_OUT) or split_of(path) != split or taken[package] >= PER_PACKAGE:
            continue
        source = library.files[path]
        parts = list(parts_of(source)) if len(source) <= MAX_SOURCE_CHARS else []
        parts.sort(key=lambda part: _digest(f"{path} {part.kind} {part.subject}"))  # others stay if one is added
        for number, part in enumerate(parts[:PER_FILE]):
            others = [
                other for other in parts[PER_FILE:] if other.kind != part.kind and not _names(other) & _names(part)
            ]
            taken[package] += 1
            yield path, (part, *others[:1]) if number % 2 else (part,)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _names(part: Part) -> set[str]:
    return {fact.name for fact in part.facts}


def conversation(library: Library, path: str, parts: Sequence[Part]) -> dict[str, Any]:
    """Return a row for the SFT warm-up: an agent searches, reads the lines and answers."""
    (part,) = parts
    task = row(path, parts)
    query = f"{module_of(path).rpartition('.')[2]} {part.names[0]}"
    source = {"path": path, "start": part.line, "end": part.line + READ_LINES}
    calls: list[tuple[str, dict[str, Any]]] = [("search", {"query": query}), ("retrieve", source)]
    for number, (tool, arguments) in enumerate(calls):
        task["messages"] += turn([(tool, arguments, TOOLS[tool].call(library, arguments))], first=number)
    answer = "\n".join(f"{fact.name}: {fact.value}" for fact in part.facts)
    return {"messages": [*task["messages"], {"role": "assistant", "content": answer}], "tools": task["tools"]}


def write_data(folder: Path, library: Library) -> None:
    """Write the rows for training, test and one step on two cores; the folder is created if necessary."""
    for split, num_rows in NUM_ROWS.items():
        some = list(islice(tasks(library, split), num_rows))
        some.sort(key=lambda task: _digest(f"{task[0]} {task[1][0].kind} {task[1][0].subject}"))
        write_rows(folder / f"{split}.jsonl", [row(*task) for task in some])
    short = islice(filter(_is_short, tasks(library, "train")), NUM_STEP)
    write_rows(folder / "step.jsonl", [row(*task) for task in short])


def write_warm_start(path: Path, library: Library) -> None:
    """Write conversations about files of the training packages that the training rows do not ask about."""
    others = islice(tasks(library, "train"), NUM_ROWS["train"] + PER_FILE, None)
    some = islice(filter(_is_short, others), NUM_WARM_START)
    write_rows(path, [conversation(library, *task) for task in some])


def _is_short(task: Task) -> bool:
    """Return whether a question has only one part, which the first lines of a definition answer."""
    _, parts = task
    return len(parts) == 1 and parts[0].kind == "parameters"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.code_research.make_data", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help="default: data/")
    parser.add_argument("--warm-start", type=Path, metavar="FILE", help="write conversations to this file instead")
    options = parser.parse_args()
    if options.warm_start is not None:
        write_warm_start(options.warm_start, Library())
    else:
        write_data(options.folder, Library())


if __name__ == "__main__":
    main()
