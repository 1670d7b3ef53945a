"""Copies of checkpoints at any location that fsspec supports, such as `s3://bucket/checkpoints`.

    <run>/owner-000002/step-000005/files-3f9c.../model.safetensors   one upload: the checkpoint's files, and RECORDS
    <run>/owner-000002/step-000005/manifest.json    names the upload and its files, with sizes and digests

A checkpoint is complete with its manifest, which is written last and replaced at once: a reader sees all of it, what
was there before, or nothing. What a killed upload left is removed by later ones. One process writes the checkpoints of
a run, see `agent_rft.cluster.records.checkpoint_claims`. Calls block; few files are in flight, and none is held in
memory.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from agent_rft.cluster.records.blobs import open_location
from agent_rft.cluster.records.checkpoint_claims import (
    MANIFEST,
    NO_OWNER,
    STEP,
    CheckpointClaims,
    last_part,
    refuse_newer,
    step_number,
)
from agent_rft.errors import RftError, UserError
from agent_rft.rows.durable import sync_to_disk
from agent_rft.rows.ownership import files_of
from agent_rft.trainer.loop.checkpoint import STATE, TRAINING_STATE, complete, latest_checkpoint
from agent_rft.trainer.loop.journal import Journal

RECORDS = ("job.resolved.json", "journal/starts.json")
"""What a run needs to resume besides a checkpoint, by its path in the run folder, as far as it is there."""
SETTING = "checkpoint_store"
FORMAT = 1
"""The format of manifests. Raise it when older programs must not read them."""
NUM_AT_A_TIME = 4
CHUNK_BYTES = 8 << 20
MAX_MANIFEST_BYTES = 16 << 20

S = TypeVar("S")
T = TypeVar("T")


class StoreFailed(RftError):
    """The store, or the network on the way to it, failed."""


class CheckpointStore:
    """The checkpoints of all runs, each below the name of its run folder."""

    def __init__(self, url: str) -> None:
        """Open the location.

        Raises:
            UserError: It is not a URL, has a password, or no installed library can open it.
        """
        if "://" not in url:
            raise UserError(f"{SETTING}: must be a URL, such as s3://bucket/checkpoints or file:///mnt/checkpoints")
        if urlsplit(url).password is not None:
            raise UserError(f"{SETTING}: the URL has a password; remove it, and set credentials in the environment")
        with _asking("open it"):
            self._files, root = open_location(url, SETTING)
        self._root = root.rstrip("/")
        self._claims = CheckpointClaims(self._files, self._root, SETTING)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the upload in progress, which then fails."""
        self._stopped.set()

    # -- writing -------------------------------------------------------------------------------------------------------

    def claim(self, run_folder: Path) -> None:
        """Become the process that writes a run's checkpoints; an earlier one gets CheckpointsTaken.

        `put` does this if it was not done before.

        Raises:
            StoreFailed: The store failed.
            UserError: The store cannot create a file only if it does not exist.
        """
        with _asking("claim the checkpoints of a run"):
            self._claims.take(_run_name(run_folder))

    def put(self, run_folder: Path, checkpoint: Path) -> int:
        """Upload a complete checkpoint of a run; returns its bytes, or 0 if it is there already.

        An earlier one of the same step stays until then.

        Raises:
            StoreFailed: The store failed, or the checkpoint was removed or replaced meanwhile.
            CheckpointsTaken: Another process writes the run's checkpoints.
        """
        run, upload = _run_name(run_folder), f"files-{secrets.token_hex(8)}"
        with _asking("copy a checkpoint"):
            identity = checkpoint.stat().st_ino  # fails before the claim if another process has taken the run folder
            at = self._claims.at(run, self._claims.own(run), checkpoint.name)
            names = [str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()]
            if self._has(run, checkpoint, names):
                return 0
            files = self._send_all(checkpoint, names, f"{at}/{upload}/checkpoint")
            records = [name for name in RECORDS if (run_folder / name).exists()]
            recorded = self._send_all(run_folder, records, f"{at}/{upload}/run")
            if checkpoint.stat().st_ino != identity:
                raise StoreFailed(f"{checkpoint.name} was written again meanwhile")
            self._write(at, _Manifest(format=FORMAT, upload=upload, files=files, records=recorded))
            for path in self._claims.paths_in(at):
                if last_part(path) not in (upload, MANIFEST):
                    self._files.rm(path, recursive=True)
        return sum(file.size for file in files)

    def _has(self, run: str, checkpoint: Path, names: Sequence[str]) -> bool:
        owner = self._complete(run).get(checkpoint.name)
        if owner is None:
            return False
        try:
            manifest = self._manifest(self._claims.at(run, owner, checkpoint.name))
        except UserError:  # it is damaged, and replaced
            return False
        digests = {file.name: file.blake2b for file in manifest.files}
        state = hashlib.blake2b((checkpoint / STATE).read_bytes()).hexdigest()
        return digests.keys() == set(names) and digests.get(STATE) == state

    def prune(self, run_folder: Path) -> None:
        """Remove what is no longer in the run folder, training state too. The newest complete one stays as it is.

        Raises:
            StoreFailed: The store failed; the rest is removed next time.
            CheckpointsTaken: Another process writes the run's checkpoints.
        """
        run = _run_name(run_folder)
        with _asking("remove a checkpoint"):
            number = self._claims.own(run)
            # Later claims and their checkpoints do not count: they are of a process that may have another run folder.
            owners = [owner for owner in self._claims.owners(run) if owner <= number]
            complete = self._claims.complete(run, [number])
            newest = next(reversed(complete), None)
            for owner in owners:
                for name in self._claims.steps(run, owner):
                    is_complete, at = complete.get(name) == owner, self._claims.at(run, owner, name)
                    if not is_complete:
                        self._remove(run, at)
                    elif name != newest:
                        self._remove_superfluous(run, at, run_folder / "checkpoints" / name)
            for earlier in {*owners, *self._claims.numbers(run)}:
                if NO_OWNER < earlier < number and not self._claims.steps(run, earlier):
                    self._claims.remove(run, earlier)

    def _remove_superfluous(self, run: str, at: str, local: Path) -> None:
        if not local.exists():
            self._remove(run, at)
        elif not (local / TRAINING_STATE).exists():
            self._remove_state(run, at)

    def _remove(self, run: str, at: str) -> None:
        self._claims.own(run)  # another process may have claimed it since the last removal
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{at}/{MANIFEST}")  # first, so that no reader finds half a checkpoint
        with suppress(FileNotFoundError):
            self._files.rm(at, recursive=True)

    def _remove_state(self, run: str, at: str) -> None:
        manifest = self._manifest(at)
        models = [file for file in manifest.files if not file.name.startswith(f"{TRAINING_STATE}/")]
        if len(models) < len(manifest.files):
            self._claims.own(run)
            self._write(at, manifest.model_copy(update={"files": models}))
            self._files.rm(f"{at}/{manifest.upload}/checkpoint/{TRAINING_STATE}", recursive=True)

    def _send_all(self, folder: Path, names: Sequence[str], at: str) -> list[_File]:
        for parent in sorted({str(PurePosixPath(at, name).parent) for name in names}):
            self._files.makedirs(parent, exist_ok=True)
        return _each(lambda name: self._send(folder / name, name, f"{at}/{name}"), names)

    def _send(self, source: Path, name: str, target: str) -> _File:
        """Upload a file; what is hashed is what was read for the upload."""
        digest, size = hashlib.blake2b(), 0
        with source.open("rb") as local, self._files.open(target, "wb") as remote:
            while chunk := local.read(CHUNK_BYTES):
                if self._stopped.is_set():
                    raise StoreFailed("the upload was stopped")
                digest.update(chunk)
                size += len(chunk)
                remote.write(chunk)
        return _File(name=name, size=size, blake2b=digest.hexdigest())

    def _write(self, at: str, manifest: _Manifest) -> None:
        temporary = f"{at}/{MANIFEST}.new"
        self._files.pipe_file(temporary, manifest.model_dump_json().encode())
        self._files.mv(temporary, f"{at}/{MANIFEST}")

    # -- reading -------------------------------------------------------------------------------------------------------

    def complete(self, run: str) -> list[str]:
        """The names of a run's complete checkpoints, oldest first.

        Raises:
            StoreFailed: The store failed.
        """
        with _asking("list checkpoints"):
            return list(self._complete(run))

    def fetch(self, run_folder: Path) -> list[str]:
        """Download a run's checkpoints, if its folder has none as new as the newest here; returns their names.

        Raises:
            StoreFailed: The store failed.
            UserError: A file is damaged or missing; no checkpoint was put in the place of that one.
        """
        here, run = files_of(run_folder), _run_name(run_folder)
        checkpoints = here / "checkpoints"
        with _asking("list checkpoints"):
            there = self._complete(run)
        latest, newest = latest_checkpoint(checkpoints), next(reversed(there), None)
        if newest is None or (latest is not None and step_number(latest[0].name) >= step_number(newest)):
            return []
        missing = [name for name in there if not (checkpoints / name).exists()]
        for name in missing:
            self._fetch(self._claims.at(run, there[name], name), checkpoints / f"{name}.tmp")
        self._fetch_records(self._claims.at(run, there[newest], newest), here)
        for name in missing:  # all at once, the newest last: without it the older ones must not count
            complete(checkpoints / f"{name}.tmp")
        return missing

    def _fetch(self, at: str, folder: Path) -> None:
        manifest = self._manifest(at)
        files = f"{at}/{manifest.upload}/checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        _each(lambda file: self._receive(f"{files}/{file.name}", file, folder / file.name), manifest.files)

    def _fetch_records(self, at: str, here: Path) -> None:
        manifest = self._manifest(at)
        for file in manifest.records:
            record = here / file.name
            received = record.with_suffix(".tmp")
            self._receive(f"{at}/{manifest.upload}/run/{file.name}", file, received)
            received.replace(record)
            sync_to_disk(record.parent)
        Journal(here / "journal").restored()

    def _receive(self, source: str, file: _File, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _asking("read a checkpoint"):
                self._files.get_file(source, str(target))
        except StoreFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise self._damaged(source, "is missing") from None
            raise
        if target.stat().st_size != file.size:
            raise self._damaged(source, f"has {target.stat().st_size} bytes instead of {file.size}")
        with target.open("rb") as content:
            if hashlib.file_digest(content, hashlib.blake2b).hexdigest() != file.blake2b:
                raise self._damaged(source, "has other content than was uploaded")

    def _manifest(self, at: str) -> _Manifest:
        path = f"{at}/{MANIFEST}"
        try:
            with _asking("read a manifest"):
                content = self._files.cat_file(path, end=MAX_MANIFEST_BYTES)
            manifest = _Manifest.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise self._damaged(path, f"is damaged ({first['msg']})") from None
        refuse_newer(manifest.format, FORMAT, self._shown(path))
        return manifest

    def _damaged(self, path: str, what: str) -> UserError:
        """What is wrong with a file, and the remedy; the checkpoint before is used only if somebody says so."""
        shown = self._shown(path)
        run, *folders = shown.split("/")
        to_step = 1 + next(index for index, name in enumerate(folders) if STEP.fullmatch(name))
        step = "/".join([run, *folders[:to_step]])
        return UserError(
            f"{shown} in the checkpoint store {what}; restore it, or remove {step} there to resume from the "
            f"checkpoint before it",
            public="a checkpoint in the operator's checkpoint store is damaged",
        )

    def _complete(self, run: str) -> dict[str, int]:
        return self._claims.complete(run, self._claims.numbers(run))

    def _shown(self, path: str) -> str:
        """A path below the store's own, which may be private."""
        return path.removeprefix(f"{self._root}/")


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or "\0" in name or "\\" in name:
        raise ValueError("a file's name leads out of its folder")
    return name


def _record(file: _File) -> _File:
    if file.name not in RECORDS:
        raise ValueError("not a file that a run folder needs")
    return file


class _File(BaseModel):
    """A file by its path in its folder."""

    name: Annotated[str, Field(min_length=1), AfterValidator(_inside)]
    size: Annotated[int, Field(ge=0)]
    blake2b: str


class _Manifest(BaseModel):
    format: int
    upload: Annotated[str, Field(pattern="^files-[0-9a-f]{16}$")]
    files: list[_File]
    records: list[Annotated[_File, AfterValidator(_record)]]


def _run_name(run_folder: Path) -> str:
    return run_folder.resolve().name


def _each(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """The results of `work`, a few at a time; after the first error no further one begins."""
    with ThreadPoolExecutor(NUM_AT_A_TIME, thread_name_prefix="checkpoint-store") as pool:
        return list(pool.map(work, items))


@contextmanager
def _asking(what: str) -> Iterator[None]:
    try:
        yield
    except RftError:
        raise
    except Exception as error:  # each storage library has errors of its own
        cause = f"{type(error).__name__}: {error}"
        raise StoreFailed(
            f"{SETTING}: cannot {what}: {cause}", public="the operator's checkpoint store failed"
        ) from error
