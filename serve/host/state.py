"""What a server holds between two starts: its database, its files and its secret key, in one folder unless said
otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from cluster.stores.blobs import Blobs, FolderBlobs, RemoteBlobs
from cluster.stores.database import Database
from cluster.stores.file_store import FileStore
from cluster.stores.keys import KeyStore
from cluster.stores.migrate import migrate
from cluster.stores.model_registry import ModelRegistry
from cluster.stores.secrets import SecretBox
from trainer.errors import UserError
from trainer.spec.operator import Operator

SWEEP_S = 600.0
FIRST_KEY = "first key"
FIRST_KEY_LOCK, MODELS_LOCK = 0x6B657973, 0x6D6F6465
PLACES_FILE = "places.json"
DATABASE_VARIABLE, FILES_VARIABLE = "AGENT_RFT_DATABASE", "AGENT_RFT_FILES"
_log = logging.getLogger("agent_rft.serve")


@dataclass(frozen=True, slots=True)
class Places:
    """`database` is a URL of PostgreSQL's, or None for a file in `folder`; `files` an fsspec URL, or None for a folder
    in it.
    """

    folder: Path
    database: str | None = None
    files: str | None = None

    @classmethod
    def of_folder(cls, folder: Path, environment: Mapping[str, str] = os.environ) -> Places:
        """As the environment says, else as was noted in the folder."""
        path = folder / PLACES_FILE
        noted = json.loads(path.read_text()) if path.exists() else {}
        database = environment.get(DATABASE_VARIABLE) or noted.get("database")
        return cls(folder, database, environment.get(FILES_VARIABLE) or noted.get("files"))

    def note(self) -> None:
        """In a file of the folder that only its owner may read: a URL may hold a password."""
        path = self.folder / PLACES_FILE
        beside = path.with_suffix(f".{secrets.token_hex(8)}")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"database": self.database, "files": self.files}, file)
        os.replace(beside, path)


class ServerState:
    """The stores of a server, opened."""

    def __init__(self, places: Places, operator: Operator) -> None:
        """Raises:
        UserError: the folder, the database or the files' place cannot be used.
        """
        self.folder = folder = places.folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.secrets = SecretBox.of_folder(folder)
            self.database = open_database(places)
            remote = places.files is not None
            blobs: Blobs = RemoteBlobs(str(places.files), folder / "files") if remote else FolderBlobs(folder / "files")
            self.files = FileStore(self.database, blobs, folder, operator.limits.max_file_bytes)
        except OSError as error:
            raise UserError(f"the server's folder {folder} cannot be used: {error.strerror}") from None
        self.keys = KeyStore(self.database)
        self.models = ModelRegistry(self.database, operator.aliases)

    def first_key(self) -> str | None:
        """The text of a key that may do all, where the server has no key yet. Of two that start at a time, one gets
        it.
        """
        with self.database.exclusive(FIRST_KEY_LOCK):
            return None if self.keys.list() else self.keys.create(FIRST_KEY, ["admin"])[1]

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[None]:
        """One replica of the API at a time decides which models are served. Not to be cancelled."""
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, self.database.exclusive(MODELS_LOCK))
            yield

    async def keep_clean(self) -> None:
        """Deletes what has expired, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.files.sweep)
            except (OSError, SQLAlchemyError):
                _log.exception("files that have expired could not be deleted; tried again in %g s", SWEEP_S)
            await asyncio.sleep(SWEEP_S)

    def close(self) -> None:
        self.database.close()


def open_database(places: Places) -> Database:
    """The database with all its tables.

    Raises:
        UserError: its URL is none, or nothing answers there.
    """
    url = places.database
    database = Database.of_folder(places.folder.resolve()) if url is None else Database(_checked_url(url))
    try:
        migrate(database)
    except SQLAlchemyError as error:
        # Not the error's whole text: it may hold the URL.
        where = database.engine.url.render_as_string(hide_password=True)
        why = type(error).__name__ if (cause := getattr(error, "orig", None)) is None else _first_line(str(cause))
        raise UserError(f"the database {where} cannot be used: {why}") from None
    return database


def _checked_url(url: str) -> str:
    try:
        name = make_url(url).get_backend_name()
    except ArgumentError:
        raise UserError("--database is no URL; give postgresql://user:password@host/name") from None
    if name not in ("postgresql", "sqlite"):
        raise UserError(f"--database: {name} is not supported; give postgresql://user:password@host/name")
    return url


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
