"""Rotation of the master secret, for `agent-rft keys rotate-master`.

1. The new secret becomes the first master secret, and the old one becomes the second. From now on, all processes seal
   with the new secret and can open strings sealed with either one. If the secrets are in a key file, one write replaces
   the file. If they are in environment variables, the operator sets the variables.
2. The jobs are sealed with the new secret, one batch per transaction.
3. The creation of jobs is blocked. If no readable job is sealed with the old secret, the old secret is removed.

The command may be killed at any point. If it is run again, it continues the interrupted rotation.
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
from agent_rft.serve.stores.job_store import block_job_creation
from agent_rft.serve.stores.job_tables import JobRow
from agent_rft.serve.stores.sealed_secrets import (
    NEW_VARIABLE,
    VARIABLE,
    FileSecrets,
    MasterSecret,
    MasterSecrets,
    SecretBox,
    sealed_prefix,
)

BATCH_ROWS = 50


@dataclass(frozen=True, slots=True)
class RotationResult:
    """Result of a rotation.

    `secret_id` is the id of the new secret. `num_sealed` is the number of jobs that were encrypted again. `unreadable`
    has the ids of the jobs that cannot be decrypted.
    """

    secret_id: str
    num_sealed: int
    unreadable: tuple[str, ...]


class MasterSecretRotation:
    """Replacement of the master secret that encrypts the jobs in a database.

    `box` encrypts and decrypts the jobs, and must use the same `secrets`. By default, a new box is created.
    """

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

    def run(self) -> RotationResult:
        """Run a rotation, or finish an interrupted one.

        Raises:
            UserError: The current secret belongs to another server, or the environment does not contain the new secret.
        """
        new, num_sealed = self._begin_or_continue(), 0
        while True:
            num_sealed += self._seal_all(new)
            with self._block_creation() as session:
                left = [(row.id, self._open_spec(row)) for row in self._read_jobs(session, new)]
                if all(text is None for _, text in left):  # else a job was just created with the old secret
                    self._remove_old_secrets(new)
                    return RotationResult(new.id, num_sealed, tuple(job_id for job_id, _ in left))

    def _begin_or_continue(self) -> MasterSecret:
        """Begin or continue a rotation, and return the new secret."""
        with self._block_creation() as session:
            masters = self._secrets.read()
            has_jobs = session.scalar(select(JobRow.number).limit(1)) is not None
            if has_jobs and all(self._open_spec(row) is None for row in self._read_jobs(session)):
                raise UserError(
                    "the key cannot decrypt any stored job, so it is not this server's key. Set --folder to the "
                    f"server's folder, or {VARIABLE} to the server's key."
                )
            if len(masters) == 1 and isinstance(self._secrets, FileSecrets):
                masters = (MasterSecret.generate(), *masters)
                self._secrets.write(masters)
            if len(masters) == 1:
                raise UserError(
                    f"the key is in {VARIABLE}, but {NEW_VARIABLE} is not set. Set {NEW_VARIABLE} to 32 new random "
                    "bytes in URL-safe base64, for this command and for running servers, then repeat this command."
                )
            return masters[0]

    def _seal_all(self, new: MasterSecret) -> int:
        """Encrypt the jobs again with `new`, and return their number. Jobs that cannot be decrypted are skipped."""
        total, after = 0, 0
        while True:
            with self._database.session() as session:
                last, num_sealed = after, 0
                for row in self._read_jobs(session, new, after, self._batch_rows):
                    last, text = row.number, self._open_spec(row)
                    if text is not None:
                        same = JobRow.number == row.number, JobRow.sealed_spec == row.sealed_spec
                        sealed = self._box.sealer("job", row.id).seal(text)
                        session.execute(update(JobRow).where(*same).values(sealed_spec=sealed))
                        num_sealed += 1
            if last == after:
                return total
            total, after = total + num_sealed, last

    def _remove_old_secrets(self, new: MasterSecret) -> None:
        """Remove the old secrets from the key file.

        Secrets in environment variables are not removed. The operator must remove them.
        """
        masters = self._secrets.read()
        if masters[0] != new:
            raise UserError("another command has changed the key. Repeat this command.")
        if isinstance(self._secrets, FileSecrets):
            self._secrets.write((new,))

    def _open_spec(self, row: Any) -> str | None:
        with suppress(UnsealFailed):
            return self._box.sealer("job", row.id).open(row.sealed_spec)
        return None

    def _read_jobs(
        self, session: Session, new: MasterSecret | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[Row[int, str, str]]:
        """Yield (number, id, sealed text) of up to `limit` jobs whose number is greater than `after`.

        If `new` is given, jobs that are already encrypted with `new` are skipped.
        """
        numbers = select(JobRow.number).where(JobRow.number > after).order_by(JobRow.number).limit(limit)
        if new is not None:
            numbers = numbers.where(~JobRow.sealed_spec.startswith(sealed_prefix(new), autoescape=True))
        for number in session.scalars(numbers).all():
            yield session.execute(
                select(JobRow.number, JobRow.id, JobRow.sealed_spec).where(JobRow.number == number)
            ).one()

    @contextmanager
    def _block_creation(self) -> Iterator[Session]:
        with self._database.session() as session:
            block_job_creation(session)
            yield session
