"""Files of the server: clients' uploads and job results.

A file exists completely or not at all: it is written to a temporary path, moved to its final path, and added to the
database last. Files are visible to every API key, since a server belongs to one organization. Only results that
contain rows and rewards belong to one key (`owner_only`). A file is stored under its id; the client's file name is only
displayed, and never used as a path.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import BigInteger, Select, String, false, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from agent_rft.cluster.records.blobs import Blobs
from agent_rft.errors import RftError, UserError
from agent_rft.serve.stores.database import Base, Database, to_record

MAX_NAME_CHARS = 255
ABANDONED_S = 24 * 3600.0
"""Age in seconds after which an incomplete upload is deleted. The server that received it has probably died."""


class UnknownFile(UserError):
    """The file does not exist, has expired or was deleted."""


class FileTooLarge(UserError):
    """The upload exceeds the maximum file size."""


class ServerDiskFull(RftError):
    """The disk is full."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Stored file. Times are whole Unix seconds; `owner` is the id of the key that created it, or None if unknown.

    If `owner_only`, only the owner and admins may see the file.
    """

    id: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None
    owner: str | None = None
    owner_only: bool = False

    def is_visible_to(self, key_id: str | None) -> bool:
        """Return whether the key with this id may see the file; None stands for an admin."""
        return not self.owner_only or key_id is None or self.owner == key_id


class FileRow(Base):
    __tablename__ = "files"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    filename: Mapped[str]
    purpose: Mapped[str] = mapped_column(index=True)
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger, index=True)
    owner: Mapped[str | None] = mapped_column(String(64))
    owner_only: Mapped[bool] = mapped_column(server_default=false())


@dataclass(slots=True)
class IncomingFile:
    """File that is being written. It is discarded unless `FileStore.keep` is called."""

    id: str
    path: Path
    file: BinaryIO
    max_bytes: int
    num_bytes: int = 0

    async def write(self, data: bytes) -> None:
        """Append `data`.

        Raises:
            FileTooLarge: The file would exceed `max_bytes`.
            ServerDiskFull: The disk is full.
        """
        self.num_bytes += len(data)
        if self.num_bytes > self.max_bytes:
            raise FileTooLarge(f"the file is larger than {self.max_bytes:,} bytes")
        try:
            await asyncio.to_thread(self.file.write, data)
        except OSError as error:
            raise _disk_error(error) from None


class FileStore:
    """Store of files. Uploads in progress are in `folder`, stored files in `blobs`. `clock` returns Unix seconds."""

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
    async def receive(self) -> AsyncIterator[IncomingFile]:
        """Context manager for a new file, which is deleted at the end of the block unless `keep` was called."""
        id = f"file-{secrets.token_urlsafe(18)}"
        path = self._incoming / id
        with path.open("xb") as file:
            try:
                yield IncomingFile(id, path, file, self.max_bytes)
            finally:
                path.unlink(missing_ok=True)

    async def keep(
        self,
        incoming: IncomingFile,
        filename: str,
        purpose: str,
        expires_after_s: int | None = None,
        owner: str | None = None,
        owner_only: bool = False,
    ) -> FileRecord:
        """Store the content of `incoming` as a file.

        Raises:
            ServerDiskFull: The disk is full.
        """
        now = int(self._clock())
        record = FileRecord(
            id=incoming.id,
            filename=sanitize_file_name(filename),
            purpose=purpose,
            num_bytes=incoming.num_bytes,
            created_at=now,
            expires_at=None if expires_after_s is None else now + expires_after_s,
            owner=owner,
            owner_only=owner_only,
        )
        await asyncio.to_thread(self._keep, incoming, record)
        return record

    def _keep(self, incoming: IncomingFile, record: FileRecord) -> None:
        try:
            incoming.file.flush()
            os.fsync(incoming.file.fileno())
            self._blobs.put(incoming.path, record.id)
        except OSError as error:
            raise _disk_error(error) from None
        try:
            with self._database.session() as session:
                session.add(FileRow(**asdict(record)))
        except BaseException:
            self._blobs.delete(record.id)
            raise

    async def create(
        self,
        stream: AsyncIterator[bytes],
        filename: str,
        purpose: str,
        expires_after_s: int | None = None,
        owner: str | None = None,
        owner_only: bool = False,
    ) -> FileRecord:
        """Store everything that `stream` yields as one file.

        Raises:
            FileTooLarge: The stream exceeds `max_bytes`.
            ServerDiskFull: The disk is full.
        """
        async with self.receive() as incoming:
            async for data in stream:
                await incoming.write(data)
            return await self.keep(incoming, filename, purpose, expires_after_s, owner, owner_only)

    def check(self) -> None:
        """Check that files can be stored.

        Raises:
            OSError: The file system cannot be used.
        """
        self._blobs.check()

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, id: str, viewer: str | None = None) -> FileRecord:
        """Return the record of a file.

        Args:
            id: Id of the file.
            viewer: Id of the key that reads the file; None for the server and for admins.

        Raises:
            UnknownFile: The file `id` does not exist, or `viewer` may not see it.
        """
        with self._database.session() as session:
            record = to_record(FileRecord, self._row(session, id))
        if not record.is_visible_to(viewer):
            raise _unknown_file_error(id)
        return record

    def path(self, id: str) -> Path:
        """Return the path of the file on this machine.

        Raises:
            UnknownFile: The file `id` does not exist.
        """
        self.get(id)
        try:
            return self._blobs.path(id)
        except FileNotFoundError:
            raise UnknownFile(f"No such File object: {id}") from None

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 10_000,
        newest_first: bool = True,
        purpose: str | None = None,
        viewer: str | None = None,
    ) -> tuple[list[FileRecord], bool]:
        """Return a page of the files that `viewer` may see (as in `get`), and whether more files follow.

        Raises:
            UnknownFile: The file `after` does not exist.
        """
        number = FileRow.number
        query = self._unexpired().order_by(number.desc() if newest_first else number)
        if purpose is not None:
            query = query.where(FileRow.purpose == purpose)
        if viewer is not None:
            query = query.where(FileRow.owner_only.is_(False) | (FileRow.owner == viewer))
        with self._database.session() as session:
            if after is not None:
                last = self._row(session, after).number
                query = query.where(number < last if newest_first else number > last)
            rows = session.scalars(query.limit(limit + 1)).all()
            return [to_record(FileRecord, row) for row in rows[:limit]], len(rows) > limit

    # -- deleting ------------------------------------------------------------------------------------------------------

    def delete(self, id: str) -> None:
        """Delete a file.

        Raises:
            UnknownFile: The file `id` does not exist.
        """
        with self._database.session() as session:
            session.delete(self._row(session, id))
        self._blobs.delete(id)

    def sweep(self) -> None:
        """Delete expired files, and incomplete uploads left by servers that died."""
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

    def _unexpired(self) -> Select[FileRow]:
        return select(FileRow).where(FileRow.expires_at.is_(None) | (FileRow.expires_at > self._clock()))

    def _row(self, session: Session, id: str) -> FileRow:
        row: FileRow | None = session.scalar(self._unexpired().where(FileRow.id == id))
        if row is None:
            raise _unknown_file_error(id)
        return row


def _unknown_file_error(id: str) -> UnknownFile:
    return UnknownFile(f"No such File object: {id[:100]}")


def sanitize_file_name(filename: str) -> str:
    """Return the last part of a client's file name, without unprintable characters, or "file" if nothing remains."""
    last = filename.replace("\\", "/").rpartition("/")[2]
    kept = "".join(char for char in last if char.isprintable())[-MAX_NAME_CHARS:]
    return kept if kept.strip(". ") else "file"


def _disk_error(error: OSError) -> Exception:
    return ServerDiskFull("the server's disk is full") if error.errno in (errno.ENOSPC, errno.EDQUOT) else error
