"""The repositories that rows are about, by name, and checkouts of them that know nothing of later commits.

A repository is any folder that git reads, bare or not; it is never written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from threading import Timer
from typing import Final

REPOSITORIES: Final = Path(__file__).parents[2] / "build" / "edit_planning" / "repositories"
GIT_ENVIRONMENT: Final = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "LC_ALL": "C.UTF-8",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
}
"""The settings of the machine and its users change nothing, names of files are not patterns, and git asks nobody."""
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
"""Settings of a checkout: links are files, there is no reflog, and objects come as one file."""
MAX_CHECKOUT_BYTES: Final = 256 * 2**20
MAX_CHECKOUT_FILES: Final = 20_000
MAX_DEPTH: Final = 200
"""Commits that a checkout knows."""
MAX_OUTPUT_BYTES: Final = 64 * 2**20
STAT_OPTIONS: Final = ("--numstat", "-z", "--no-renames", "--diff-filter=MDT", "--ignore-submodules")
"""Print the files that a commit changes or removes, a renamed one by its old name, for `text_files`."""
GIT_S: Final = 120.0
"""Seconds that one command may take."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STAT: Final = re.compile(r"(\d+|-)\t(?:\d+|-)\t([^\0]*)\0")
_ID: Final = re.compile(r"[0-9a-f]{40}")


class Unknown(LookupError):
    """There is no such repository or commit, or it is too large for a checkout."""


class Repositories:
    def __init__(self, folder: Path = REPOSITORIES) -> None:
        self.folder = folder
        self.touched = lru_cache(4096)(self._touched)

    def path(self, name: str) -> Path:
        """Raises Unknown."""
        if not _NAME.fullmatch(name) or not (self.folder / name).is_dir():
            raise Unknown(f"there is no repository {name[:100]!r} in {self.folder}: see make_data.py")
        return (self.folder / name).resolve()

    def check_out(self, name: str, commit: str, target: Path) -> None:
        """Make a checkout of a commit's parent, which knows nothing of the commit.

        Raises:
            Unknown: there is no such repository or parent, or it is too large.
        """
        check_out(self.path(name), self._parent(name, commit), target)

    def _touched(self, name: str, commit: str) -> frozenset[str]:
        """The text files of a commit's parent that it changes or removes.

        Raises:
            Unknown: there is no such repository or parent.
        """
        parent = self._parent(name, commit)
        return frozenset(text_files(git(self.path(name), "diff-tree", "-r", *STAT_OPTIONS, parent, commit)))

    def _parent(self, name: str, commit: str) -> str:
        path = self.path(name)
        if not _ID.fullmatch(commit):
            raise Unknown(f"{commit[:100]!r} is not the id of a commit: give 40 hexadecimal digits")
        try:
            return git(path, "rev-parse", "--verify", "--quiet", f"{commit}^1").strip()
        except subprocess.CalledProcessError:
            raise Unknown(f"{name} has no commit {commit} with a parent") from None


def check_out(source: Path, commit: str, target: Path) -> None:
    """Make a checkout of a commit, with the history up to it and no other object.

    Links become small files with their target as text, so no path in it leads outside.

    Raises:
        Unknown: it is too large.
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
    git(target, "fetch", *options, str(source), commit)
    git(target, "checkout", "--quiet", "--detach", commit)


def text_files(numstat: str) -> list[str]:
    """The paths in what `--numstat -z` prints, without binary files."""
    return [path for added, path in _STAT.findall(numstat) if added != "-"]


def git(folder: Path, *arguments: str) -> str:
    """The first 64 MiB of the output of a git command in a folder; what is not UTF-8 is replaced.

    Raises:
        CalledProcessError: it failed, or took too long.
    """
    command = ["git", "-C", str(folder), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=GIT_ENVIRONMENT) as process:
        assert process.stdout is not None and process.stderr is not None
        timer = Timer(GIT_S, process.kill)
        timer.start()
        try:
            output = process.stdout.read(MAX_OUTPUT_BYTES)
            if is_cut := len(output) == MAX_OUTPUT_BYTES:
                process.kill()
            said = process.stderr.read().decode(errors="replace").strip()
            status = process.wait()
        finally:
            timer.cancel()
    if status != 0 and not is_cut:
        raise subprocess.CalledProcessError(status, command, stderr=said)
    return output.decode(errors="replace")
