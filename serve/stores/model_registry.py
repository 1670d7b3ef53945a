"""Registry of the server's models: ids, folders, and the serving settings that come from each model's training.

Base models are aliases that the operator configures; they cannot be deleted. Tuned models and checkpoints are rows of
a table. Model ids are only looked up, never used as paths, so clients cannot access folders that are not registered.
Calls block for milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from os.path import expanduser
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import JSON, String, select
from sqlalchemy.orm import Mapped, mapped_column

from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.errors import UserError
from agent_rft.rows.ownership import strip_owner_folder
from agent_rft.serve.stores.database import Base, Database
from agent_rft.spec.operator.model_names import add_snapshots, find_similar_name, match_model_name

BASE_OWNER = "system"
TUNED_OWNER = "organization"


class UnknownModel(UserError):
    """No model has this id, or it was deleted."""


class ProtectedModel(UserError):
    """The model cannot be deleted, because it is a base model."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """Model that can be deployed or trained.

    `folder` is a local folder or a Hugging Face name, `base` is the id of the base model, and `created_at` is in Unix
    seconds. For a base model, `job_id` is None. `owner` is the id of the key that created the job, or None if unknown.
    """

    id: str
    folder: str
    base: str
    job_id: str | None
    created_at: int
    settings: ServeSettings
    owner: str | None = None

    @property
    def owned_by(self) -> str:
        return BASE_OWNER if self.job_id is None else TUNED_OWNER


class ModelCatalog(Protocol):
    """Protocol for finding models by id; ModelRegistry implements it."""

    def resolve(self, model_id: str) -> ModelRecord:
        """Return the model with this id.

        Raises:
            UserError: The model does not exist.
        """


class _ModelRow(Base):
    __tablename__ = "models"

    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    folder: Mapped[str]
    base: Mapped[str]
    job_id: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[int]
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    owner: Mapped[str | None] = mapped_column(String(64))

    def record(self) -> ModelRecord:
        settings = ServeSettings.from_stored(self.settings)
        return ModelRecord(self.id, self.folder, self.base, self.job_id, self.created_at, settings, self.owner)


class ModelRegistry:
    """Registry of all models of a server. `aliases` maps the ids of base models to a folder or Hugging Face name.

    An alias also matches requests for its dated names: the alias `gpt-5` matches `gpt-5-2025-08-07`.
    """

    def __init__(self, database: Database, aliases: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._database = database
        # Absolute paths, because drivers and engines run in other working directories.
        places = {name: expanduser(at) for name, at in aliases.items()}
        self._aliases = {
            name: str(strip_owner_folder(Path(at).resolve())) if Path(at).is_dir() else at
            for name, at in places.items()
        }
        self._clock = clock

    def add(
        self,
        model_id: str,
        folder: Path | str,
        base: str,
        job_id: str,
        settings: ServeSettings | None = None,
        owner: str | None = None,
    ) -> ModelRecord:
        """Register a tuned model or a checkpoint. If the same job has already registered the id, the model is replaced.

        Raises:
            ValueError: The id belongs to a base model or to another job.
        """
        if match_model_name(model_id, self._aliases):
            raise ValueError(f"{model_id} is the id of a base model")
        with self._database.session() as session:
            row = session.get(_ModelRow, model_id)
            if row is None:
                row = _ModelRow(id=model_id, job_id=job_id, created_at=int(self._clock()), owner=owner)
                session.add(row)
            elif row.job_id != job_id:
                raise ValueError(f"{model_id} is a model of the job {row.job_id}")
            row.folder, row.base, row.settings = str(folder), base, asdict(settings or ServeSettings())
            return row.record()

    def resolve(self, model_id: str) -> ModelRecord:
        """Return the model with this id.

        Raises:
            UnknownModel: No model has this id.
        """
        if match_model_name(model_id, self._aliases):
            return self._base_model(model_id)
        with self._database.session() as session:
            row = session.get(_ModelRow, model_id)
            if row is None:
                raise self._unknown_model_error(model_id)
            return row.record()

    def list(self) -> list[ModelRecord]:
        """Return a record for each name of a base model, then the other models from newest to oldest."""
        with self._database.session() as session:
            rows = session.scalars(select(_ModelRow).order_by(_ModelRow.created_at.desc(), _ModelRow.id.desc())).all()
            return [self._base_model(name) for name in add_snapshots(self._aliases)] + [row.record() for row in rows]

    def delete(self, model_id: str) -> None:
        """Delete the entry of a tuned model or a checkpoint. The folder is kept, because the job may resume from it.

        Raises:
            UnknownModel: No model has this id.
            ProtectedModel: The model is a base model.
        """
        if match_model_name(model_id, self._aliases):
            raise ProtectedModel(f"The model '{model_id}' is a base model of this server and cannot be deleted.")
        with self._database.session() as session:
            row = session.get(_ModelRow, model_id)
            if row is None:
                raise self._unknown_model_error(model_id)
            session.delete(row)

    def _base_model(self, name: str) -> ModelRecord:
        """Return the base model that `name` refers to: an alias, or an alias with a date. The record's id is `name`."""
        folder = self._aliases[match_model_name(name, self._aliases) or name]
        config = Path(folder) / "config.json"
        created = int(config.stat().st_mtime) if config.is_file() else 0  # unknown for a Hugging Face name
        return ModelRecord(name, folder, name, None, created, ServeSettings())

    def _unknown_model_error(self, model_id: str) -> UnknownModel:
        near = find_similar_name(model_id, self._aliases)
        hint = f"did you mean '{near}'? " if near else ""
        problem = f"The model '{model_id}' does not exist"
        fix = f"{hint}GET /v1/models lists all models; the operator can add models under `aliases` in agent-rft.yaml"
        return UnknownModel(f"{problem}: {fix}.", problem=problem, fix=fix)
