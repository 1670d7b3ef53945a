"""Encryption of secrets at rest: a job's headers are stored encrypted, with a key that is never in the database."""

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
    """Encrypts texts with a Fernet `key` (32 bytes in URL-safe base64): AES-CBC, signed with HMAC-SHA256."""

    def __init__(self, key: str) -> None:
        """Set up encryption with `key`.

        Raises:
            UserError: It is not a valid Fernet key.
        """
        try:
            self._fernet = Fernet(key)
        except ValueError:
            raise UserError(
                f"the secret key is invalid: it must be 32 random bytes in URL-safe base64; fix {VARIABLE} or the file "
                f"{KEY_FILE} in the server's folder"
            ) from None

    @classmethod
    def of_folder(cls, folder: Path, environment: Mapping[str, str] = os.environ) -> SecretBox:
        """A box with the key in the environment variable, or else in the folder's key file.

        The file is created if it does not exist and is readable only by its owner.

        Raises:
            UserError: The key is not a valid Fernet key.
        """
        if VARIABLE in environment:
            return cls(environment[VARIABLE])
        path = folder / KEY_FILE
        if not path.exists():
            _create(path)
        return cls(path.read_text().strip())

    def seal(self, text: str) -> str:
        return self._fernet.encrypt(text.encode()).decode()

    def open(self, sealed: str) -> str:
        """The text that was sealed.

        Raises:
            UserError: It was sealed with another key, or was changed since.
        """
        try:
            return self._fernet.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise UserError(
                "a stored secret cannot be decrypted: it was encrypted with a different key; restore the server's "
                f"former key ({VARIABLE} or {KEY_FILE})"
            ) from None


def _create(path: Path) -> None:
    """Create a key file, written whole and then linked: servers that start together all use the key of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{KEY_FILE}.") as file:  # with mode 0600
        file.write(Fernet.generate_key())
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
