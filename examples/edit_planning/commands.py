"""Commands that a model may run in its checkout. They can only read, and only inside the checkout.

There is no shell: a command is split into words, and each word is the name of a program below, one of its options, a
text to search for, or a path in the checkout. The text is searched for literally. A program runs with limits, in the
checkout, without input and, if the kernel permits it, without a network. It can read the same files as the server:
only the check of the words keeps it inside the checkout. Run programs that a model has written in containers instead.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from examples.edit_planning.repositories import GIT_ENVIRONMENT

MAX_COMMAND_CHARS: Final = 300
MAX_OUTPUT_CHARS: Final = 4_000
WALL_S: Final = 10.0
LIMITS: Final = ("prlimit", "--cpu=5", "--as=1073741824", "--fsize=65536", "--nofile=256", "--core=0", "--")
"""Command that starts a program with limits. `fsize` limits the output, which goes to a file."""
NOTHING: Final = "nothing found"
OPERATORS: Final = frozenset(("|", "||", "&&", ";", "&", ">", ">>", "<", "<<"))
_REVISION: Final = re.compile(r"HEAD(~[0-9]{1,3})?|[0-9a-f]{4,40}")
_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_SHORT_NUMBER: Final = re.compile(r"-[0-9]{1,4}")
_NO_COLOUR: Final = ("git", "-c", "color.ui=false", "-c", "grep.threads=1")


class Refused(ValueError):
    """A command or path is not allowed. The message is for the model."""


@dataclass(frozen=True, slots=True)
class Program:
    """Program behind a command's name, and its allowed options. The options in `valued` take a number."""

    argv: tuple[str, ...]
    options: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    takes_pattern: bool = False
    takes_revision: bool = False


def _options(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOG: Final = _options("--oneline --stat --name-only --name-status --all --reflog --no-merges -p")
PROGRAMS: Final[Mapping[str, Program]] = {
    "ls": Program(("ls", "-p"), _options("-1 -a -A -l -R")),
    "cat": Program(("cat",), _options("-n")),
    "head": Program(("head",), valued=_options("-n")),
    "wc": Program(("wc",), _options("-l -c")),
    # git's own grep searches the files of the checkout in a fixed order, and follows no links.
    "grep": Program(
        (*_NO_COLOUR, "grep", "-I", "-F"), _options("-r -R -l -n -i -w -c -h -F"), _options("-A -B -C"), True
    ),
    "git log": Program((*_NO_COLOUR, "log"), _LOG, _options("-n")),
    "git show": Program((*_NO_COLOUR, "show"), _LOG, takes_revision=True),
    "git ls-files": Program((*_NO_COLOUR, "ls-files")),
    "git reflog": Program((*_NO_COLOUR, "reflog")),
}
_NOT_OF_GIT: Final = _options("-r -R")
"""Options of grep that `git grep` does not support and does not need."""


def run(command: str, checkout: Path) -> str:
    """Run a command and return its output, truncated.

    Raises:
        Refused: The command is not allowed, or took too long.
    """
    argv = argv_of(command, checkout)
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [*without_network(), *LIMITS, *argv],
                cwd=checkout,
                env=GIT_ENVIRONMENT | {"GIT_CEILING_DIRECTORIES": str(checkout.parent)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=WALL_S,
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"it took more than {WALL_S:.0f} s: ask for less") from None
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    return cut(text) or (NOTHING if done.returncode in (0, 1) else f"failed with {done.returncode}: ask for less")


def read_file(path: str, checkout: Path) -> str:
    """Return the text of a file, truncated.

    Raises:
        Refused: The file is not in the checkout or cannot be read.
    """
    try:
        with (checkout / inside(path, checkout)).open("rb") as file:
            return cut(file.read(4 * MAX_OUTPUT_CHARS).decode(errors="replace").rstrip())
    except OSError as error:
        raise Refused(f"it cannot be read: {error.strerror}") from None


def cut(text: str) -> str:
    return text if len(text) <= MAX_OUTPUT_CHARS else f"{text[:MAX_OUTPUT_CHARS]}\n... cut"


@dataclass(slots=True)
class _Words:
    options: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)


def argv_of(command: str, checkout: Path) -> list[str]:
    """Return the program and the arguments that run a command.

    Raises:
        Refused: The command is not allowed.
    """
    if not _is_short_text(command):
        raise Refused(f"a command is a text of at most {MAX_COMMAND_CHARS} characters")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Refused(f"{error}".lower()) from None
    name = " ".join(words[:2] if words[:1] == ["git"] else words[:1])
    if not OPERATORS.isdisjoint(words):
        raise Refused("there is no shell: give one command, and several calls for several commands")
    if name not in PROGRAMS:
        raise Refused(f"give one of these commands: {', '.join(PROGRAMS)}")
    program = PROGRAMS[name]
    sorted_words = _sort(words[len(name.split()) :], program)
    argv, plain = [*program.argv, *sorted_words.options], sorted_words.plain
    if program.takes_pattern:
        if not plain or not plain[0] or "\n" in plain[0]:
            raise Refused("give a text to search for")
        argv += ["-e", plain.pop(0)]
    if program.takes_revision and plain and _REVISION.fullmatch(plain[0]):
        argv.append(plain.pop(0))
    return [*argv, "--", *(inside(path, checkout) for path in plain)] if name != "git reflog" else argv


def _sort(words: Sequence[str], program: Program) -> _Words:
    """Separate the options of a command, in the format of the program, from its other words.

    Raises:
        Refused: An option is not allowed.
    """
    found, rest = _Words(), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            found.plain += rest
            break
        if not word.startswith("-"):
            found.plain.append(word)
        elif word in program.valued and rest and _NUMBER.fullmatch(rest[0]):
            found.options += [word, rest.pop(0)]
        elif "-n" in program.valued and _SHORT_NUMBER.fullmatch(word):
            found.options += ["-n", word[1:]]
        elif program.takes_pattern and word == "-e" and rest and not found.plain:
            found.plain.append(rest.pop(0))
        else:
            single = [word] if word in program.options else [f"-{letter}" for letter in word[1:]]
            if not single or not program.options.issuperset(single):
                allowed = " ".join(sorted(program.options | program.valued)) or "none"
                raise Refused(f"{word[:20]} is not allowed here; allowed: {allowed}")
            found.options += [option for option in single if not program.takes_pattern or option not in _NOT_OF_GIT]
    return found


def inside(path: str, checkout: Path) -> str:
    """Return the path unchanged if it is inside the checkout.

    Raises:
        Refused: The path leads outside, or into git's own folder.
    """
    parts = PurePosixPath(path).parts
    own = any(part.lower() == ".git" for part in parts)
    if not path or not _is_short_text(path) or path.startswith("/") or ".." in parts or own:
        raise Refused("give paths inside the repository, such as README.md")
    if not (checkout / path).resolve().is_relative_to(checkout.resolve()):
        raise Refused("give paths inside the repository, such as README.md")
    return path


def _is_short_text(text: str) -> bool:
    """Return whether a string can be an argument: it is short and has no null characters or lone surrogates."""
    return len(text) <= MAX_COMMAND_CHARS and "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


@cache
def without_network() -> tuple[str, ...]:
    """Return the command that starts a program without a network; empty if the kernel does not permit it."""
    command = ("unshare", "--user", "--map-root-user", "--net", "--")
    try:
        done = subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=WALL_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return command if done.returncode == 0 else ()


TOOLS: Final[Mapping[str, tuple[str, Callable[[str, Path], str]]]] = {
    "shell": ("command", run),
    "read_file": ("path", read_file),
}
"""Name of each tool, with its only parameter and its function."""
