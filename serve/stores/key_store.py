"""API keys, `sk-rft-<id>-<secret>`, and the console's sessions.

Only a hash of each key is stored, so a stolen database grants no access.

The secret has 256 random bits, so its SHA-256 hash cannot be brute-forced. Slow hashes are only necessary for passwords
that people choose. Keys are looked up by their id, which is not secret, and hashes are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from sqlalchemy import BigInteger, String, delete, select
from sqlalchemy.orm import Mapped, mapped_column

from agent_rft.errors import UserError
from agent_rft.serve.stores.database import Base, Database

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""All scopes. Each scope includes the scopes before it."""
PREFIX = "sk-rft-"
MAX_NAME_CHARS = 100
_TOKEN = re.compile(rf"{PREFIX}([0-9a-f]{{16}})-([\w-]{{43}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """API key without its secret. Times are Unix seconds.

    If `requests_per_minute` is None, the server's default rate limit applies. If `expires_at` is None, the key never
    expires.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: int
    revoked_at: int | None = None
    requests_per_minute: int | None = None
    expires_at: int | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def has_scope(self, scope: Scope) -> bool:
        """Return whether the key grants `scope`."""
        return any(SCOPES.index(own) >= SCOPES.index(scope) for own in self.scopes)


class KeyRow(Base):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    scopes: Mapped[str]
    hash: Mapped[str]
    created_at: Mapped[int] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)
    requests_per_minute: Mapped[int | None]
    expires_at: Mapped[int | None] = mapped_column(BigInteger)


class KeyStore:
    """Store of a server's API keys. `clock` returns Unix seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def create(
        self,
        name: str,
        scopes: Sequence[Scope],
        requests_per_minute: int | None = None,
        expires_after_s: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key. Return the key and its token, which cannot be retrieved later.

        Raises:
            UserError: `scopes` is empty or holds an unknown scope; `name` is empty, too long or not printable; or
                `requests_per_minute` is below 1.
        """
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise UserError(f"scopes: must contain one or more of {', '.join(SCOPES)}")
        if not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise UserError(f"name: must be 1 to {MAX_NAME_CHARS} printable characters")
        if requests_per_minute is not None and requests_per_minute < 1:
            raise UserError("requests_per_minute must be at least 1")
        id = secrets.token_hex(8)
        token = f"{PREFIX}{id}-{secrets.token_urlsafe(32)}"
        now = int(self._clock())
        row = KeyRow(
            id=id,
            name=name,
            scopes=",".join(dict.fromkeys(scopes)),
            hash=hash_token(token),
            created_at=now,
            requests_per_minute=requests_per_minute,
            expires_at=None if expires_after_s is None else now + expires_after_s,
        )
        with self._database.session() as session:
            session.add(row)
            session.flush()
            return _to_api_key(row), token

    def find(self, token: str) -> ApiKey | None:
        """Return the API key whose token is `token`; None if the key does not exist, was revoked or has expired."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        with self._database.session() as session:
            row = session.get(KeyRow, match[1])
            # Compare even for an unknown id, so that the time taken does not reveal which ids exist.
            same = hmac.compare_digest(hash_token(token), row.hash if row is not None else hash_token(""))
            key = _to_api_key(row) if row is not None and same and row.revoked_at is None else None
            return None if key is None or key.has_expired(self._clock()) else key

    def find_valid(self, id: str) -> ApiKey | None:
        """Return the API key with this id; None if the key does not exist, was revoked or has expired."""
        with self._database.session() as session:
            row = session.get(KeyRow, id)
            key = None if row is None or row.revoked_at is not None else _to_api_key(row)
        return None if key is None or key.has_expired(self._clock()) else key

    def list(self) -> list[ApiKey]:
        """Return all keys, including revoked and expired ones, oldest first."""
        with self._database.session() as session:
            return [_to_api_key(row) for row in session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id))]

    def revoke(self, id: str) -> ApiKey:
        """Revoke a key. Idempotent.

        Raises:
            UserError: The key does not exist.
        """
        with self._database.session() as session:
            row = session.get(KeyRow, id)
            if row is None:
                raise UserError(f"the key {id!r} does not exist; run `agent-rft keys list` to see all keys")
            row.revoked_at = row.revoked_at or int(self._clock())
            return _to_api_key(row)


def hash_token(token: str) -> str:
    """Return the hash that is stored for a secret token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _to_api_key(row: KeyRow) -> ApiKey:
    scopes = cast("tuple[Scope, ...]", tuple(row.scopes.split(",")))
    return ApiKey(row.id, row.name, scopes, row.created_at, row.revoked_at, row.requests_per_minute, row.expires_at)


# -- sessions ----------------------------------------------------------------------------------------------------------


SESSION_S = 24 * 3600
"""Seconds that a session lasts, unless its key is revoked or expires earlier."""
MAX_SESSIONS = 32
"""Maximum number of sessions per API key. Opening another session ends the oldest session."""


class SessionRow(Base):
    __tablename__ = "console_sessions"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[int] = mapped_column(BigInteger)


class SessionStore:
    """Store of a server's console sessions. `clock` returns Unix seconds."""

    def __init__(self, database: Database, keys: KeyStore, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._keys = keys
        self._clock = clock

    def open(self, key: ApiKey) -> str:
        """Begin a session of an API key, and return the session's token.

        Also deletes expired sessions, and the key's oldest sessions above MAX_SESSIONS.
        """
        token, now = secrets.token_urlsafe(32), int(self._clock())
        newest = select(SessionRow.hash).where(SessionRow.key_id == key.id).order_by(SessionRow.expires_at.desc())
        with self._database.session() as session:
            session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
            session.execute(delete(SessionRow).where(SessionRow.hash.in_(newest.offset(MAX_SESSIONS - 1))))
            session.add(SessionRow(hash=hash_token(token), key_id=key.id, expires_at=now + SESSION_S))
        return token

    def find(self, token: str) -> ApiKey | None:
        """Return the API key of the session with this token; None if the session has ended or the key is not valid."""
        with self._database.session() as session:
            row = session.get(SessionRow, hash_token(token))
            id = None if row is None or row.expires_at <= self._clock() else row.key_id
        return None if id is None else self._keys.find_valid(id)

    def close(self, token: str) -> None:
        """End the session with this token. Idempotent."""
        with self._database.session() as session:
            session.execute(delete(SessionRow).where(SessionRow.hash == hash_token(token)))
