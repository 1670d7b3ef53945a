"""Exclusive ownership of a run or server folder that processes on several machines can access.

    owner-000002/            files of the owner, here the folder's second owner
        heartbeat            changed by the owner every BEAT_S; removed when the owner ends cleanly
    current -> owner-000002
    events.jsonl -> current/events.jsonl    and so on, for readers

A process takes over a folder by renaming owner-N to owner-(N+1), which succeeds for only one process. Afterwards, the
paths of the previous owner do not exist.

The previous owner may only have been suspended, and may resume at any later time. It cannot open files under its old
paths, but it can still write to files that it has open. The new owner replaces these files with copies, so such writes
have no effect.

The heartbeat is a counter, so the clocks, process ids and locks of different machines need not be compared. Increase
SILENCE_S on a file system that caches file names, such as NFS: a renamed folder may keep its old name for a while.
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
"""Seconds without a new heartbeat after which the owner counts as dead."""
SILENCE_VARIABLE = "AGENT_RFT_SILENCE_S"
"""Environment variable that overrides SILENCE_S."""
BEAT_S = 2.0
POLL_S = 0.5
MAX_BEAT_DELAY = 1.5
"""Maximum time between two changes of a live owner's heartbeat, as a multiple of BEAT_S."""
REPORT_INTERVAL_S = 60.0
HEARTBEAT = "heartbeat"
CURRENT = "current"
_PREFIX, _DIGITS = "owner-", 6
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EINVAL)
_COUNTER = 20
"""Number of digits of the counter at the start of the heartbeat file. The rest of the file describes the owner."""

Notify = Callable[[str], object]


class FolderOwned(RftError):
    """Another live process owns the folder. Claiming the folder later may succeed."""


class FolderLost(RftError):
    """Another process has taken over the folder."""


@dataclass(frozen=True, slots=True)
class FolderOperations:
    """File system operations; tests replace them to simulate unsupported operations and outdated caches."""

    listdir: Callable[[Path], list[str]] = os.listdir
    rename: Callable[[Path, Path], object] = os.rename
    symlink: Callable[[str, Path], object] = os.symlink


def read_silence_s(environment: Mapping[str, str] = os.environ) -> float:
    """Return the value of the environment variable SILENCE_VARIABLE; if it is not set, SILENCE_S.

    Raises:
        RftError: The variable is not a number of seconds above 0 and below 86,400.
    """
    given = environment.get(SILENCE_VARIABLE)
    if given is None:
        return SILENCE_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise RftError(f"{SILENCE_VARIABLE}: must be a number of seconds above 0 and below 86400; got {given!r}")
    return seconds


@dataclass(frozen=True, slots=True)
class _OwnerState:
    """State of the newest folder owner-N: its number N, and the content of its heartbeat file.

    The heartbeat is None if the owner has ended cleanly.
    """

    number: int
    heartbeat: bytes | None


class FolderClaim:
    """Ownership of a folder by this process, from `claim_folder` until `release`.

    Write to `folder`, which is the subfolder of this owner. A thread updates the heartbeat. If another process takes
    over the folder, the thread calls the function that was passed to `on_lost`, and then ends.
    """

    def __init__(self, path: Path, number: int, interval_s: float) -> None:
        self.path = path
        self.number = number
        self.folder = _owner_folder(path, number)
        self._on_lost: Callable[[], object] | None = None
        self._is_lost = False
        self._state = threading.Lock()
        self._ended = threading.Event()
        self._count = 0
        self._thread = threading.Thread(
            target=self._update_until_lost, args=(interval_s,), daemon=True, name="ownership"
        )
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether this process has noticed that another process took over the folder."""
        return self._is_lost

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Call `callback` when another process takes over the folder, or immediately if this has already happened."""
        with self._state:
            self._on_lost = callback
            if not self._is_lost:
                return
        callback()

    def check(self) -> None:
        """Raise FolderLost if another process has taken over the folder."""
        if self._is_lost or not (self.folder / HEARTBEAT).exists():
            raise FolderLost(f"another process has taken over {self.path}; this process ends")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """End the ownership, so that another process can own the folder without waiting."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            if [entry.name for entry in self.folder.iterdir()] == [HEARTBEAT]:  # nothing was written
                _remove_unused(self.path, self.folder)
            else:
                (self.folder / HEARTBEAT).unlink()

    def _update_until_lost(self, interval_s: float) -> None:
        while not self._ended.wait(interval_s):
            self._count += 1
            try:
                _update_heartbeat(self.folder, self._count)
            except FileNotFoundError:
                with self._state:
                    self._is_lost, callback = True, self._on_lost
                if callback is not None:
                    callback()
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
) -> FolderClaim:
    """Become the owner of a folder, which is created if it does not exist.

    - A previous owner that has ended is replaced immediately.
    - A previous owner whose heartbeat does not change for `silence_s` is replaced.
    - If the previous owner is alive, this function waits up to `wait_s` for it to end.

    For each of `names`, the folder gets a symbolic link to the file with this name in the owner's subfolder. `notify`
    is called with messages about the wait. The message of FolderOwned ends with `fix`.

    Raises:
        FolderOwned: The previous owner is alive, and has not ended within `wait_s`.
        UserError: One of the `names` exists in the folder and is not a link, the folder is not writable, or its file
            system cannot rename folders or create links.
    """
    names = tuple(names)
    for public in (path / name for name in names):
        if public.exists() and not public.is_symlink():
            raise UserError(
                f"{public} exists, but the run must create this file. Move it away, or choose another folder"
            )
    began = changed = clock()
    alive_reported_at, is_silence_reported = -math.inf, False
    first_state: _OwnerState | None = None
    last_state: _OwnerState | None = None
    with _convert_os_errors(path):
        while True:
            state = _read_owner(path, disk)
            if state is None:
                if _create(path, disk):
                    return _become_owner(path, 1, names, silence_s, disk, clean=True)
            elif state.heartbeat is None:
                if _create_heartbeat(path, state.number) and _take_over(path, state.number, disk):
                    return _become_owner(path, state.number + 1, names, silence_s, disk, clean=True)
            else:
                if state != last_state:
                    first_state, last_state, changed = first_state or state, state, clock()
                is_alive, waited, silent = state != first_state, clock() - began, clock() - changed
                owner = _describe_owner(state.heartbeat)
                if silent >= silence_s:
                    if _take_over(path, state.number, disk):
                        return _become_owner(path, state.number + 1, names, silence_s, disk, clean=False)
                elif silent > MAX_BEAT_DELAY * BEAT_S and not is_silence_reported:
                    is_silence_reported = True
                    notify(f"{path}: waiting {silence_s:g} s for a heartbeat of {owner}, which may have crashed")
                elif is_alive and waited >= wait_s:
                    within = f", and has not ended within {wait_s:g} s" if wait_s else ""
                    raise FolderOwned(f"{path} is used by {owner}{within}{fix}")
                elif is_alive and waited >= alive_reported_at + REPORT_INTERVAL_S:
                    alive_reported_at = waited
                    left = f"{wait_s - waited:.0f} s"
                    notify(f"{path} is used by {owner}; waiting at most {left} until this process ends")
            pause(min(POLL_S, silence_s / 10))


@contextmanager
def _convert_os_errors(path: Path) -> Iterator[None]:
    """Context manager that converts an OSError to a UserError about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            problem = f"the file system cannot rename folders or create symbolic links ({error.strerror})"
            raise UserError(f"{path}: {problem}. It may be a mounted bucket. Use a local disk or NFS") from error
        raise UserError(f"cannot write to {path}: {error.strerror}") from error


def current_folder(path: Path) -> Path:
    """Return the folder with the files of the newest owner, or `path` if it never had an owner."""
    current = path / CURRENT
    return current if current.is_symlink() else path


def strip_owner_folder(path: Path) -> Path:
    """Return a resolved path without its `owner-N` folder, so that the path stays valid under later owners."""
    for parent in path.parents:
        if _is_owner_folder(parent.name) and (parent.parent / CURRENT).is_symlink():
            return parent.parent / path.relative_to(parent)
    return path


# -- becoming the owner ------------------------------------------------------------------------------------------------


def _owner_folder(path: Path, number: int) -> Path:
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
        beat = (_owner_folder(path, numbers[-1]) / HEARTBEAT).read_bytes()
    except FileNotFoundError:
        beat = None
    return _OwnerState(numbers[-1], beat)


def _create(path: Path, disk: FolderOperations) -> bool:
    """Create the folder of owner 1, which makes this process the owner. Return False if another process was faster."""
    path.mkdir(parents=True, exist_ok=True)
    unfinished, first = path / f".{_PREFIX}{secrets.token_hex(8)}", _owner_folder(path, 1)
    try:
        unfinished.mkdir()
        (unfinished / HEARTBEAT).write_bytes(_create_heartbeat_content())
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


def _remove_unused(path: Path, owner_folder: Path) -> None:
    """Remove `owner_folder`, in which nothing was written, and the links to it.

    Then remove `path` if it is empty.
    """
    removed = path / f".{_PREFIX}{secrets.token_hex(8)}"
    owner_folder.rename(removed)
    shutil.rmtree(removed)
    for entry in path.iterdir():
        if entry.is_symlink() and entry.name != CURRENT and Path(os.readlink(entry)).parts[0] == CURRENT:
            entry.unlink()
    (path / CURRENT).unlink()  # last, because no other process claims the folder while the link exists
    path.rmdir()


def _create_heartbeat(path: Path, number: int) -> bool:
    """Recreate the heartbeat that the last owner removed. Return False if another process was faster."""
    try:
        opened = os.open(_owner_folder(path, number) / HEARTBEAT, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except (FileExistsError, FileNotFoundError):
        return False
    with os.fdopen(opened, "wb") as file:
        file.write(_create_heartbeat_content())
    return True


def _take_over(path: Path, number: int, disk: FolderOperations) -> bool:
    """Rename owner-N to owner-(N+1). Return False if another process was faster."""
    try:
        disk.rename(_owner_folder(path, number), _owner_folder(path, number + 1))
    except FileNotFoundError:
        return False
    return True


def _become_owner(
    path: Path, number: int, names: Iterable[str], silence_s: float, disk: FolderOperations, *, clean: bool
) -> FolderClaim:
    folder = _owner_folder(path, number)
    if not clean:
        for file in [entry for entry in folder.iterdir() if entry.is_file()]:
            _replace_by_copy(file)
    heartbeat = folder / f".{HEARTBEAT}"  # a new file, because the previous owner may still have the old one open
    heartbeat.write_bytes(_create_heartbeat_content())
    heartbeat.replace(folder / HEARTBEAT)
    _link(path / CURRENT, folder.name, disk)
    for name in names:
        _link(path / name, f"{CURRENT}/{name}", disk)
    for older in _list_numbers(path, disk)[:-1]:  # created by a previous owner that had not noticed its loss yet
        shutil.rmtree(_owner_folder(path, older), ignore_errors=True)
    sync_to_disk(path)
    return FolderClaim(path, number, min(BEAT_S, silence_s / 7.5))


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


def _create_heartbeat_content() -> bytes:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
    # Random, so that the first heartbeats of two owners differ.
    return f"{secrets.randbelow(10**9):0{_COUNTER}d} {json.dumps(owner)}".encode()


def _update_heartbeat(owner_folder: Path, count: int) -> None:
    """Change the counter of the heartbeat file without replacing the file.

    Raises:
        FileNotFoundError: The folder has another owner.
    """
    opened = os.open(owner_folder / HEARTBEAT, os.O_WRONLY)  # must never create the file
    try:
        # Other machines see it once the file is closed. Waiting for the disk could take longer than SILENCE_S.
        os.pwrite(opened, f"{count:0{_COUNTER}d}".encode(), 0)
    finally:
        os.close(opened)


def _describe_owner(beat: bytes) -> str:
    try:
        owner = json.loads(beat[_COUNTER:])
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
