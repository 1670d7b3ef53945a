"""Sessions of the console: opaque tokens, each bound to an API key, with which it ends.

Only a hash of each token is stored. The token has 256 random bits and nothing in it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from sqlalchemy import BigInteger, String, delete
from sqlalchemy.orm import Mapped, mapped_column

from agent_rft.serve.stores.database import Base, Database
from agent_rft.serve.stores.keys import ApiKey, KeyStore, token_hash

SESSION_S = 24 * 3600
"""How long a session lasts, unless its key ends before."""


class SessionRow(Base):
    __tablename__ = "console_sessions"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[int] = mapped_column(BigInteger)


class SessionStore:
    """The sessions of a server. `clock` returns Unix seconds."""

    def __init__(self, database: Database, keys: KeyStore, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._keys = keys
        self._clock = clock

    def open(self, key: ApiKey) -> str:
        """Begin a session of a key and return its token; sessions that have expired are forgotten."""
        token, now = secrets.token_urlsafe(32), int(self._clock())
        with self._database.session() as session:
            session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
            session.add(SessionRow(hash=token_hash(token), key_id=key.id, expires_at=now + SESSION_S))
        return token

    def find(self, token: str) -> ApiKey | None:
        """The key of a session; None if it has ended, or its key was revoked or has expired."""
        with self._database.session() as session:
            row = session.get(SessionRow, token_hash(token))
            id = None if row is None or row.expires_at <= self._clock() else row.key_id
        return None if id is None else self._keys.valid(id)

    def close(self, token: str) -> None:
        """End a session. Idempotent."""
        with self._database.session() as session:
            session.execute(delete(SessionRow).where(SessionRow.hash == token_hash(token)))
