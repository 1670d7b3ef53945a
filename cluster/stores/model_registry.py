"""Which model ids exist, and how each is served: as it was trained. Base models are the operator's aliases and cannot
be deleted; tuned models and checkpoints are rows of a table.

An id is looked up, never taken for a path: a client reaches no folder that nobody gave a name. Calls block for
milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, String, select
from sqlalchemy.orm import Mapped, mapped_column

from cluster.stores.database import Base, Database
from trainer.errors import UserError
from trainer.spec.serving import ServeSettings

BASE_OWNER = "system"
TUNED_OWNER = "organization"


class UnknownModel(UserError):
    """There is no model of this id, or no longer."""


class KeptModel(UserError):
    """The model may not be deleted."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """`folder` is a folder or a Hugging Face name; `base` the id of the model that training began with; `created_at`
    in seconds since 1970. A base model has no `job_id`.
    """

    id: str
    folder: str
    base: str
    job_id: str | None
    created_at: int
    settings: ServeSettings

    @property
    def owned_by(self) -> str:
        return BASE_OWNER if self.job_id is None else TUNED_OWNER


class _ModelRow(Base):
    __tablename__ = "models"

    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    folder: Mapped[str]
    base: Mapped[str]
    job_id: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[int]
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)

    def record(self) -> ModelRecord:
        settings = ServeSettings(**self.settings)
        return ModelRecord(self.id, self.folder, self.base, self.job_id, self.created_at, settings)


class ModelRegistry:
    """`aliases`: the operator's names of base models -> folder or Hugging Face name."""

    def __init__(self, database: Database, aliases: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._database = database
        # Whole paths: drivers and engines are started elsewhere.
        self._aliases = {name: str(Path(at).resolve()) if Path(at).is_dir() else at for name, at in aliases.items()}
        self._clock = clock

    def add(
        self, model_id: str, folder: Path | str, base: str, job_id: str, settings: ServeSettings | None = None
    ) -> ModelRecord:
        """Make a tuned model or a checkpoint known. A job that was resumed may say the same again.

        Raises:
            ValueError: the id is a base model's or another job's.
        """
        if model_id in self._aliases:
            raise ValueError(f"{model_id} is the name of a base model")
        with self._database.session() as session:
            row = session.get(_ModelRow, model_id)
            if row is None:
                row = _ModelRow(id=model_id, job_id=job_id, created_at=int(self._clock()))
                session.add(row)
            elif row.job_id != job_id:
                raise ValueError(f"{model_id} is a model of {row.job_id}")
            row.folder, row.base, row.settings = str(folder), base, asdict(settings or ServeSettings())
            return row.record()

    def resolve(self, model_id: str) -> ModelRecord:
        """Raises:
        UnknownModel: there is none of this id.
        """
        if model_id in self._aliases:
            return self._base_model(model_id)
        with self._database.session() as session:
            row = session.get(_ModelRow, model_id)
            if row is None:
                raise UnknownModel(f"The model '{model_id}' does not exist.")
            return row.record()

    def list(self) -> list[ModelRecord]:
        """All models: those of the operator, then the tuned ones, newest first."""
        with self._database.session() as session:
            rows = session.scalars(select(_ModelRow).order_by(_ModelRow.created_at.desc(), _ModelRow.id.desc())).all()
            return [self._base_model(name) for name in self._aliases] + [row.record() for row in rows]

    def delete(self, model_id: str) -> None:
        """Forget a tuned model. Its folder stays: it is also the checkpoint that its job may go on from.

        Raises:
            UnknownModel: there is none of this id.
            KeptModel: it is a base model.
        """
        if model_id in self._aliases:
            raise KeptModel(f"The model '{model_id}' is a base model of this server and cannot be deleted.")
        with self._database.session() as session:
            row = session.get(_ModelRow, model_id)
            if row is None:
                raise UnknownModel(f"The model '{model_id}' does not exist.")
            session.delete(row)

    def _base_model(self, name: str) -> ModelRecord:
        folder = self._aliases[name]
        config = Path(folder) / "config.json"
        created = int(config.stat().st_mtime) if config.is_file() else 0  # in the cache of Hugging Face: nobody knows
        return ModelRecord(name, folder, name, None, created, ServeSettings())
