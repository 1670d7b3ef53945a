"""Settings that a server passes to its drivers. Drivers are separate processes, possibly on other nodes.

The settings are written to a file that only the server's user can read. Command lines would be visible to all users,
and the database URL may contain a password. The server's folder must have the same path on every node that runs
drivers.
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
from agent_rft.errors import UnsealFailed
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.file_store import FileStore
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRecord
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.serve.stores.sealed_secrets import SecretBox
from agent_rft.spec.api_keys import read_variable
from agent_rft.spec.job import FILES, JobSpec
from agent_rft.spec.legacy_job import load_legacy_job
from agent_rft.spec.operator.operator_file import load_operator

SETTINGS_FILE = "driver.json"
RESULT_PURPOSE = "fine-tune-results"


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Settings that a driver needs to open the server's state and connect to its cluster.

    Attributes:
        folder: The server's folder.
        database: URL of the database.
        files: Folder of the files, as an fsspec URL; None means the subfolder `files`.
        config: Path of the operator's configuration file.
        organization: Name of the organization in the ids of tuned models.
        address: Address of the Ray cluster, used if RAY_ADDRESS is not set. None starts a local cluster.
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
        """Return the address of the Ray cluster: RAY_ADDRESS, which Ray sets for its jobs, or else `address`."""
        return read_variable(os.environ, "RAY_ADDRESS") or self.address

    def write(self) -> Path:
        """Atomically write the settings to a file in the server's folder, and return its path."""
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


class ServerAccess:
    """Server state that a driver or a check uses: operator configuration, stores and secrets."""

    def __init__(self, settings: DriverSettings) -> None:
        folder = Path(settings.folder)
        self.settings = settings
        self.operator = load_operator(None if settings.config is None else Path(settings.config), folder)
        self.database = Database(settings.database)
        self.store = JobStore(self.database)
        self.files = FileStore(self.database, open_blobs(settings.files, folder / "files"), folder)
        self.registry = ModelRegistry(self.database, self.operator.aliases)
        self._box = SecretBox.from_folder(folder)

    def open_spec(self, record: JobRecord) -> JobSpec:
        """Return the job's specification, with decrypted secrets and with file ids replaced by paths.

        Raises:
            UserError: A file no longer exists, the secrets were encrypted with another key, or this version cannot
                read the job's schema.
        """
        return self.with_paths(load_legacy_job(json.loads(self._open_spec(record)), "the job")[0])

    def with_paths(self, spec: JobSpec) -> JobSpec:
        """Return the specification with file ids replaced by paths.

        Raises:
            UserError: A file no longer exists.
        """
        ids = {name: getattr(spec, name) for name in FILES}
        return spec.model_copy(update={name: str(self.files.path(id)) for name, id in ids.items() if id is not None})

    def _open_spec(self, record: JobRecord) -> str:
        sealer = self._box.sealer("job", record.id)
        try:
            return sealer.open(record.sealed_spec)
        except UnsealFailed:  # a key rotation may have sealed the job again since the record was read
            return sealer.open(self.store.get(record.id).sealed_spec)

    def client_names(self, record: JobRecord) -> dict[str, str]:
        """Return a mapping from the paths of a job to the names that clients see instead."""
        run = {str(self.settings.runs / record.id): "the run"}
        return run | self.client_names_in(
            self.open_spec(record), record.model, {name: getattr(record, name) for name in FILES}
        )

    def client_names_in(self, spec: JobSpec, model: str, ids: Mapping[str, str | None]) -> dict[str, str]:
        """Return a mapping from the paths in `spec` to the names that clients see instead.

        `model` is the id of the model. `ids` contains the file ids by field name.
        """
        files = {path: id for name in FILES if (path := getattr(spec, name)) and (id := ids[name])}
        models = {spec.model: model} if spec.model.startswith("/") else {}
        return models | files | {self.settings.folder: "the server's folder"}

    def store_result(self, filename: str, content: bytes, owner: str, *, owner_only: bool = False) -> str:
        """Store a result file that belongs to the job's owner, and return its id.

        With `owner_only`, other keys cannot see the file.
        """

        async def read_content() -> AsyncIterator[bytes]:
            yield content

        return asyncio.run(
            self.files.create(read_content(), filename, RESULT_PURPOSE, owner=owner, owner_only=owner_only)
        ).id

    def close(self) -> None:
        self.database.close()
