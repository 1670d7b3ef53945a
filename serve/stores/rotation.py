"""Changes the master secret: `agent-rft keys rotate-master` seals every stored secret again.

1. The new secret becomes the first one and the old one the second: from now on all processes seal with the new one and
   open both. For a key file this is one write; secrets in the environment are set by the operator.
2. Jobs are sealed again, some in a transaction.
3. When no job is left, the old one is dropped, while nobody can create a job.

It may be killed at any point: what is done stays done, and the next call goes on with the same new secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from agent_rft.errors import CannotOpen, UserError
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_store import exclusive_creation
from agent_rft.serve.stores.job_tables import JobRow
from agent_rft.serve.stores.secrets import (
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
    """What was done: the id of the secret that seals now, and the jobs that no known secret opens."""

    secret_id: str
    num_sealed: int
    unreadable: tuple[str, ...]


class MasterRotation:
    """Changes the master secret of the jobs in a database; `box` seals and opens with `secrets`."""

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
        """Begin, or go on with what was begun, and end it.

        Raises:
            UserError: The secret is not the server's, or there is no new one in the environment.
        """
        new, num_sealed = self._begin(), 0
        while True:
            num_sealed += self._seal_all(new)
            with self._creation_stopped() as session:
                left = [(row.id, self._opened(row)) for row in self._rows(session, new)]
                if all(text is None for _, text in left):  # else a job was created with the old one meanwhile
                    self._end(new)
                    return Rotated(new.id, num_sealed, tuple(job_id for job_id, _ in left))

    def _begin(self) -> Master:
        """Returns the secret that seals from now on."""
        with self._creation_stopped() as session:
            masters = self._secrets.read()
            has_jobs = session.scalar(select(JobRow.number).limit(1)) is not None
            if has_jobs and all(self._opened(row) is None for row in self._rows(session)):
                raise UserError(
                    "the key opens none of the stored jobs, so it is not this server's: give the server's folder with "
                    f"--folder, or its key in {VARIABLE}"
                )
            if len(masters) == 1 and isinstance(self._secrets, FileSecrets):
                masters = (Master.generated(), *masters)
                self._secrets.write(masters)
            if len(masters) == 1:
                raise UserError(
                    f"the key is in {VARIABLE}: set {NEW_VARIABLE} to 32 new random bytes in URL-safe base64, for a "
                    "server that runs too, then repeat this command"
                )
            return masters[0]

    def _seal_all(self, new: Master) -> int:
        """Seals all jobs that can be opened with `new`; returns their number."""
        total, after = 0, 0
        while True:
            with self._database.session() as session:
                last, num_sealed = after, 0
                for row in self._rows(session, new, after, self._batch_rows):
                    last, text = row.number, self._opened(row)
                    if text is not None:
                        same = JobRow.number == row.number, JobRow.sealed_spec == row.sealed_spec
                        sealed = self._box.sealer("job", row.id).seal(text)
                        session.execute(update(JobRow).where(*same).values(sealed_spec=sealed))
                        num_sealed += 1
            if last == after:
                return total
            total, after = total + num_sealed, last

    def _end(self, new: Master) -> None:
        """Drops the former secrets from a file; those of the environment are the operator's."""
        masters = self._secrets.read()
        if masters[0] != new:
            raise UserError("the key was changed by another command meanwhile; repeat this one")
        if isinstance(self._secrets, FileSecrets):
            self._secrets.write((new,))

    def _opened(self, row: Any) -> str | None:
        with suppress(CannotOpen):
            return self._box.sealer("job", row.id).open(row.sealed_spec)
        return None

    def _rows(
        self, session: Session, new: Master | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[Row[int, str, str]]:
        """Yields number, id and sealed text of the jobs after a number that `new` has not sealed, one by one."""
        wanted = select(JobRow.number).where(JobRow.number > after).order_by(JobRow.number).limit(limit)
        if new is not None:
            wanted = wanted.where(~JobRow.sealed_spec.startswith(head_of(new), autoescape=True))
        for number in session.scalars(wanted).all():
            yield session.execute(
                select(JobRow.number, JobRow.id, JobRow.sealed_spec).where(JobRow.number == number)
            ).one()

    @contextmanager
    def _creation_stopped(self) -> Iterator[Session]:
        with self._database.session() as session:
            exclusive_creation(session)
            yield session
