"""The state that a server keeps between starts: its database, its files and its secret key.

All of it is in one folder, unless the database or the files are configured to be elsewhere.
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
LOCATIONS_FILE = "places.json"
DATABASE_VARIABLE, FILES_VARIABLE = "AGENT_RFT_DATABASE", "AGENT_RFT_FILES"
_log = logging.getLogger("agent_rft.serve")


@dataclass(frozen=True, slots=True)
class StateLocations:
    """Where a server's state is.

    `database` is a PostgreSQL URL, or None for a file in `folder`; `files` is an fsspec URL, or None for a subfolder.
    """

    folder: Path
    database: str | None = None
    files: str | None = None

    @classmethod
    def of_folder(cls, folder: Path, environment: Mapping[str, str] = os.environ) -> StateLocations:
        """Reads the locations from the environment, else from the folder, where `save` wrote them."""
        path = folder / LOCATIONS_FILE
        saved = json.loads(path.read_text()) if path.exists() else {}
        database = environment.get(DATABASE_VARIABLE) or saved.get("database")
        return cls(folder, database, environment.get(FILES_VARIABLE) or saved.get("files"))

    def save(self) -> None:
        """Writes the locations to the folder, readable only by its owner: a URL may contain a password."""
        path = self.folder / LOCATIONS_FILE
        temporary = path.with_suffix(f".{secrets.token_hex(8)}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"database": self.database, "files": self.files}, file)
        os.replace(temporary, path)


class ServerState:
    """The stores of a server, opened."""

    def __init__(self, locations: StateLocations, operator: Operator) -> None:
        """Opens the stores and creates those that do not exist yet.

        Raises:
            UserError: the folder, the database or the location of the files cannot be used.
        """
        self.folder = folder = locations.folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.secrets = SecretBox.of_folder(folder)
            self.database = open_database(locations)
            cache = folder / "files"
            blobs: Blobs = FolderBlobs(cache) if locations.files is None else RemoteBlobs(locations.files, cache)
            self.files = FileStore(self.database, blobs, folder, operator.limits.max_file_bytes)
        except OSError as error:
            raise UserError(f"the server's folder {folder} cannot be used: {error.strerror}") from None
        self.keys = KeyStore(self.database)
        self.models = ModelRegistry(self.database, operator.aliases)

    def first_key(self) -> str | None:
        """Creates an admin key and returns its token, or returns None if the server has a key already.

        Of several servers that start at the same time on one database, only one creates the key.
        """
        with self.database.alone(FIRST_KEY_LOCK):
            return None if self.keys.list() else self.keys.create(FIRST_KEY, ["admin"])[1]

    @asynccontextmanager
    async def models_lock(self) -> AsyncIterator[None]:
        """Lets one replica of the API at a time decide which models are served; must not be cancelled."""
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, self.database.alone(MODELS_LOCK))
            yield

    async def run_sweeps(self) -> None:
        """Deletes expired files until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.files.sweep)
            except (OSError, SQLAlchemyError):
                _log.exception("expired files could not be deleted; trying again in %g s", SWEEP_S)
            await asyncio.sleep(SWEEP_S)

    def close(self) -> None:
        self.database.close()


def open_database(locations: StateLocations) -> Database:
    """Returns the database, with its tables created and migrated.

    Raises:
        UserError: the URL is invalid, or the database cannot be reached.
    """
    url = locations.database
    database = Database.of_folder(locations.folder.resolve()) if url is None else Database(_checked_url(url))
    try:
        migrate(database)
    except SQLAlchemyError as error:
        # Not the whole text of the error: it may contain the URL with its password.
        where = database.engine.url.render_as_string(hide_password=True)
        why = type(error).__name__ if (cause := getattr(error, "orig", None)) is None else _first_line(str(cause))
        raise UserError(f"the database {where} cannot be used: {why}") from None
    return database


def _checked_url(url: str) -> str:
    try:
        name = make_url(url).get_backend_name()
    except ArgumentError:
        raise UserError("--database is not a valid URL; give postgresql://user:password@host/name") from None
    if name not in ("postgresql", "sqlite"):
        raise UserError(f"--database: {name} is not supported; give postgresql://user:password@host/name")
    return url


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
