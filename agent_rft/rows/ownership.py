"""Exclusive ownership of a run or server folder that processes on several machines can access.

    owner-000002/            files of the owner; the number counts the owners so far
        heartbeat            changed by the owner every BEAT_S; removed at a clean end
    current -> owner-000002
    events.jsonl -> current/events.jsonl    and so on, for readers

A process takes over a folder by renaming owner-N to owner-(N+1), which succeeds for only one process. The previous
owner's paths then no longer exist, so it cannot write when it resumes, however long it was suspended. It could only
write to files that it still has open. The successor replaces those files by copies and deletes half-written ones.

The heartbeat is a counter, so clocks, process ids and locks of two machines are never compared. A file system that
still shows a renamed folder under its old name, such as NFS with cached names, needs a longer SILENCE_S.
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
from agent_rft.rows.durable_write import sync_to_disk

SILENCE_S = 15.0
"""Seconds without a change of the heartbeat after which its owner counts as dead."""
SILENCE_VARIABLE = "AGENT_RFT_SILENCE_S"
"""Environment variable that sets SILENCE_S."""
BEAT_S = 2.0
POLL_S = 0.5
MAX_BEAT_DELAY = 1.5
"""Multiple of BEAT_S after which a live owner has surely changed its heartbeat."""
REPORT_INTERVAL_S = 60.0
HEARTBEAT = "heartbeat"
CURRENT = "current"
_PREFIX, _DIGITS = "owner-", 6
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EINVAL)
_COUNTER = 20
"""Digits of the counter at the start of a heartbeat; the rest describes the owner."""

Notify = Callable[[str], object]


class FolderOwned(RftError):
    """Another live process owns the folder. Trying again later may succeed."""


class FolderLost(RftError):
    """Another process has taken over the folder."""


@dataclass(frozen=True, slots=True)
class FolderOperations:
    """Folder operations that a file system may not support, or may answer from a cache."""

    listdir: Callable[[Path], list[str]] = os.listdir
    rename: Callable[[Path, Path], object] = os.rename
    symlink: Callable[[str, Path], object] = os.symlink


def read_silence_s(environment: Mapping[str, str] = os.environ) -> float:
    """Return SILENCE_S, or the value of its environment variable.

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
class _OwnerState:
    """State of a folder's newest owner-N: its number and its heartbeat, None after a clean end."""

    number: int
    beat: bytes | None


class Claim:
    """A folder that this process owns from `claim` until `release`. `at` is the folder to write to.

    A thread updates the heartbeat. It calls the callback of `on_lost` once if another process has taken over.
    """

    def __init__(self, path: Path, number: int, every_s: float) -> None:
        self.path = path
        self.number = number
        self.folder = _folder(path, number)
        self._lost: Callable[[], object] | None = None
        self._is_lost = False
        self._state = threading.Lock()
        self._ended = threading.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._run, args=(every_s,), daemon=True, name="ownership")
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether another process was found to have taken over."""
        return self._is_lost

    def on_lost(self, act: Callable[[], object]) -> None:
        """Call `act` once another process has taken over, or immediately if it already has."""
        with self._state:
            self._lost = act
            if not self._is_lost:
                return
        act()

    def check(self) -> None:
        """Raise FolderLost if another process has taken over."""
        if self._is_lost or not (self.folder / HEARTBEAT).exists():
            raise FolderLost(f"another process has taken over {self.path}; this one ends")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """End the ownership, so that the next process can start without waiting."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            if [entry.name for entry in self.folder.iterdir()] == [HEARTBEAT]:  # nothing was written
                _remove_unused(self.path, self.folder)
            else:
                (self.folder / HEARTBEAT).unlink()

    def _run(self, every_s: float) -> None:
        while not self._ended.wait(every_s):
            self._count += 1
            try:
                _update_heartbeat(self.folder, self._count)
            except FileNotFoundError:
                with self._state:
                    self._is_lost, act = True, self._lost
                if act is not None:
                    act()
                return
            except OSError:
                continue  # the storage is unavailable, to a successor too


def claim_folder(
    path: Path,
    names: Iterable[str] = (),
    *,
    wait_s: float = 0.0,
    fix: str = "",
    notify: Notify = print,
    silence_s: float = SILENCE_S,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    disk: FolderOperations = FolderOperations(),
) -> Claim:
    """Become the owner of a folder. The folder is created if it does not exist.

    An owner that has ended is replaced immediately, and a silent owner after `silence_s`. If the owner is alive, wait
    up to `wait_s` for its end. Each of the `names` in `path` becomes a link into the owner's folder. `notify` receives
    a sentence while this waits; `fix` ends the message of FolderOwned.

    Raises:
        FolderOwned: The owner is alive, and has not ended within `wait_s`.
        UserError: The folder contains a file with one of the names that is not a link, cannot be written, or is on a
            file system that cannot rename folders or create links.
    """
    names = tuple(names)
    for public in (path / name for name in names):
        if public.exists() and not public.is_symlink():
            raise UserError(f"{public} exists, but the run must create it. Move it away, or choose another folder")
    began = changed = clock()
    alive_reported_at, is_silence_reported = -math.inf, False
    first: _OwnerState | None = None
    seen: _OwnerState | None = None
    with _convert_os_errors(path):
        while True:
            now = _read_owner(path, disk)
            if now is None:
                if _create(path, disk):
                    return _become_owner(path, 1, names, silence_s, disk, clean=True)
            elif now.beat is None:
                if _create_heartbeat(path, now.number) and _take_over(path, now.number, disk):
                    return _become_owner(path, now.number + 1, names, silence_s, disk, clean=True)
            else:
                if now != seen:
                    first, seen, changed = first or now, now, clock()
                is_alive, waited, silent = now != first, clock() - began, clock() - changed
                owner = _describe_owner(now.beat)
                if silent >= silence_s:
                    if _take_over(path, now.number, disk):
                        return _become_owner(path, now.number + 1, names, silence_s, disk, clean=False)
                elif silent > MAX_BEAT_DELAY * BEAT_S and not is_silence_reported:
                    is_silence_reported = True
                    notify(f"{path}: waiting {silence_s:g} s for a heartbeat of {owner}, whose end is not recorded")
                elif is_alive and waited >= wait_s:
                    within = f", and has not ended within {wait_s:g} s" if wait_s else ""
                    raise FolderOwned(f"{path} is used by {owner}{within}{fix}")
                elif is_alive and waited >= alive_reported_at + REPORT_INTERVAL_S:
                    alive_reported_at = waited
                    left = f"{wait_s - waited:.0f} s at most"
                    notify(f"{path} is used by {owner}; waiting for its end, {left}")
            pause(min(POLL_S, silence_s / 10))


@contextmanager
def _convert_os_errors(path: Path) -> Iterator[None]:
    """Context manager that converts an OSError of the file system of `path` to a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            problem = f"its file system cannot rename folders or create symbolic links ({error.strerror})"
            raise UserError(f"{path}: {problem}, such as a mounted bucket. Use a local disk or NFS") from error
        raise UserError(f"cannot write to {path}: {error.strerror}") from error


def current_folder(path: Path) -> Path:
    """Return the folder with the files of the newest owner, or `path` if it never had an owner."""
    current = path / CURRENT
    return current if current.is_symlink() else path


def strip_owner(path: Path) -> Path:
    """Return a resolved path without its `owner-N` folder, so that it stays valid under later owners."""
    for parent in path.parents:
        if _is_owner_folder(parent.name) and (parent.parent / CURRENT).is_symlink():
            return parent.parent / path.relative_to(parent)
    return path


# -- becoming the owner ------------------------------------------------------------------------------------------------


def _folder(path: Path, number: int) -> Path:
    return path / f"{_PREFIX}{number:0{_DIGITS}d}"


def _list_numbers(path: Path, disk: FolderOperations) -> list[int]:
    try:
        names = disk.listdir(path)
    except FileNotFoundError:
        return []
    return sorted(int(name.removeprefix(_PREFIX)) for name in names if _is_owner_folder(name))


def _is_owner_folder(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()


def _read_owner(path: Path, disk: FolderOperations) -> _OwnerState | None:
    numbers = _list_numbers(path, disk)
    if not numbers:
        return None
    try:
        beat = (_folder(path, numbers[-1]) / HEARTBEAT).read_bytes()
    except FileNotFoundError:
        beat = None
    return _OwnerState(numbers[-1], beat)


def _create(path: Path, disk: FolderOperations) -> bool:
    """Create the first owner's folder. Return False if another process was faster."""
    path.mkdir(parents=True, exist_ok=True)
    unfinished, first = path / f".{_PREFIX}{secrets.token_hex(8)}", _folder(path, 1)
    try:
        unfinished.mkdir()
        (unfinished / HEARTBEAT).write_bytes(_create_content())
    except FileNotFoundError:  # another process, which had written nothing, just removed the folder
        return False
    try:
        disk.rename(unfinished, first)  # fails if `first` exists, because it is never empty
    except OSError as error:
        shutil.rmtree(unfinished)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    if (path / CURRENT).is_symlink():  # an owner existed, and another process has just renamed its folder
        first.rename(unfinished)
        shutil.rmtree(unfinished)
        return False
    return True


def _remove_unused(path: Path, at: Path) -> None:
    """Remove an empty owner folder and the links, and the folder itself if nothing else is in it."""
    removed = path / f".{_PREFIX}{secrets.token_hex(8)}"
    at.rename(removed)
    shutil.rmtree(removed)
    for entry in path.iterdir():
        if entry.is_symlink() and entry.name != CURRENT and Path(os.readlink(entry)).parts[0] == CURRENT:
            entry.unlink()
    (path / CURRENT).unlink()  # last, because no other process claims the folder while the link exists
    path.rmdir()


def _create_heartbeat(path: Path, number: int) -> bool:
    """Recreate the heartbeat that the last owner removed. Return False if another process was faster."""
    try:
        opened = os.open(_folder(path, number) / HEARTBEAT, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except (FileExistsError, FileNotFoundError):
        return False
    with os.fdopen(opened, "wb") as file:
        file.write(_create_content())
    return True


def _take_over(path: Path, number: int, disk: FolderOperations) -> bool:
    """Rename owner-N to owner-(N+1). Return False if another process was faster."""
    try:
        disk.rename(_folder(path, number), _folder(path, number + 1))
    except FileNotFoundError:
        return False
    return True


def _become_owner(
    path: Path, number: int, names: Iterable[str], silence_s: float, disk: FolderOperations, *, clean: bool
) -> Claim:
    at = _folder(path, number)
    if not clean:
        for file in [entry for entry in at.iterdir() if entry.is_file()]:
            _replace_by_copy(file)
    heartbeat = at / f".{HEARTBEAT}"  # a new file, because the previous owner may still have the old one open
    heartbeat.write_bytes(_create_content())
    heartbeat.replace(at / HEARTBEAT)
    _link(path / CURRENT, at.name, disk)
    for name in names:
        _link(path / name, f"{CURRENT}/{name}", disk)
    for older in _list_numbers(path, disk)[:-1]:  # created by a previous owner that had not noticed its loss yet
        shutil.rmtree(_folder(path, older), ignore_errors=True)
    sync_to_disk(path)
    return Claim(path, number, min(BEAT_S, silence_s / 7.5))


def _replace_by_copy(file: Path) -> None:
    copy = file.with_name(f"{file.name}.adopted")
    shutil.copy2(file, copy)
    sync_to_disk(copy)
    copy.replace(file)


def _link(link: Path, target: str, disk: FolderOperations) -> None:
    if link.is_symlink() and os.readlink(link) == target:
        return
    new = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
    disk.symlink(target, new)
    new.replace(link)


# -- heartbeats --------------------------------------------------------------------------------------------------------


def _create_content() -> bytes:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
    # Random, so that the first heartbeats of two owners differ.
    return f"{secrets.randbelow(10**9):0{_COUNTER}d} {json.dumps(owner)}".encode()


def _update_heartbeat(at: Path, count: int) -> None:
    """Change the counter in place.

    Raises:
        FileNotFoundError: The folder has another owner.
    """
    opened = os.open(at / HEARTBEAT, os.O_WRONLY)  # must never create the file
    try:
        # Other machines see it once the file is closed. Waiting for the disk could take longer than SILENCE_S.
        os.pwrite(opened, f"{count:0{_COUNTER}d}".encode(), 0)
    finally:
        os.close(opened)


def _describe_owner(beat: bytes) -> str:
    """Return a description of the owner, for a message."""
    try:
        owner = json.loads(beat[_COUNTER:])
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
