"""`keys rotate-master`: every stored secret is sealed again, whenever it is killed, and also while a server works."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from agent_rft.errors import UnsealFailed, UserError
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRow
from agent_rft.serve.stores.sealed_secrets import (
    KEY_FILE,
    FileSecrets,
    FixedSecrets,
    MasterSecret,
    Purpose,
    Sealer,
    SecretBox,
    sealed_prefix,
)
from agent_rft.serve.stores.secret_rotation import MasterSecretRotation, RotationResult
from tests.support.jobs import NEW_JOB

JOBS = 7


class Killed(Exception):
    """The process is gone: nothing below may handle this."""


class Fuse:
    """Raises at the call with a number, and whenever it is called later."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __call__(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed


class DyingBox(SecretBox):
    """A box whose process is killed when it is asked for a sealer, some time after it began."""

    def __init__(self, secrets: FileSecrets | FixedSecrets, fuse: Callable[[], None]) -> None:
        super().__init__(secrets)
        self._fuse = fuse

    def sealer(self, purpose: Purpose, context: str) -> Sealer:
        self._fuse()
        return super().sealer(purpose, context)


@dataclass(frozen=True, slots=True)
class DyingFile(FileSecrets):
    """A key file whose writer is killed before or after a write."""

    fuse: Callable[[], None]

    def write(self, masters: tuple[MasterSecret, ...]) -> None:
        self.fuse()
        super(DyingFile, self).write(masters)
        self.fuse()


class BusyDatabase(Database):
    """A database in which something else happens before one of the transactions."""

    def __init__(self, url: str, moment: int, happens: Callable[[], object]) -> None:
        super().__init__(url)
        self._left, self._happens = moment, happens

    @contextmanager
    def session(self) -> Iterator[Session]:
        if self._left == 0:
            self._happens()
        self._left -= 1
        with super().session() as session:
            yield session


class Server:
    """A database of jobs, the even ones sealed by an older version, and the key file of their secrets."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.store = JobStore(database)
        self.secrets = FileSecrets(folder / KEY_FILE)
        self.box = SecretBox.from_folder(folder, {})
        self.old = self.secrets.read()
        self.ids = [self.create() for _ in range(JOBS)]

    def create(self) -> str:
        def seal(job_id: str) -> str:
            return self.box.sealer("job", job_id).seal(f"headers of {job_id}")

        return self.store.create(NEW_JOB, seal=seal)[0].id

    def check_open(self) -> None:
        """Every job can be read at this moment, by a process that starts now."""
        for job_id in self.ids:
            sealer = SecretBox(self.secrets).sealer("job", job_id)
            assert sealer.open(self.store.get(job_id).sealed_spec) == f"headers of {job_id}"

    def rotate(self, fuse: Callable[[], None] = lambda: None, batch_rows: int = 3) -> RotationResult:
        secrets = DyingFile(self.secrets.path, fuse)
        return MasterSecretRotation(self.database, secrets, DyingBox(secrets, fuse), batch_rows).run()

    def rotate_busy(self, moment: int, happens: Callable[[], object]) -> None:
        busy = BusyDatabase(self.database.url, moment, happens)
        try:
            MasterSecretRotation(busy, self.secrets, batch_rows=3).run()
        finally:
            busy.close()

    def check_done(self) -> None:
        (new,) = self.secrets.read()
        assert new not in self.old and stat.S_IMODE(self.secrets.path.stat().st_mode) == 0o600
        with self.database.session() as session:
            sealed = session.scalars(select(JobRow.sealed_spec)).all()
        assert all(text.startswith(sealed_prefix(new)) for text in sealed)
        for job_id, text in zip(self.ids, sealed, strict=True):
            with pytest.raises(UnsealFailed):
                SecretBox(FixedSecrets(self.old)).sealer("job", job_id).open(text)
        self.check_open()


@pytest.fixture
def server(any_database: Database, tmp_path: Path) -> Server:
    return Server(any_database, tmp_path)


def test_all_jobs_are_sealed_anew_and_the_old_secret_opens_none(server: Server) -> None:
    before = server.secrets.read()
    done = server.rotate()
    assert (done.num_sealed, done.unreadable) == (JOBS, ()) and server.secrets.read() != before
    server.check_done()
    assert server.rotate().secret_id != done.secret_id, "and again"
    server.check_done()


@pytest.mark.parametrize("batch_rows", [1, 3])
def test_it_may_be_killed_at_any_point_and_started_again(server: Server, batch_rows: int) -> None:
    for calls in range(1_000):
        try:
            server.rotate(Fuse(calls), batch_rows)
        except Killed:
            server.check_open()
            continue
        break
    assert calls >= JOBS // batch_rows, "it was killed between all rows"
    server.check_done()


@pytest.mark.parametrize("calls", range(0, 19, 2))
def test_after_one_kill_the_same_new_secret_is_used(server: Server, calls: int) -> None:
    with pytest.raises(Killed):
        server.rotate(Fuse(calls), batch_rows=1)
    begun = server.secrets.read()
    done = server.rotate()
    assert len(begun) == 1 or done.secret_id == begun[0].id
    server.check_done()


def test_what_a_killed_writer_left_beside_the_file_is_replaced(server: Server) -> None:
    (server.secrets.path.parent / "secret.key.new").write_text("half")
    server.rotate()
    server.check_done()
    assert not (server.secrets.path.parent / "secret.key.new").exists()


@pytest.mark.parametrize("moment", range(6))
def test_jobs_that_a_running_server_creates_meanwhile_are_never_lost(server: Server, moment: int) -> None:
    server.rotate_busy(moment, lambda: server.ids.append(server.create()))
    assert len(server.ids) == JOBS + 1
    server.check_done()


@pytest.mark.parametrize("moment", range(6))
def test_of_two_rotations_at_a_time_none_drops_a_secret_that_is_in_use(server: Server, moment: int) -> None:
    with suppress(UserError):
        server.rotate_busy(moment, server.rotate)
    server.check_done()
    server.rotate()
    server.check_done()


def test_a_job_that_no_secret_opens_is_named_and_left_as_it_is(server: Server) -> None:
    lost = server.ids.pop()
    with server.database.session() as session:
        session.execute(update(JobRow).where(JobRow.id == lost).values(sealed_spec="gAAAAlost"))
    done = server.rotate()
    assert done.unreadable == (lost,) and done.num_sealed == JOBS - 1
    assert server.store.get(lost).sealed_spec == "gAAAAlost"
    server.check_open()


def test_a_key_that_is_not_the_servers_is_refused_before_anything_changes(server: Server) -> None:
    server.secrets.write((MasterSecret.generate(),))
    before = server.secrets.path.read_text()
    with pytest.raises(UserError, match="cannot decrypt any stored job"):
        server.rotate()
    assert server.secrets.path.read_text() == before


def test_a_server_without_jobs_gets_a_new_secret(any_database: Database, tmp_path: Path) -> None:
    secrets = FileSecrets(tmp_path / KEY_FILE)
    SecretBox.from_folder(tmp_path, {})
    before = secrets.read()
    assert MasterSecretRotation(any_database, secrets).run().num_sealed == 0
    assert secrets.read() != before and len(secrets.read()) == 1


# -- secrets in the environment ----------------------------------------------------------------------------------------


def test_a_secret_of_the_environment_is_replaced_by_the_new_one_there(server: Server) -> None:
    new = MasterSecret.generate()
    both = FixedSecrets((new, *server.old))
    done = MasterSecretRotation(server.database, both).run()
    assert (done.secret_id, done.num_sealed) == (new.id, JOBS)
    assert MasterSecretRotation(server.database, both).run().num_sealed == 0, "again does nothing"
    for job_id in server.ids:
        sealer = SecretBox(FixedSecrets((new,))).sealer("job", job_id)
        assert sealer.open(server.store.get(job_id).sealed_spec) == f"headers of {job_id}"


def test_without_a_new_secret_in_the_environment_it_says_what_to_set(server: Server) -> None:
    before = [server.store.get(job_id) for job_id in server.ids]
    with pytest.raises(UserError, match=r"is not set\. Set AGENT_RFT_NEW_SECRET_KEY to 32 new random bytes"):
        MasterSecretRotation(server.database, FixedSecrets(server.old)).run()
    assert [server.store.get(job_id) for job_id in server.ids] == before


@pytest.mark.parametrize("moment", range(1, 6))
def test_a_job_that_a_server_seals_with_the_old_secret_meanwhile_is_sealed_anew(server: Server, moment: int) -> None:
    new = MasterSecret.generate()
    server.secrets.write(server.old)  # what the server seals with does not change
    busy = BusyDatabase(server.database.url, moment, lambda: server.ids.append(server.create()))
    done = MasterSecretRotation(busy, FixedSecrets((new, *server.old)), batch_rows=3).run()
    busy.close()
    assert done.num_sealed == JOBS + 1
    for job_id in server.ids:
        sealer = SecretBox(FixedSecrets((new,))).sealer("job", job_id)
        assert sealer.open(server.store.get(job_id).sealed_spec) == f"headers of {job_id}"
