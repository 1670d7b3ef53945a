"""The server's folder: its owner alone may enter it, since it holds the database, uploaded files and keys."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agent_rft.errors import UserError


def make_private(folder: Path, signs: Sequence[str], user: int | None = None) -> None:
    """Create the folder with mode 0700, or give it this mode if it is ours: it is empty, or holds a file of `signs`.

    Another folder is used as it is, such as a volume that Kubernetes gives to a group (fsGroup), unless everybody may
    enter it. `user` replaces this process's user id.

    Raises:
        UserError: everybody may enter the folder, and its mode is not ours to change.
        OSError: it cannot be created or read.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    user = os.geteuid() if user is None else user
    if found.st_uid == user and mode & 0o077:
        names = os.listdir(folder)
        if not names or any(name in signs for name in names):
            folder.chmod(0o700)
            return
    if mode & stat.S_IXOTH:
        raise UserError(
            f"the server's folder {folder} belongs to {_name_of(found.st_uid)} and has mode {mode:04o}: every user of "
            f"this machine may enter it; run `chmod 700 {folder}`, or `chmod o-rwx` to keep its group, or give an "
            "empty folder of your own"
        )


def _name_of(user: int) -> str:
    with suppress(KeyError):
        return f"{pwd.getpwuid(user).pw_name} (user {user})"
    return f"user {user}"
