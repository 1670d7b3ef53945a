"""One owner at a time for a folder that processes on several machines can see: a run's, or a server's.

    owner-000002/            what the owner writes; the number counts the owners so far
        heartbeat            changed by the owner every BEAT_S; gone after a clean end
    current -> owner-000002
    events.jsonl -> current/events.jsonl    and so on, for readers

A folder is taken over by renaming owner-N to owner-(N+1): of several processes one succeeds. Every path of the owner
before is gone with that, so it can write nothing when it wakes up, however long it slept. Only a file that it has open
could still get something; the successor replaces those by copies, and deletes what is half-written.

The heartbeat is a counter: nobody compares the clocks, process ids or locks of two machines. A file system on which a
renamed folder stays visible under its old name, such as NFS with cached names, needs a longer SILENCE_S.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from agent_rft.errors import RftError, UserError
from agent_rft.rows.durable import sync_to_disk

SILENCE_S = 15.0
"""After so many seconds without a change of the heartbeat its owner counts as gone."""
SILENCE_VARIABLE = "AGENT_RFT_SILENCE_S"
"""The variable of the environment that sets SILENCE_S."""
BEAT_S = 2.0
POLL_S = 0.5
SURE_AFTER = 1.5
"""An owner that is alive has changed its heartbeat after so many BEAT_S."""
TOLD_EVERY_S = 60.0
HEARTBEAT = "heartbeat"
CURRENT = "current"
_PREFIX, _DIGITS = "owner-", 6
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EINVAL)
_COUNTER = 20
"""Digits of the counter at the start of a heartbeat; the rest describes the owner."""

Tell = Callable[[str], object]


class FolderOwned(RftError):
    """Another process owns the folder and is alive. Trying again later may succeed."""


class FolderLost(RftError):
    """Another process has taken over the folder."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The operations on a folder that a file system may lack, or answer with what it knew before."""

    listdir: Callable[[Path], list[str]] = os.listdir
    rename: Callable[[Path, Path], object] = os.rename
    symlink: Callable[[str, Path], object] = os.symlink


def silence_s(environment: Mapping[str, str] = os.environ) -> float:
    """SILENCE_S, or what the environment sets.

    Raises:
        RftError: The variable is not a number of seconds above 0.
    """
    given = environment.get(SILENCE_VARIABLE)
    if given is None:
        return SILENCE_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise RftError(f"{SILENCE_VARIABLE}: must be a number of seconds above 0, such as {SILENCE_S:g}; got {given!r}")
    return seconds


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest owner-N of a folder and its heartbeat, None after a clean end."""

    number: int
    beat: bytes | None


class Claim:
    """A folder that this process owns from `claim` until `release`. `at` is the folder to write to.

    A thread beats. `lost` is called in that thread, once, if another process has taken over.
    """

    def __init__(self, path: Path, number: int, every_s: float) -> None:
        self.path = path
        self.number = number
        self.at = _folder(path, number)
        self._lost: Callable[[], object] | None = None
        self._is_lost = False
        self._state = threading.Lock()
        self._ended = threading.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._run, args=(every_s,), daemon=True, name="ownership")
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether another process is known to have taken over."""
        return self._is_lost

    def when_lost(self, act: Callable[[], object]) -> None:
        """Call `act` as soon as another process has taken over, at once if it has already."""
        with self._state:
            self._lost = act
            if not self._is_lost:
                return
        act()

    def check(self) -> None:
        """Raise FolderLost if another process has taken over."""
        if self._is_lost or not (self.at / HEARTBEAT).exists():
            raise FolderLost(f"another process has taken over {self.path}; this one ends")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """End the ownership: the next process need not wait."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            if [entry.name for entry in self.at.iterdir()] == [HEARTBEAT]:  # nothing was written
                _undo(self.path, self.at)
            else:
                (self.at / HEARTBEAT).unlink()

    def _run(self, every_s: float) -> None:
        while not self._ended.wait(every_s):
            self._count += 1
            try:
                _beat(self.at, self._count)
            except FileNotFoundError:
                with self._state:
                    self._is_lost, act = True, self._lost
                if act is not None:
                    act()
                return
            except OSError:
                continue  # the storage is away, for a successor as well


def claim(
    path: Path,
    names: Iterable[str] = (),
    *,
    wait_s: float = 0.0,
    remedy: str = "",
    tell: Tell = print,
    silence_s: float = SILENCE_S,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    disk: Disk = Disk(),
) -> Claim:
    """Become the owner of a folder, which is created if it does not exist.

    An owner that has ended is succeeded at once, one that is silent after `silence_s`. While one is alive, this waits
    for its end for `wait_s` at most. Each of the `names` in `path` becomes a link to the owner's folder. `tell` gets a
    sentence when this waits; `remedy` ends the message of a refusal.

    Raises:
        FolderOwned: The owner is alive, and has not ended within `wait_s`.
        UserError: The folder has something of its own under one of the names, cannot be written, or its file system
            cannot rename folders or make links.
    """
    names = tuple(names)
    for public in (path / name for name in names):
        if public.exists() and not public.is_symlink():
            raise UserError(f"{public} is in the way of the run's own; move it away, or give another folder")
    began = changed = clock()
    told_alive, told_silent = -math.inf, False
    first: _Seen | None = None
    seen: _Seen | None = None
    with _explained(path):
        while True:
            now = _look(path, disk)
            if now is None:
                if _create(path, disk):
                    return _owned(path, 1, names, silence_s, disk, clean=True)
            elif now.beat is None:
                if _announce(path, now.number) and _take(path, now.number, disk):
                    return _owned(path, now.number + 1, names, silence_s, disk, clean=True)
            else:
                if now != seen:
                    first, seen, changed = first or now, now, clock()
                is_alive, waited, silent = now != first, clock() - began, clock() - changed
                owner = _described(now.beat)
                if silent >= silence_s:
                    if _take(path, now.number, disk):
                        return _owned(path, now.number + 1, names, silence_s, disk, clean=False)
                elif silent > SURE_AFTER * BEAT_S and not told_silent:
                    told_silent = True
                    tell(f"{path}: waiting {silence_s:g} s for a sign of {owner}, whose end is not recorded")
                elif is_alive and waited >= wait_s:
                    within = f", and has not ended within {wait_s:g} s" if wait_s else ""
                    raise FolderOwned(f"{path} is used by {owner}{within}{remedy}")
                elif is_alive and waited >= told_alive + TOLD_EVERY_S:
                    told_alive = waited
                    left = f"{wait_s - waited:.0f} s at most"
                    tell(f"{path} is used by {owner}; waiting for its end, {left}")
            pause(min(POLL_S, silence_s / 10))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise a UserError for what the file system of `path` cannot do."""
    try:
        yield
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            what = f"its file system cannot rename a folder or make a symbolic link ({error.strerror})"
            raise UserError(f"{path}: {what}, as a mounted bucket; use a local disk or NFS") from error
        raise UserError(f"cannot write to {path}: {error.strerror}") from error


def files_of(path: Path) -> Path:
    """Where the files of a folder are, as its newest owner has them; `path` itself if it never had an owner."""
    current = path / CURRENT
    return current if current.is_symlink() else path


def lasting(path: Path) -> Path:
    """A resolved path as it stays valid under later owners: without the folder `owner-N`."""
    for parent in path.parents:
        if _is_owners(parent.name) and (parent.parent / CURRENT).is_symlink():
            return parent.parent / path.relative_to(parent)
    return path


# -- becoming the owner ------------------------------------------------------------------------------------------------


def _folder(path: Path, number: int) -> Path:
    return path / f"{_PREFIX}{number:0{_DIGITS}d}"


def _numbers(path: Path, disk: Disk) -> list[int]:
    try:
        names = disk.listdir(path)
    except FileNotFoundError:
        return []
    return sorted(int(name.removeprefix(_PREFIX)) for name in names if _is_owners(name))


def _is_owners(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()


def _look(path: Path, disk: Disk) -> _Seen | None:
    numbers = _numbers(path, disk)
    if not numbers:
        return None
    try:
        beat = (_folder(path, numbers[-1]) / HEARTBEAT).read_bytes()
    except FileNotFoundError:
        beat = None
    return _Seen(numbers[-1], beat)


def _create(path: Path, disk: Disk) -> bool:
    """Make the first owner's folder; False if another process was faster."""
    path.mkdir(parents=True, exist_ok=True)
    unfinished, first = path / f".{_PREFIX}{secrets.token_hex(8)}", _folder(path, 1)
    try:
        unfinished.mkdir()
        (unfinished / HEARTBEAT).write_bytes(_content())
    except FileNotFoundError:  # another process, which wrote nothing, has just removed the folder
        return False
    try:
        disk.rename(unfinished, first)  # fails if it is there, because it is never empty
    except OSError as error:
        shutil.rmtree(unfinished)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    if (path / CURRENT).is_symlink():  # it was there, and was renamed meanwhile
        first.rename(unfinished)
        shutil.rmtree(unfinished)
        return False
    return True


def _undo(path: Path, at: Path) -> None:
    """Remove an owner's folder that is empty, and the links; the folder itself if nothing else is in it."""
    removed = path / f".{_PREFIX}{secrets.token_hex(8)}"
    at.rename(removed)
    shutil.rmtree(removed)
    for entry in path.iterdir():
        if entry.is_symlink() and entry.name != CURRENT and Path(os.readlink(entry)).parts[0] == CURRENT:
            entry.unlink()
    (path / CURRENT).unlink()  # last: until then nobody else begins here
    path.rmdir()


def _announce(path: Path, number: int) -> bool:
    """Put a heartbeat where the last owner removed its own; False if another process was faster."""
    try:
        opened = os.open(_folder(path, number) / HEARTBEAT, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except (FileExistsError, FileNotFoundError):
        return False
    with os.fdopen(opened, "wb") as file:
        file.write(_content())
    return True


def _take(path: Path, number: int, disk: Disk) -> bool:
    """Rename owner-N to owner-(N+1); False if another process was faster."""
    try:
        disk.rename(_folder(path, number), _folder(path, number + 1))
    except FileNotFoundError:
        return False
    return True


def _owned(path: Path, number: int, names: Iterable[str], silence_s: float, disk: Disk, *, clean: bool) -> Claim:
    at = _folder(path, number)
    if not clean:
        for file in [entry for entry in at.iterdir() if entry.is_file()]:
            _replace_by_copy(file)
    own = at / f".{HEARTBEAT}"  # another file, because the owner before may have its own open; without one it is free
    own.write_bytes(_content())
    own.replace(at / HEARTBEAT)
    _link(path / CURRENT, at.name, disk)
    for name in names:
        _link(path / name, f"{CURRENT}/{name}", disk)
    for older in _numbers(path, disk)[:-1]:  # made by an owner before that did not know yet that it was one no more
        shutil.rmtree(_folder(path, older), ignore_errors=True)
    sync_to_disk(path)
    return Claim(path, number, min(BEAT_S, silence_s / 7.5))


def _replace_by_copy(file: Path) -> None:
    copy = file.with_name(f"{file.name}.adopted")
    shutil.copy2(file, copy)
    sync_to_disk(copy)
    copy.replace(file)


def _link(link: Path, target: str, disk: Disk) -> None:
    if link.is_symlink() and os.readlink(link) == target:
        return
    new = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
    disk.symlink(target, new)
    new.replace(link)


# -- heartbeats --------------------------------------------------------------------------------------------------------


def _content() -> bytes:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
    # Random, so that the first heartbeats of two owners differ.
    return f"{secrets.randbelow(10**9):0{_COUNTER}d} {json.dumps(owner)}".encode()


def _beat(at: Path, count: int) -> None:
    """Change the counter in place. Raises FileNotFoundError if the folder has another owner."""
    opened = os.open(at / HEARTBEAT, os.O_WRONLY)  # must never create it
    try:
        # Other machines see it once the file is closed. Waiting for the disk could take longer than SILENCE_S.
        os.pwrite(opened, f"{count:0{_COUNTER}d}".encode(), 0)
    finally:
        os.close(opened)


def _described(beat: bytes) -> str:
    """The owner, for a message."""
    try:
        owner = json.loads(beat[_COUNTER:])
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
