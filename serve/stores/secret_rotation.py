"""Rotation of the master secret: `agent-rft keys rotate-master` seals every stored secret again.

1. The new secret becomes the first one and the old secret the second. From now on all processes seal with the new
   secret and can open with both. A key file is replaced by one write; the operator sets secrets in the environment.
2. Jobs are sealed again, a batch per transaction.
3. When all jobs use the new secret, the old secret is removed, while the creation of jobs is blocked.

The command may be killed at any point: finished batches stay sealed, and the next call continues with the same new
secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from agent_rft.errors import UnsealFailed, UserError
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_store import exclusive_creation
from agent_rft.serve.stores.job_tables import JobRow
from agent_rft.serve.stores.sealed_secrets import (
    NEW_VARIABLE,
    VARIABLE,
    FileSecrets,
    Master,
    MasterSecrets,
    SecretBox,
    head_of,
)

BATCH_ROWS = 50


@dataclass(frozen=True, slots=True)
class Rotated:
    """Result of a rotation: id of the new secret, number of jobs sealed again, and jobs that no known secret opens."""

    secret_id: str
    num_sealed: int
    unreadable: tuple[str, ...]


class MasterRotation:
    """Rotation of the master secret of the jobs in a database; `box` seals and opens with `secrets`."""

    def __init__(
        self,
        database: Database,
        secrets: MasterSecrets,
        box: SecretBox | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self._database = database
        self._secrets = secrets
        self._box = box or SecretBox(secrets)
        self._batch_rows = batch_rows

    def run(self) -> Rotated:
        """Run a rotation, or finish an interrupted one.

        Raises:
            UserError: The secret belongs to another server, or the environment has no new secret.
        """
        new, num_sealed = self._begin(), 0
        while True:
            num_sealed += self._seal_all(new)
            with self._block_creation() as session:
                left = [(row.id, self._open_spec(row)) for row in self._rows(session, new)]
                if all(text is None for _, text in left):  # else a job was just created with the old secret
                    self._end(new)
                    return Rotated(new.id, num_sealed, tuple(job_id for job_id, _ in left))

    def _begin(self) -> Master:
        """Return the secret that seals from now on."""
        with self._block_creation() as session:
            masters = self._secrets.read()
            has_jobs = session.scalar(select(JobRow.number).limit(1)) is not None
            if has_jobs and all(self._open_spec(row) is None for row in self._rows(session)):
                raise UserError(
                    "the key opens none of the stored jobs, so it is not this server's key. Give the server's folder "
                    f"with --folder, or set its key in {VARIABLE}."
                )
            if len(masters) == 1 and isinstance(self._secrets, FileSecrets):
                masters = (Master.generated(), *masters)
                self._secrets.write(masters)
            if len(masters) == 1:
                raise UserError(
                    f"the key is in {VARIABLE}, but {NEW_VARIABLE} is not set. Set it to 32 new random bytes in "
                    "URL-safe base64, for this command and for running servers, then repeat this command."
                )
            return masters[0]

    def _seal_all(self, new: Master) -> int:
        """Seal every job that can be opened again with `new`, and return their number."""
        total, after = 0, 0
        while True:
            with self._database.session() as session:
                last, num_sealed = after, 0
                for row in self._rows(session, new, after, self._batch_rows):
                    last, text = row.number, self._open_spec(row)
                    if text is not None:
                        same = JobRow.number == row.number, JobRow.sealed_spec == row.sealed_spec
                        sealed = self._box.sealer("job", row.id).seal(text)
                        session.execute(update(JobRow).where(*same).values(sealed_spec=sealed))
                        num_sealed += 1
            if last == after:
                return total
            total, after = total + num_sealed, last

    def _end(self, new: Master) -> None:
        """Remove the old secrets from a key file; the operator removes secrets from the environment."""
        masters = self._secrets.read()
        if masters[0] != new:
            raise UserError("another command has changed the key. Repeat this command.")
        if isinstance(self._secrets, FileSecrets):
            self._secrets.write((new,))

    def _open_spec(self, row: Any) -> str | None:
        with suppress(UnsealFailed):
            return self._box.sealer("job", row.id).open(row.sealed_spec)
        return None

    def _rows(
        self, session: Session, new: Master | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[Row[int, str, str]]:
        """Yield number, id and sealed text of each job after the number `after` that is not sealed with `new`."""
        numbers = select(JobRow.number).where(JobRow.number > after).order_by(JobRow.number).limit(limit)
        if new is not None:
            numbers = numbers.where(~JobRow.sealed_spec.startswith(head_of(new), autoescape=True))
        for number in session.scalars(numbers).all():
            yield session.execute(
                select(JobRow.number, JobRow.id, JobRow.sealed_spec).where(JobRow.number == number)
            ).one()

    @contextmanager
    def _block_creation(self) -> Iterator[Session]:
        with self._database.session() as session:
            exclusive_creation(session)
            yield session
