"""The state that a server keeps between starts: its database, its files and its secret key.

The state is in one folder, unless another location is configured for the database or the files.
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

from agent_rft.cluster.records.blobs import open_blobs
from agent_rft.cluster.run.checkpoint_upload import open_store
from agent_rft.errors import UserError
from agent_rft.serve.stores.audit_log import OPERATOR, AuditLog
from agent_rft.serve.stores.database import DatabaseError, is_unavailable, make_private
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.serve.stores.key_store import KeyStore, SessionStore
from agent_rft.serve.stores.migration import open_database
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.serve.stores.sealed_secrets import KEY_FILE, SecretBox
from agent_rft.spec.api_keys import read_variable
from agent_rft.spec.operator.operator_config import OperatorConfig

SWEEP_S = 600.0
FIRST_KEY = "first key"
FIRST_KEY_LOCK, MODELS_LOCK = 0x6B657973, 0x6D6F6465
LOCATIONS_FILE = "places.json"
FOLDER_MARKERS = (KEY_FILE, LOCATIONS_FILE, "state.db")
"""Files that identify a folder as a server's folder."""
DATABASE_VARIABLE, FILES_VARIABLE = "AGENT_RFT_DATABASE", "AGENT_RFT_FILES"
_log = logging.getLogger("agent_rft.serve")


@dataclass(frozen=True, slots=True)
class StateLocations:
    """The locations of a server's state.

    `database` is a PostgreSQL URL, or None for a file in `folder`; `files` is an fsspec URL, or None for a subfolder.
    """

    folder: Path
    database: str | None = None
    files: str | None = None

    @classmethod
    def load(cls, folder: Path, environment: Mapping[str, str] = os.environ) -> StateLocations:
        """Load the locations from environment variables, or else from the file that `save` wrote to the folder."""
        path = folder / LOCATIONS_FILE
        saved = json.loads(path.read_text()) if path.exists() else {}
        database = read_variable(environment, DATABASE_VARIABLE) or saved.get("database")
        return cls(folder, database, read_variable(environment, FILES_VARIABLE) or saved.get("files"))

    def save(self) -> None:
        """Write the locations to a file that only the owner can read, since a URL may contain a password."""
        path = self.folder / LOCATIONS_FILE
        temporary = path.with_suffix(f".{secrets.token_hex(8)}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"database": self.database, "files": self.files}, file)
        os.replace(temporary, path)


class ServerState:
    """The database, files and other stores of a server."""

    def __init__(self, locations: StateLocations, operator: OperatorConfig) -> None:
        """Open the stores. Missing stores are created.

        Raises:
            UserError: The folder, database, file location or checkpoint store cannot be used.
        """
        self.folder = folder = locations.folder
        open_store(operator)  # reports a wrong setting now instead of in a job
        try:
            make_private(folder, FOLDER_MARKERS)
            self.secrets = SecretBox.from_folder(folder)
            self.database = open_database(folder, locations.database)
            blobs = open_blobs(locations.files, folder / "files")
            self.files = FileStore(self.database, blobs, folder, operator.limits.max_file_bytes)
        except OSError as error:
            raise UserError(f"the server's folder {folder} cannot be used: {error.strerror}") from None
        self.keys = KeyStore(self.database)
        self.sessions = SessionStore(self.database, self.keys)
        self.audit = AuditLog(self.database)
        self.models = ModelRegistry(self.database, operator.aliases)

    def create_first_key(self) -> str | None:
        """Create an admin key and return its token, or return None if the server already has a key.

        If several servers start concurrently on one database, only one of them creates the key.
        """
        with self.database.exclusive(FIRST_KEY_LOCK):
            if self.keys.list():
                return None
            key, token = self.keys.create(FIRST_KEY, ["admin"])
            self.audit.append(OPERATOR, "key.create", key.id)
            return token

    @asynccontextmanager
    async def lock_models(self) -> AsyncIterator[None]:
        """Context manager that lets only one API replica at a time start and stop served models.

        Do not cancel a task that waits for this lock, or the lock is never released.
        """
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, self.database.exclusive(MODELS_LOCK))
            yield

    async def run_sweeps(self) -> None:
        """Delete expired files periodically until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.files.sweep)
            except (OSError, DatabaseError) as error:
                trace = None if is_unavailable(error) else error
                _log.error("expired files could not be deleted; trying again in %g s", SWEEP_S, exc_info=trace)
            await asyncio.sleep(SWEEP_S)

    def close(self) -> None:
        self.database.close()
