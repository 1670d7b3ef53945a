"""Encryption of jobs in the database, and of reasoning that clients store between two requests.

HKDF derives a key for each purpose from one master secret, which is never in the database. A sealed string is

    v1.<id of the master secret>.<nonce and AES-256-GCM ciphertext, in URL-safe base64>

It is bound to a purpose and a context (the id of the job or of the client's API key), and cannot be opened with another
purpose or context.

During a rotation (`agent_rft.serve.stores.secret_rotation`), there are two master secrets. New strings are sealed with
the first one; strings that were sealed with either of them can be opened.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agent_rft.errors import RftError, UnsealFailed, UserError
from agent_rft.rows.durable_write import sync_to_disk

KEY_FILE = "secret.key"
NEW_KEY_FILE = "secret.key.new"
"""Next version of the key file; exists only while the key file is being replaced."""
VARIABLE, NEW_VARIABLE = "AGENT_RFT_SECRET_KEY", "AGENT_RFT_NEW_SECRET_KEY"
MASTER_BYTES = 32
VERSION = "v1"
NONCE_BYTES = 12

Purpose = Literal["job", "reasoning"]


@dataclass(frozen=True, slots=True)
class MasterSecret:
    """Master secret of a server; `text` is its 32 bytes in URL-safe base64, which `repr` does not show."""

    text: str

    @classmethod
    def parse(cls, text: str) -> MasterSecret:
        """Parse a master secret.

        Raises:
            UserError: `text` is not 32 bytes in URL-safe base64.
        """
        try:
            num_bytes = len(base64.b64decode(text, altchars=b"-_", validate=True))
        except (ValueError, binascii.Error):
            num_bytes = 0
        if num_bytes != MASTER_BYTES:
            raise UserError(
                f"the secret key is invalid: it must be 32 random bytes in URL-safe base64; fix {VARIABLE} (or "
                f"{NEW_VARIABLE}), or the file {KEY_FILE} in the server's folder"
            )
        return cls(text)

    @classmethod
    def generate(cls) -> MasterSecret:
        return cls(Fernet.generate_key().decode())

    @property
    def id(self) -> str:
        """Id that identifies the secret without revealing it."""
        return _derive_key(self.text, "id").hex()[:16]

    def cipher(self, purpose: Purpose) -> AESGCM:
        return AESGCM(_derive_key(self.text, f"purpose/{purpose}"))

    def __repr__(self) -> str:
        return f"MasterSecret({self.id})"


@dataclass(frozen=True, slots=True)
class FixedSecrets:
    """Master secrets that do not change while the process runs, such as secrets in environment variables."""

    masters: tuple[MasterSecret, ...]

    def read(self) -> tuple[MasterSecret, ...]:
        return self.masters


@dataclass(frozen=True, slots=True)
class FileSecrets:
    """Master secrets in a file, one per line. `keys rotate-master` may change the file, so `read` does not cache it."""

    path: Path

    def read(self) -> tuple[MasterSecret, ...]:
        """Return the master secrets in the file, at least one.

        Raises:
            RftError: The file cannot be read, or a secret is missing or invalid.
        """
        try:
            lines = self.path.read_text().split()
        except OSError as error:
            raise RftError(
                f"the secret key {self.path} cannot be read: {error.strerror}. Make it readable, or set {VARIABLE} if "
                "the server uses this variable."
            ) from None
        return tuple(MasterSecret.parse(line) for line in lines or [""])

    def write(self, masters: tuple[MasterSecret, ...]) -> None:
        """Replace the secrets in the file atomically, even if the machine crashes. Concurrent calls are not allowed."""
        temporary = self.path.with_name(NEW_KEY_FILE)
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(master.text for master in masters) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        sync_to_disk(self.path.parent)


MasterSecrets = FixedSecrets | FileSecrets
"""Source of all master secrets that can open a sealed string. New strings are sealed with the first secret."""


def find_master_secrets(folder: Path, environment: Mapping[str, str] = os.environ) -> MasterSecrets:
    """Return the source of the master secrets: the environment if it contains a secret, otherwise the key file.

    The key file is not read yet, so it may be missing.

    Raises:
        UserError: A secret in the environment is invalid, or only the new secret is set.
    """
    if VARIABLE in environment:
        texts = [environment[name] for name in (NEW_VARIABLE, VARIABLE) if name in environment]
        return FixedSecrets(tuple(MasterSecret.parse(text.strip()) for text in dict.fromkeys(texts)))
    if NEW_VARIABLE in environment:
        raise UserError(f"{NEW_VARIABLE} is set, but {VARIABLE} is not. Set both, or only {VARIABLE}.")
    return FileSecrets(folder / KEY_FILE)


class SecretBox:
    """Creates sealers, which encrypt and decrypt strings with the master secrets of a server."""

    def __init__(self, secrets: MasterSecrets) -> None:
        self._secrets = secrets

    @classmethod
    def from_folder(cls, folder: Path, environment: Mapping[str, str] = os.environ) -> SecretBox:
        """Load the master secrets from the environment if it sets any, otherwise from the folder's key file.

        A missing key file is created with a new secret.

        Raises:
            UserError: A secret is invalid.
        """
        found = find_master_secrets(folder, environment)
        if isinstance(found, FileSecrets) and not found.path.exists():
            _create_key_file(found.path)
        found.read()
        return cls(found)

    def sealer(self, purpose: Purpose, context: str) -> Sealer:
        """Return the sealer for a purpose and a context, which is the id of a job or an API key."""
        return Sealer(self._secrets, purpose, context)


@dataclass(frozen=True, slots=True)
class Sealer:
    """Encrypts strings so that only a sealer with the same master secret, purpose and context can open them."""

    _secrets: MasterSecrets
    _purpose: Purpose
    _context: str

    def seal(self, text: str) -> str:
        master = self._secrets.read()[0]
        prefix, nonce = sealed_prefix(master), os.urandom(NONCE_BYTES)
        sealed = nonce + master.cipher(self._purpose).encrypt(nonce, text.encode(), self._associated_data(prefix))
        return prefix + base64.urlsafe_b64encode(sealed).decode()

    def open(self, sealed: str) -> str:
        """Decrypt a sealed string.

        Raises:
            UnsealFailed: The text was sealed with another secret, purpose or context, or `sealed` was changed.
        """
        master = next((master for master in self._secrets.read() if sealed.startswith(sealed_prefix(master))), None)
        try:
            if master is None:
                raise InvalidTag
            prefix = sealed_prefix(master)
            data = base64.b64decode(sealed[len(prefix) :], altchars=b"-_", validate=True)
            nonce, text = data[:NONCE_BYTES], data[NONCE_BYTES:]
            return master.cipher(self._purpose).decrypt(nonce, text, self._associated_data(prefix)).decode()
        except (InvalidTag, ValueError):
            raise UnsealFailed(
                "a stored secret cannot be decrypted: it was encrypted with a different key. Restore the server's "
                f"previous key ({VARIABLE} or {KEY_FILE})."
            ) from None

    def _associated_data(self, prefix: str) -> bytes:
        return "\0".join(("agent-rft", prefix, self._purpose, self._context)).encode()


def sealed_prefix(master: MasterSecret) -> str:
    """Return the prefix of all strings sealed with this secret."""
    return f"{VERSION}.{master.id}."


@lru_cache(maxsize=16)
def _derive_key(text: str, info: str) -> bytes:
    hkdf = HKDF(SHA256(), length=32, salt=None, info=f"agent-rft/{VERSION}/{info}".encode())
    return hkdf.derive(base64.urlsafe_b64decode(text))


def _create_key_file(path: Path) -> None:
    """Create a key file atomically, so that all servers that start concurrently use the same key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{KEY_FILE}.") as file:  # with mode 0600
        file.write(MasterSecret.generate().text.encode())
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
