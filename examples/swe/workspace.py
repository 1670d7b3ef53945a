"""Private copy of a project for one rollout, with the tools that read, change and run the files.

The files are strings in a dictionary of this process, so the model cannot use paths or links to reach other files. Code
of the model cannot change the dictionary: each run gets a copy of the files in a new sandbox (`runs.py`).
"""

from __future__ import annotations

import difflib
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from examples.common.tool import Tool, by_name
from examples.swe import runs
from examples.swe.bugs import Bug
from examples.swe.projects import Project, project

MAX_FILES: Final = 40
MAX_FILE_CHARS: Final = 20_000
MAX_PATH_CHARS: Final = 100
"""Maximum characters of a path. The sandbox accepts 200 bytes, including the folder that the grader adds."""
MAX_QUERY_CHARS: Final = 100
MAX_FOUND: Final = 20
MAX_LINES: Final = 60
MAX_LINE_CHARS: Final = 160
MAX_DIFF_LINES: Final = 120
MAX_CHANGES: Final = 100
MAX_RUNS: Final = 60
MAX_TERMINALS: Final = 3
MAX_SENT: Final = 12
PATH: Final = re.compile(r"[A-Za-z_][\w-]*(/[A-Za-z_][\w-]*){0,3}\.\w{1,5}", re.ASCII)


class Workspace:
    """Copy of a project. Callers hold `lock` during a call, because the calls of one turn may arrive concurrently."""

    def __init__(self, row: Mapping[str, Any], run: runs.Run = runs.sandboxed) -> None:
        """Copy the project of a row and insert its bug.

        Raises:
            KeyError, TypeError, ValueError: The row does not belong to this example.
        """
        self.project: Project = project(row["project"])
        self.original = Bug(**row["bug"]).in_files(dict(self.project.files))
        self.files = dict(self.original)
        self.lock = threading.Lock()
        self.answers: dict[tuple[str, str, str], str] = {}
        """Outputs by call id, tool and arguments. A repeated call gets the output of the first call."""
        self.done_since_change = set[str]()
        """Names of the tools, `run_tests` and `lint`, that ran on the complete project since the last change."""
        self._before: list[dict[str, str]] = []
        self._terminals: dict[str, list[str]] = {}
        self._num_terminals = self._num_runs = 0
        self.run = run

    @property
    def changed(self) -> list[str]:
        """Paths of the added, changed and deleted files, sorted."""
        paths = sorted(self.original.keys() | self.files.keys())
        return [path for path in paths if self.original.get(path) != self.files.get(path)]

    # Reading

    def list_files(self) -> str:
        return "\n".join(f"{path} ({len(text.splitlines())} lines)" for path, text in sorted(self.files.items()))

    def read_file(self, path: str, start: int = 1, end: int | None = None) -> str:
        lines = self._text(path).splitlines()
        last = min(len(lines), start + MAX_LINES - 1, len(lines) if end is None else end)
        if not 1 <= start <= last:
            raise ValueError(f"{path} has lines 1 to {len(lines)}; give start and end among them")
        return "\n".join(f"{number} {_cut(lines[number - 1])}" for number in range(start, last + 1))

    def grep(self, text: str) -> str:
        wanted = _query(text)
        return self._lines(lambda line: wanted in line)

    def keyword_search(self, words: str) -> str:
        wanted = _query(words).lower().split()
        counts = {path: [text.lower().count(word) for word in wanted] for path, text in self.files.items()}
        found = sorted((path for path in counts if any(counts[path])), key=lambda path: _rank(counts[path]))
        return "\n".join(f"{path}: {sum(counts[path])}" for path in found[:MAX_FOUND]) or "nothing found"

    def find_symbol(self, name: str) -> str:
        if not _query(name).isidentifier():
            raise ValueError("give one name, such as `parse`")
        word = re.compile(rf"\b{re.escape(name)}\b")
        return self._lines(lambda line: word.search(line) is not None, f"def {name}(", f"class {name}")

    def diff(self) -> str:
        lines = self.diff_lines()
        more = [f"... {len(lines) - MAX_DIFF_LINES} more lines"] if len(lines) > MAX_DIFF_LINES else []
        return "\n".join([_cut(line) for line in lines[:MAX_DIFF_LINES]] + more) or "no changes"

    def diff_lines(self) -> list[str]:
        """Return the changes of all files as a unified diff."""
        return [line for diff in self._diffs() for line in diff]

    def num_changed_lines(self) -> int:
        """Return the number of removed and added lines. The two header lines of each file's diff do not count."""
        return sum(line[0] in "+-" for diff in self._diffs() for line in diff[2:])

    # Changing

    def edit(self, path: str, start: int, end: int, text: str) -> str:
        lines = self._text(path).split("\n")
        if not 1 <= start <= end <= len(lines):
            raise ValueError(f"{path} has lines 1 to {len(lines)}; give start and end among them")
        return self._change(path, "\n".join([*lines[: start - 1], *text.removesuffix("\n").split("\n"), *lines[end:]]))

    def replace(self, path: str, old: str, new: str) -> str:
        text = self._text(path)
        if not old or text.count(old) != 1:
            raise ValueError(f"`old` must occur once in {path}, and occurs {text.count(old) if old else 0} times")
        return self._change(path, text.replace(old, new))

    def write_file(self, path: str, text: str) -> str:
        if len(path) > MAX_PATH_CHARS or PATH.fullmatch(path) is None or path == "main.py":
            raise ValueError(f"give a path such as `package/module.py`, of at most {MAX_PATH_CHARS} characters")
        if any(other.startswith(f"{path}/") or path.startswith(f"{other}/") for other in self.files):
            raise ValueError(f"{path} would be both a file and a folder")
        return self._change(path, text)

    def delete_file(self, path: str) -> str:
        self._text(path)
        return self._change(path, None)

    def undo(self) -> str:
        if not self._before:
            return "nothing to undo"
        self.files = self._before.pop()
        self.done_since_change.clear()
        return "undone"

    # Running

    def run_tests(self, test: str = "") -> str:
        if test and not all(part.isidentifier() for part in _query(test).split(".")):
            raise ValueError("give the name of a test, such as those of the task, or none for all")
        output = self._ran(lambda: runs.run_tests(self.files, [test or self.project.tests], self.run))
        if not test:
            self.done_since_change.add("run_tests")
        return output

    def lint(self) -> str:
        paths = [path for path in sorted(self.files) if self.project.is_source(path)]
        found = self._ran(lambda: "\n".join(runs.run_lint(self.files, paths, self.run)))
        self.done_since_change.add("lint")
        return found[: runs.MAX_OUTPUT_CHARS] or "no findings"

    def terminal_start(self) -> str:
        if len(self._terminals) >= MAX_TERMINALS:
            raise ValueError(f"{MAX_TERMINALS} terminals are open; close one")
        self._num_terminals += 1
        self._terminals[f"t{self._num_terminals}"] = []
        return f"t{self._num_terminals}"

    def terminal_send(self, terminal: str, text: str) -> str:
        sent = self._terminal(terminal)
        if len(sent) >= MAX_SENT or len(text) > MAX_FILE_CHARS:
            raise ValueError(f"a terminal takes {MAX_SENT} texts of {MAX_FILE_CHARS} characters; start another one")
        mark = secrets.token_hex(8)
        output = self._ran(lambda: runs.run_terminal(self.files, [*sent, text], mark, self.run))
        sent.append(text)  # only now, since a call whose run failed is repeated
        return output

    def terminal_close(self, terminal: str) -> str:
        self._terminal(terminal).clear()
        del self._terminals[terminal]
        return "closed"

    # Parts

    def _diffs(self) -> Iterator[list[str]]:
        for path in self.changed:
            old, new = self.original.get(path, ""), self.files.get(path, "")
            yield list(difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="", n=1))

    def _text(self, path: str) -> str:
        if path not in self.files:
            raise ValueError("no such file; list_files gives the paths")
        return self.files[path]

    def _lines(self, fits: Callable[[str], bool], *first: str) -> str:
        found = [
            (not any(start in line for start in first), f"{path}:{number}: {_cut(line.strip())}")
            for path, text in sorted(self.files.items())
            for number, line in enumerate(text.splitlines(), 1)
            if fits(line)
        ]
        return "\n".join(line for _, line in sorted(found, key=lambda each: each[0])[:MAX_FOUND]) or "nothing found"

    def _change(self, path: str, text: str | None) -> str:
        files = {other: kept for other, kept in self.files.items() if other != path}
        if text is not None:
            files[path] = text
        if len(files) > MAX_FILES or len(text or "") > MAX_FILE_CHARS or len(self._before) >= MAX_CHANGES:
            raise ValueError(f"at most {MAX_FILES} files of {MAX_FILE_CHARS} characters, and {MAX_CHANGES} changes")
        self._before.append(self.files)
        self.files = files
        self.done_since_change.clear()
        return "done"

    def _ran(self, what: Callable[[], str]) -> str:
        if self._num_runs >= MAX_RUNS:
            raise ValueError(f"{MAX_RUNS} runs are all that there are; answer now")
        output = what()
        self._num_runs += 1
        return output

    def _terminal(self, name: str) -> list[str]:
        if name not in self._terminals:
            raise ValueError("no such terminal; terminal_start gives its name")
        return self._terminals[name]


def _query(text: str) -> str:
    if not text.strip() or len(text) > MAX_QUERY_CHARS:
        raise ValueError(f"give 1 to {MAX_QUERY_CHARS} characters")
    return text


def _rank(counts: list[int]) -> tuple[int, int]:
    """Return the sort key of a file: files with more different words first, then files with more occurrences."""
    return -sum(map(bool, counts)), -sum(counts)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 3] + "..."


_LINES: Final = {"path": str, "start": int, "end": int}
_TEXTS: Final = {"path": str, "old": str, "new": str}
TOOLS: Final[dict[str, Tool[Workspace]]] = by_name(
    Tool("list_files", "All files.", {}, Workspace.list_files, 0),
    Tool("read_file", f"Lines of a file, {MAX_LINES} at most.", _LINES, Workspace.read_file),
    Tool("grep", "Lines with a text.", {"text": str}, Workspace.grep),
    Tool("keyword_search", "Files with these words.", {"words": str}, Workspace.keyword_search),
    Tool("find_symbol", "Definition and uses of a name.", {"name": str}, Workspace.find_symbol),
    Tool("edit", "Replace lines.", {**_LINES, "text": str}, Workspace.edit, 4),
    Tool("replace", "Replace a text that occurs once.", _TEXTS, Workspace.replace, 3),
    Tool("write_file", "Write a whole file.", {"path": str, "text": str}, Workspace.write_file, 2),
    Tool("delete_file", "Delete a file.", {"path": str}, Workspace.delete_file),
    Tool("run_tests", "Run all tests, or one.", {"test": str}, Workspace.run_tests, 0),
    Tool("lint", "Run the linter.", {}, Workspace.lint, 0),
    Tool("terminal_start", "Start Python; gives a name.", {}, Workspace.terminal_start, 0),
    Tool("terminal_send", "Run Python there.", {"terminal": str, "text": str}, Workspace.terminal_send, 2),
    Tool("terminal_close", "End it.", {"terminal": str}, Workspace.terminal_close),
    Tool("diff", "Your changes.", {}, Workspace.diff, 0),
    Tool("undo", "Undo the last change.", {}, Workspace.undo, 0),
)
