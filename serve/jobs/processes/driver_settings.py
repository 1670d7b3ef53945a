"""The settings that a server passes to its drivers, which are separate processes, possibly on other nodes.

They are written to a file that only the server's user can read, because command lines are visible to everyone and the
database URL may contain a password. The folder must have the same path on every node that runs drivers.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.blobs import open_blobs
from agent_rft.errors import CannotOpen
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRecord
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.serve.stores.secrets import SecretBox
from agent_rft.spec.job import FILES, JobSpec
from agent_rft.spec.kept import without_todays_bounds
from agent_rft.spec.keys import variable
from agent_rft.spec.operator.config_file import load_operator

SETTINGS_FILE = "driver.json"
RESULT_PURPOSE = "fine-tune-results"


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """What a driver needs to open the server's state and connect to its cluster.

    Attributes:
        folder: The server's folder.
        database: URL of the database.
        files: An fsspec URL; None means the subfolder `files`.
        config: Path of the operator's configuration file.
        organization: Part of the ids of tuned models.
        address: The Ray cluster, used if Ray does not set RAY_ADDRESS; None starts a local one.
    """

    folder: str
    database: str
    files: str | None = None
    config: str | None = None
    organization: str = "local"
    address: str | None = None

    @property
    def runs(self) -> Path:
        return Path(self.folder) / "runs"

    def ray_address(self) -> str | None:
        """The cluster's address; Ray passes it to its jobs as an environment variable."""
        return variable(os.environ, "RAY_ADDRESS") or self.address

    def write(self) -> Path:
        """Write the settings to a file in the server's folder, replacing it atomically; returns its path."""
        path = Path(self.folder) / SETTINGS_FILE
        temporary = path.with_suffix(f".{secrets.token_hex(8)}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
        os.replace(temporary, path)
        return path

    @classmethod
    def read(cls, path: Path) -> DriverSettings:
        values: dict[str, Any] = json.loads(path.read_text())
        return cls(**values)


class Server:
    """The server's state, opened by a driver."""

    def __init__(self, settings: DriverSettings) -> None:
        folder = Path(settings.folder)
        self.settings = settings
        self.operator = load_operator(None if settings.config is None else Path(settings.config), folder)
        self.database = Database(settings.database)
        self.store = JobStore(self.database)
        self.files = FileStore(self.database, open_blobs(settings.files, folder / "files"), folder)
        self.registry = ModelRegistry(self.database, self.operator.aliases)
        self._box = SecretBox.of_folder(folder)

    def spec(self, record: JobRecord) -> JobSpec:
        """The job's decrypted specification, with the ids of its files replaced by paths.

        Raises:
            UserError: A file no longer exists, the secrets were encrypted with another key, or the job is of a form
                that this version cannot read.
        """
        return self.with_paths(without_todays_bounds(json.loads(self._opened(record)), "the job")[0])

    def with_paths(self, spec: JobSpec) -> JobSpec:
        """The specification with the ids of its files replaced by paths.

        Raises:
            UserError: A file no longer exists.
        """
        ids = {name: getattr(spec, name) for name in FILES}
        return spec.model_copy(update={name: str(self.files.path(id)) for name, id in ids.items() if id is not None})

    def _opened(self, record: JobRecord) -> str:
        sealer = self._box.sealer("job", record.id)
        try:
            return sealer.open(record.sealed_spec)
        except CannotOpen:  # it may have been sealed again since the record was read
            return sealer.open(self.store.get(record.id).sealed_spec)

    def names(self, record: JobRecord) -> dict[str, str]:
        """What clients of a job call what is a path here, for messages."""
        run = {str(self.settings.runs / record.id): "the run"}
        return run | self.names_in(self.spec(record), record.model, {name: getattr(record, name) for name in FILES})

    def names_in(self, spec: JobSpec, model: str, ids: Mapping[str, str | None]) -> dict[str, str]:
        """What clients call the paths of a specification: the model by its id, and the files by `ids`."""
        files = {path: id for name in FILES if (path := getattr(spec, name)) and (id := ids[name])}
        models = {spec.model: model} if spec.model.startswith("/") else {}
        return models | files | {self.settings.folder: "the server's folder"}

    def keep_result(self, filename: str, content: bytes, owner: str) -> str:
        """Store a result file, which belongs to the job's owner; returns its id."""

        async def stream() -> AsyncIterator[bytes]:
            yield content

        return asyncio.run(self.files.create(stream(), filename, RESULT_PURPOSE, owner=owner)).id

    def close(self) -> None:
        self.database.close()
