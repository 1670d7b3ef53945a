"""Repositories of the rows, by name, and checkouts of them that contain no later commits.

A repository is any folder that git can read, bare or not. It is never changed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Event, Timer
from typing import Final

REPOSITORIES: Final = Path(__file__).parents[2] / "build" / "edit_planning" / "repositories"
GIT_ENVIRONMENT: Final = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "LC_ALL": "C.UTF-8",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": str(Path(__file__).with_name("git.config")),
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "log.showSignature",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
}
"""Environment of git commands: no settings of the host or its users, no patterns in file names, no prompts.

`git.config` permits git to read repositories of other users. Settings of such a repository cannot start a program,
because the two settings that could are off.
"""
CONFIG: Final = """\
[core]
    symlinks = false
    logAllRefUpdates = false
    hooksPath = /dev/null
[fetch]
    unpackLimit = 1
[advice]
    detachedHead = false
"""
"""Settings of a checkout: links are files, there is no reflog, and fetched objects are stored in one file."""
MAX_CHECKOUT_BYTES: Final = 256 * 2**20
"""Maximum total size of a checkout's files."""
MAX_PACK_BYTES: Final = 256 * 2**20
"""Maximum size of the file that contains a checkout's history."""
MAX_CHECKOUT_FILES: Final = 20_000
MAX_DEPTH: Final = 200
"""Maximum number of commits in a checkout's history."""
MAX_OUTPUT_BYTES: Final = 64 * 2**20
MAX_ERROR_BYTES: Final = 2_000
STAT_OPTIONS: Final = ("--numstat", "-z", "--no-renames", "--diff-filter=MDT", "--ignore-submodules")
"""Options that print the files which a commit changes or removes, by their old names, for `text_files`."""
GIT_S: Final = 120.0
"""Maximum duration of one git command in seconds."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STAT: Final = re.compile(r"(\d+|-)\t(?:\d+|-)\t([^\0]*)\0")
_ID: Final = re.compile(r"[0-9a-f]{40}")


class Unknown(LookupError):
    """The repository or commit does not exist, or it is too large for a checkout."""


class Repositories:
    def __init__(self, folder: Path = REPOSITORIES) -> None:
        self.folder = folder
        self.touched = lru_cache(4096)(self._touched)

    def path(self, name: str) -> Path:
        """Return the repository's folder; raise Unknown if it does not exist."""
        if not _NAME.fullmatch(name) or not (self.folder / name).is_dir():
            raise Unknown(f"there is no repository {name[:100]!r} in {self.folder}: see make_data.py")
        return (self.folder / name).resolve()

    def check_out(self, name: str, commit: str, target: Path) -> None:
        """Make a checkout of a commit's parent, which does not contain the commit.

        Raises:
            Unknown: The repository or the parent does not exist, or it is too large.
        """
        check_out(self.path(name), self._parent(name, commit), target)

    def _touched(self, name: str, commit: str) -> frozenset[str]:
        """Return the text files that a commit changes or removes.

        Raises:
            Unknown: The repository or the commit's parent does not exist.
        """
        parent = self._parent(name, commit)
        return frozenset(text_files(git(self.path(name), "diff-tree", "-r", *STAT_OPTIONS, parent, commit)))

    def _parent(self, name: str, commit: str) -> str:
        path = self.path(name)
        if not _ID.fullmatch(commit):
            raise Unknown(f"{commit[:100]!r} is not the id of a commit: give 40 hexadecimal digits")
        try:
            return git(path, "rev-parse", "--verify", "--quiet", f"{commit}^1").strip()
        except subprocess.CalledProcessError as error:
            reason = f": {error.stderr}" if error.stderr else ""
            raise Unknown(f"{name} has no commit {commit} with a parent{reason}") from None


def check_out(source: Path, commit: str, target: Path, max_pack_bytes: int = MAX_PACK_BYTES) -> None:
    """Make a checkout of a commit with its history, but without other objects of the repository.

    Links become small files with their target as text, so no path in the checkout leads outside.

    Raises:
        Unknown: The files or the history are too large.
        CalledProcessError: git cannot read the commit.
    """
    sizes = [entry.split()[3] for entry in git(source, "ls-tree", "-r", "-l", "-z", commit).split("\0") if entry]
    if len(sizes) > MAX_CHECKOUT_FILES or sum(int(size) for size in sizes if size.isdigit()) > MAX_CHECKOUT_BYTES:
        raise Unknown(f"the checkout of {commit} is over {MAX_CHECKOUT_FILES} files or {MAX_CHECKOUT_BYTES} bytes")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    git(target, "init", "--quiet", "--template=", "--initial-branch=main")
    with (target / ".git" / "config").open("a") as file:
        file.write(CONFIG)
    # Only what the commit reaches is sent: a clone of a local folder would take all its objects.
    serving = "git -c uploadpack.allowAnySHA1InWant=true upload-pack"
    options = ("--quiet", "--no-tags", "--no-write-fetch-head", f"--depth={MAX_DEPTH}", f"--upload-pack={serving}")
    try:
        git(target, "fetch", *options, str(source), commit, max_file_bytes=max_pack_bytes)
    except subprocess.CalledProcessError as error:
        history = f"the history of {commit}, {MAX_DEPTH} commits of at most {max_pack_bytes} bytes"
        raise Unknown(f"git cannot copy {history}: {error.stderr}") from None
    git(target, "checkout", "--quiet", "--detach", commit)


def text_files(numstat: str) -> list[str]:
    """Return the paths in the output of `--numstat -z`, without binary files."""
    return [path for added, path in _STAT.findall(numstat) if added != "-"]


def git(
    folder: Path,
    *arguments: str,
    limit_s: float = GIT_S,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    max_file_bytes: int = MAX_PACK_BYTES,
) -> str:
    """Run a git command in a folder and return its output. Bytes that are not UTF-8 are replaced.

    Raises:
        Unknown: The output is larger than `max_output_bytes`.
        CalledProcessError: git failed, took too long, or wrote a file larger than `max_file_bytes`.
    """
    command = ["prlimit", f"--fsize={max_file_bytes}", "--core=0", "--", "git", "-C", str(folder), *arguments]
    pipe, late = subprocess.PIPE, Event()
    with (
        tempfile.TemporaryFile() as errors,  # a pipe that nobody reads would block git when it is full
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=errors, env=GIT_ENVIRONMENT, start_new_session=True
        ) as process,
    ):

        def end() -> None:
            """End git and the programs that it started, because they keep its output open."""
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

        def end_late() -> None:
            late.set()
            end()

        timer = Timer(limit_s, end_late)
        timer.start()
        try:
            assert process.stdout is not None
            output = process.stdout.read(max_output_bytes + 1)
            if len(output) > max_output_bytes:
                raise Unknown(f"git {arguments[0]} prints more than {max_output_bytes} bytes for {folder.name}")
            # git is not reaped here, so that no other process gets its id before the timer ends.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            timer.cancel()
            timer.join()
            end()
        if status := process.wait():
            errors.seek(0)
            said = errors.read(MAX_ERROR_BYTES).decode(errors="replace").strip()
            reason = f"it took more than {limit_s:g} s" if late.is_set() else said
            raise subprocess.CalledProcessError(status, command, stderr=reason)
    return output.decode(errors="replace")
