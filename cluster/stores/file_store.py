"""Files of the server: what clients uploaded and what jobs left. A file is there whole or not at all: it is written
beside, moved into place, and listed last.

Files belong to all keys of a server, which is one organisation's. A file lies under its id; the name that a client gave
it is text for people and leads to no path.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import BigInteger, Select, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from cluster.stores.blobs import Blobs
from cluster.stores.database import Base, Database
from trainer.errors import RftError, UserError

MAX_NAME_CHARS = 255
ABANDONED_S = 24 * 3600.0
"""An upload of that age has no client any more: a server died under it."""


class UnknownFile(UserError):
    """There is no file of this id, or no longer."""


class FileTooLarge(UserError):
    """More bytes came than a file may have."""


class NoSpace(RftError):
    """The disk is full."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Times are whole seconds since 1970."""

    id: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None


class FileRow(Base):
    __tablename__ = "files"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    filename: Mapped[str]
    purpose: Mapped[str] = mapped_column(index=True)
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger, index=True)


@dataclass(slots=True)
class Incoming:
    """A file that is being written. Kept by FileStore.keep, else gone."""

    id: str
    path: Path
    file: BinaryIO
    max_bytes: int
    num_bytes: int = field(default=0)

    async def write(self, data: bytes) -> None:
        """Raises:
        FileTooLarge: that would be more than `max_bytes`.
        NoSpace: the disk is full.
        """
        self.num_bytes += len(data)
        if self.num_bytes > self.max_bytes:
            raise FileTooLarge(f"the file is over {self.max_bytes:,} bytes")
        try:
            await asyncio.to_thread(self.file.write, data)
        except OSError as error:
            raise _of_disk(error) from None


class FileStore:
    """`folder` holds uploads under way, and `blobs` what is whole. `clock` gives seconds since 1970."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        folder: Path,
        max_bytes: int = 512 * 2**20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._incoming = folder / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self.max_bytes = max_bytes
        self._clock = clock

    # -- writing -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[Incoming]:
        """A place to write a file to. What was not kept by the end of the block leaves nothing."""
        id = f"file-{secrets.token_urlsafe(18)}"
        path = self._incoming / id
        with path.open("xb") as file:
            try:
                yield Incoming(id, path, file, self.max_bytes)
            finally:
                path.unlink(missing_ok=True)

    async def keep(
        self, incoming: Incoming, filename: str, purpose: str, expires_after_s: int | None = None
    ) -> FileRecord:
        """The file that `incoming` came to.

        Raises:
            NoSpace: the disk is full.
        """
        now = int(self._clock())
        record = FileRecord(
            id=incoming.id,
            filename=plain_name(filename),
            purpose=purpose,
            num_bytes=incoming.num_bytes,
            created_at=now,
            expires_at=None if expires_after_s is None else now + expires_after_s,
        )
        await asyncio.to_thread(self._keep, incoming, record)
        return record

    def _keep(self, incoming: Incoming, record: FileRecord) -> None:
        try:
            incoming.file.flush()
            os.fsync(incoming.file.fileno())
            self._blobs.put(incoming.path, record.id)
        except OSError as error:
            raise _of_disk(error) from None
        try:
            with self._database.session() as session:
                session.add(FileRow(**{name: getattr(record, name) for name in FileRecord.__slots__}))
        except BaseException:
            self._blobs.delete(record.id)
            raise

    async def create(
        self, stream: AsyncIterator[bytes], filename: str, purpose: str, expires_after_s: int | None = None
    ) -> FileRecord:
        """A file with all that `stream` gives.

        Raises:
            FileTooLarge: it gives too much.
            NoSpace: the disk is full.
        """
        async with self.receive() as incoming:
            async for data in stream:
                await incoming.write(data)
            return await self.keep(incoming, filename, purpose, expires_after_s)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, id: str) -> FileRecord:
        """Raises:
        UnknownFile: there is none.
        """
        with self._database.session() as session:
            return _record(self._row(session, id))

    def path(self, id: str) -> Path:
        """Where it can be read on this machine.

        Raises:
            UnknownFile: there is none.
        """
        self.get(id)
        try:
            return self._blobs.path(id)
        except FileNotFoundError:
            raise UnknownFile(f"No such File object: {id}") from None

    def list(
        self, *, after: str | None = None, limit: int = 10_000, newest_first: bool = True, purpose: str | None = None
    ) -> tuple[list[FileRecord], bool]:
        """A page, and whether more come after it.

        Raises:
            UnknownFile: there is no file `after`.
        """
        number = FileRow.number
        wanted = self._living().order_by(number.desc() if newest_first else number)
        if purpose is not None:
            wanted = wanted.where(FileRow.purpose == purpose)
        with self._database.session() as session:
            if after is not None:
                last = self._row(session, after).number
                wanted = wanted.where(number < last if newest_first else number > last)
            rows = session.scalars(wanted.limit(limit + 1)).all()
            return [_record(row) for row in rows[:limit]], len(rows) > limit

    # -- deleting ------------------------------------------------------------------------------------------------------

    def delete(self, id: str) -> None:
        """Raises:
        UnknownFile: there is none.
        """
        with self._database.session() as session:
            session.delete(self._row(session, id))
        self._blobs.delete(id)

    def sweep(self) -> None:
        """Delete what has expired and what servers that died left of uploads."""
        now = self._clock()
        with self._database.session() as session:
            expired = session.scalars(select(FileRow).where(FileRow.expires_at <= now)).all()
            for row in expired:
                session.delete(row)
        for row in expired:
            self._blobs.delete(row.id)
        for path in self._incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < now - ABANDONED_S:
                    path.unlink()

    def _living(self) -> Select[FileRow]:
        return select(FileRow).where(FileRow.expires_at.is_(None) | (FileRow.expires_at > self._clock()))

    def _row(self, session: Session, id: str) -> FileRow:
        row: FileRow | None = session.scalar(self._living().where(FileRow.id == id))
        if row is None:
            raise UnknownFile(f"No such File object: {id[:100]}")
        return row


def plain_name(filename: str) -> str:
    """The last part of what a client calls a file, without characters that are none to read."""
    last = filename.replace("\\", "/").rpartition("/")[2]
    kept = "".join(char for char in last if char.isprintable())[-MAX_NAME_CHARS:]
    return kept if kept.strip(". ") else "file"


def _record(row: FileRow) -> FileRecord:
    return FileRecord(**{name: getattr(row, name) for name in FileRecord.__slots__})


def _of_disk(error: OSError) -> Exception:
    return NoSpace("the server's disk is full") if error.errno in (errno.ENOSPC, errno.EDQUOT) else error
