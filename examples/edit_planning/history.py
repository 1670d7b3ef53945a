"""Generates small repositories with a history: `python -m examples.edit_planning.history [FOLDER]`.

The repositories are the same every time. A change fixes or renames two or three functions. A fix touches the file that
defines the function; a rename touches all files that contain the name. Repositories for training use other words than
repositories for validation and test.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, Literal

from examples.edit_planning.repositories import GIT_ENVIRONMENT, REPOSITORIES

Split = Literal["train", "validation", "test"]
NAMES: Final[Mapping[Split, Sequence[str]]] = {
    "train": (
        "bakery",
        "cinema",
        "clinic",
        "depot",
        "farm",
        "garage",
        "harbour",
        "hotel",
        "market",
        "museum",
        "school",
    ),
    "validation": ("library",),
    "test": ("airport", "brewery", "laundry", "orchard", "quarry", "theatre"),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_OTHER_NOUNS: Final = _words("gate malt shirt apple stone stage flight keg iron crate drill ticket cabin hop")
NOUNS: Final[Mapping[Split, Sequence[str]]] = {
    "train": _words("box bill seat ward lane crop tyre ship room coin desk card plan note tool pump oven reel dose"),
    "validation": _OTHER_NOUNS,
    "test": _OTHER_NOUNS,
}
VERBS: Final = _words("add book check count draw find hold load mark move open pack pick read send sort split")
FOLDERS: Final = ("api", "app", "core", "lib")
README: Final = "README.md"
NUM_COMMITS: Final = 24
NUM_MODULES: Final = 8
NUM_TESTS: Final = 3
MOST_TOUCHED: Final = 5
FIRST_DAY: Final = 1_700_000_000
"""Time of each history's first commit in Unix seconds; the other commits follow at intervals of one day."""
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Part:
    """Change of one function: the function is renamed, or fixed if `new_name` is None."""

    function: str
    new_name: str | None

    @property
    def text(self) -> str:
        return f"fix {self.function}" if self.new_name is None else f"rename {self.function} to {self.new_name}"

    @property
    def wanted(self) -> str:
        """Text that all files contain which this part touches, and no other files."""
        return f"def {self.function}" if self.new_name is None else self.function


@dataclass(frozen=True, slots=True)
class Change:
    """A commit: its parts, and the files before and after it, by path."""

    parts: tuple[Part, ...]
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def message(self) -> str:
        texts = [part.text for part in self.parts]
        text = " and ".join((", ".join(texts[:-1]), texts[-1]))
        return text[0].upper() + text[1:]

    @property
    def files(self) -> list[str]:
        return sorted(path for path, text in self.after.items() if self.before.get(path) != text)

    def found(self, part: Part) -> list[str]:
        """Return the paths that a search for the part's text `wanted` finds before the change."""
        return sorted(path for path, text in self.before.items() if part.wanted in text)


def changes(name: str, split: Split) -> tuple[Mapping[str, str], list[Change]]:
    """Return the first files of a generated repository, by path, and its changes in order."""
    rng = random.Random(name)
    names = [f"{verb}_{noun}" for verb, noun in product(VERBS, NOUNS[split])]
    rng.shuffle(names)
    unused = iter(names)
    first = _first_files(split, unused, rng)
    files: Mapping[str, str] = first
    made = list[Change]()
    while len(made) < NUM_COMMITS:
        change = _draw(files, unused, rng)
        if 2 <= len(change.files) <= MOST_TOUCHED:
            made.append(change)
            files = change.after
    return first, made


def _first_files(split: Split, unused: Iterator[str], rng: random.Random) -> dict[str, str]:
    folder = rng.choice(FOLDERS)
    modules = rng.sample(NOUNS[split], NUM_MODULES)
    places = {module: f"{folder}/{module}" if i % 2 else module for i, module in enumerate(modules)}
    own = {module: (next(unused), next(unused)) for module in modules}
    files = dict[str, str]()
    for module in modules:
        used = [(other, rng.choice(own[other])) for other in rng.sample([m for m in modules if m != module], 2)]
        imports = "".join(f"from {places[other].replace('/', '.')} import {name}\n" for other, name in used)
        bodies = (
            f"\n\ndef {name}(value):\n    return {called}(value) + {rng.randint(1, 99)}\n"
            for name, (_, called) in zip(own[module], used, strict=True)
        )
        files[f"{places[module]}.py"] = imports + "".join(bodies)
    for module in rng.sample(modules, NUM_TESTS):
        name = rng.choice(own[module])
        source = (
            f"from {places[module].replace('/', '.')} import {name}\n\n\ndef test_it():\n    assert {name}(2) > 2\n"
        )
        files[f"tests/test_{module}.py"] = source
    entries = (rng.choice(own[module]) for module in rng.sample(modules, 3))
    files[README] = "Start with:\n\n" + "".join(f"- `{name}`\n" for name in entries)
    return files


def _draw(files: Mapping[str, str], unused: Iterator[str], rng: random.Random) -> Change:
    defined = sorted(name for text in files.values() for name in re.findall(r"def (\w+_\w+)\(value", text))
    num_parts = 3 if rng.random() < 0.4 else 2
    parts, after = list[Part](), dict(files)
    for function in rng.sample(defined, num_parts):
        new_name = next(unused) if rng.random() < 0.6 else None
        parts.append(Part(function, new_name))
        for path, text in after.items():
            after[path] = _fixed(text, function) if new_name is None else text.replace(function, new_name)
    return Change(tuple(parts), files, after)


def _fixed(text: str, function: str) -> str:
    """Return the text with another number in the function, if the function is defined in the text."""
    pattern = rf"(def {function}\(value\):\n    return .* \+ )(\d+)"
    return re.sub(pattern, lambda found: f"{found[1]}{int(found[2]) + 1}", text)


def write_repository(name: str, split: Split, folder: Path) -> list[str]:
    """Write a bare repository, and return the ids of its changes, oldest first."""
    first, made = changes(name, split)
    stream = [*_commit(0, "Begin", first, sorted(first))]
    for day, change in enumerate(made, 1):
        stream += _commit(day, change.message, change.after, change.files)
    making = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(making, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    _git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", making)
    _git("-C", making, "fast-import", "--quiet", stdin="".join(stream))
    ids = _git("-C", making, "rev-list", "--reverse", "main").split()
    shutil.rmtree(folder, ignore_errors=True)
    making.rename(folder)
    return ids[1:]


def _commit(day: int, message: str, files: Mapping[str, str], paths: Sequence[str]) -> Iterator[str]:
    yield f"commit refs/heads/main\ncommitter Made <made@example.com> {FIRST_DAY + day * DAY_S} +0000\n"
    yield f"data {len(message)}\n{message}\n"
    for path in paths:
        yield f"M 100644 inline {path}\ndata {len(files[path])}\n{files[path]}\n"


def _git(*arguments: str | Path, stdin: str = "") -> str:
    command = ["git", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, env=GIT_ENVIRONMENT).stdout


def write_missing(folder: Path = REPOSITORIES) -> None:
    """Write the generated repositories that do not exist yet."""
    for split, names in NAMES.items():
        for name in names:
            if not (folder / name).exists():
                write_repository(name, split, folder / name)


if __name__ == "__main__":
    write_missing(*map(Path, sys.argv[1:]))
