"""Secrets at rest: a job's headers are stored sealed, with a key that is the operator's and in no database."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from trainer.errors import UserError

KEY_FILE = "secret.key"
VARIABLE = "AGENT_RFT_SECRET_KEY"


class SecretBox:
    """Seals texts with `key`, one of Fernet's (32 bytes in URL-safe base 64): AES-CBC, signed with HMAC-SHA256."""

    def __init__(self, key: str) -> None:
        """Raises:
        UserError: it is no such key.
        """
        try:
            self._fernet = Fernet(key)
        except ValueError:
            raise UserError(
                f"the secret key cannot be used: it must be 32 random bytes in URL-safe base 64 ({VARIABLE}, or the "
                f"file {KEY_FILE} in the server's folder)"
            ) from None

    @classmethod
    def of_folder(cls, folder: Path, environment: Mapping[str, str] = os.environ) -> SecretBox:
        """With the key of the environment, else with that of the folder's file, which is made where there is none and
        which nobody but its owner may read.
        """
        if VARIABLE in environment:
            return cls(environment[VARIABLE])
        path = folder / KEY_FILE
        if not path.exists():
            _make(path)
        return cls(path.read_text().strip())

    def seal(self, text: str) -> str:
        return self._fernet.encrypt(text.encode()).decode()

    def open(self, sealed: str) -> str:
        """Raises:
        UserError: it was sealed with another key, or changed since.
        """
        try:
            return self._fernet.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise UserError(
                "a stored secret cannot be opened: it was sealed with another key than the server has now"
            ) from None


def _make(path: Path) -> None:
    """Written beside and linked: of two servers that start at a time, both use the key of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{KEY_FILE}.") as file:  # with mode 0600
        file.write(Fernet.generate_key())
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
