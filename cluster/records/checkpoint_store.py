"""Storage of checkpoints at any location that fsspec supports, such as `s3://bucket/checkpoints`.

    <run>/owner-000002/step-000005/files-3f9c.../checkpoint/    files of the checkpoint, from one upload
    <run>/owner-000002/step-000005/files-3f9c.../run/           RESUME_FILES of the run, from the same upload
    <run>/owner-000002/step-000005/manifest.json                names the upload and its files, with sizes and digests

A checkpoint is complete when its manifest exists. The manifest is written last and replaced atomically, so a reader
sees the new upload, the previous upload, or no checkpoint. The next upload removes the files of a killed upload.
Only one process writes the checkpoints of a run, see `agent_rft.cluster.records.checkpoint_claims`. Calls block. A few
files are transferred concurrently, in chunks.
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
    CheckpointClaims,
    last_part,
    refuse_newer_format,
    step_number,
)
from agent_rft.errors import RftError, UserError
from agent_rft.rows.durable_write import sync_to_disk
from agent_rft.rows.ownership import current_folder
from agent_rft.trainer.loop.checkpoint import LOOP_STATE_FILE, TRAINING_STATE, finalize_folder, latest_checkpoint
from agent_rft.trainer.loop.journal import Journal

RESUME_FILES = ("job.resolved.json", "journal/starts.json")
"""Files in the run folder that a run needs to resume, in addition to a checkpoint. They are uploaded if they exist."""
SETTING = "checkpoint_store"
FORMAT = 1
"""Version of the manifest format. Increase it when older programs must not read new manifests."""
MAX_CONCURRENT_TRANSFERS = 4
CHUNK_BYTES = 8 << 20
MAX_MANIFEST_BYTES = 16 << 20

S = TypeVar("S")
T = TypeVar("T")


class StoreFailed(RftError):
    """The store failed, or cannot be reached."""


class CheckpointStore:
    """Store with the checkpoints of all runs. Each run has a folder in the store, with the name of its run folder."""

    def __init__(self, url: str) -> None:
        """Open the store at `url`.

        Raises:
            UserError: The URL is invalid or has a password, or no installed library can open it.
        """
        if "://" not in url:
            raise UserError(f"{SETTING}: must be a URL, such as s3://bucket/checkpoints or file:///mnt/checkpoints")
        if urlsplit(url).password is not None:
            raise UserError(
                f"{SETTING}: the URL has a password; remove the password, and set credentials in the environment"
            )
        with _report_failure("open the store"):
            self._files, root = open_location(url, SETTING)
        self._root = root.rstrip("/")
        self._claims = CheckpointClaims(self._files, self._root, SETTING)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make the upload in progress and all later uploads fail."""
        self._stopped.set()

    # -- writing -------------------------------------------------------------------------------------------------------

    def claim(self, run_folder: Path) -> None:
        """Make this process the only one that may write a run's checkpoints; earlier writers then get CheckpointsTaken.

        `put` claims the run if this process has not claimed it before.

        Raises:
            StoreFailed: The store failed.
            UserError: The store does not support conditional writes.
        """
        with _report_failure("reserve the run's checkpoints for this process"):
            self._claims.take_ownership(_run_name(run_folder))

    def put(self, run_folder: Path, checkpoint: Path) -> int:
        """Upload a complete checkpoint of a run; return its size in bytes, or 0 if it was already uploaded.

        After the upload, an earlier upload of the same step is removed.

        Raises:
            StoreFailed: The store failed, or the checkpoint was removed or replaced during the upload.
            CheckpointsTaken: Another process has claimed the run's checkpoints.
        """
        run, upload = _run_name(run_folder), f"files-{secrets.token_hex(8)}"
        with _report_failure("upload a checkpoint"):
            identity = checkpoint.stat().st_ino  # fails before the claim if another process has taken the run folder
            at = self._claims.checkpoint_path(run, self._claims.ensure_claim(run), checkpoint.name)
            names = [str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()]
            if self._is_uploaded(run, checkpoint, names):
                return 0
            files = self._send_files(checkpoint, names, f"{at}/{upload}/checkpoint")
            records = [name for name in RESUME_FILES if (run_folder / name).exists()]
            recorded = self._send_files(run_folder, records, f"{at}/{upload}/run")
            if checkpoint.stat().st_ino != identity:
                raise StoreFailed(f"{checkpoint.name} was replaced during the upload")
            self._write_manifest(at, _Manifest(format=FORMAT, upload=upload, files=files, records=recorded))
            for path in self._claims.list_paths(at):
                if last_part(path) not in (upload, MANIFEST):
                    self._files.rm(path, recursive=True)
        return sum(file.size for file in files)

    def _is_uploaded(self, run: str, checkpoint: Path, names: Sequence[str]) -> bool:
        owner = self._list_complete(run).get(checkpoint.name)
        if owner is None:
            return False
        try:
            manifest = self._read_manifest(self._claims.checkpoint_path(run, owner, checkpoint.name))
        except UserError:  # a damaged upload is replaced
            return False
        digests = {file.name: file.blake2b for file in manifest.files}
        state = hashlib.blake2b((checkpoint / LOOP_STATE_FILE).read_bytes()).hexdigest()
        return digests.keys() == set(names) and digests.get(LOOP_STATE_FILE) == state

    def prune(self, run_folder: Path) -> None:
        """Remove from the store all checkpoints and training states that are no longer in the run folder.

        The newest checkpoint in the store is never removed.

        Raises:
            StoreFailed: The store failed; the next call removes the rest.
            CheckpointsTaken: Another process has claimed the run's checkpoints.
        """
        run = _run_name(run_folder)
        with _report_failure("remove a checkpoint"):
            number = self._claims.ensure_claim(run)
            # Later claims and their checkpoints are ignored: their process may have another run folder.
            owners = [owner for owner in self._claims.list_owners(run) if owner <= number]
            complete = self._claims.find_complete(run, [number])
            newest = next(reversed(complete), None)
            for owner in owners:
                for name in self._claims.list_checkpoints(run, owner):
                    is_complete, at = complete.get(name) == owner, self._claims.checkpoint_path(run, owner, name)
                    if not is_complete:
                        self._remove_checkpoint(run, at)
                    elif name != newest:
                        self._remove_unneeded(run, at, run_folder / "checkpoints" / name)
            for earlier in {*owners, *self._claims.list_claims(run)}:
                if NO_OWNER < earlier < number and not self._claims.list_checkpoints(run, earlier):
                    self._claims.remove(run, earlier)

    def _remove_unneeded(self, run: str, at: str, local: Path) -> None:
        if not local.exists():
            self._remove_checkpoint(run, at)
        elif not (local / TRAINING_STATE).exists():
            self._remove_training_state(run, at)

    def _remove_checkpoint(self, run: str, at: str) -> None:
        self._claims.ensure_claim(run)  # raises if another process has claimed the run since the last removal
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{at}/{MANIFEST}")  # first, so that no reader finds a partial checkpoint
        with suppress(FileNotFoundError):
            self._files.rm(at, recursive=True)

    def _remove_training_state(self, run: str, at: str) -> None:
        manifest = self._read_manifest(at)
        models = [file for file in manifest.files if not file.name.startswith(f"{TRAINING_STATE}/")]
        if len(models) < len(manifest.files):
            self._claims.ensure_claim(run)
            self._write_manifest(at, manifest.model_copy(update={"files": models}))
            self._files.rm(f"{at}/{manifest.upload}/checkpoint/{TRAINING_STATE}", recursive=True)

    def _send_files(self, folder: Path, names: Sequence[str], at: str) -> list[_File]:
        for parent in sorted({str(PurePosixPath(at, name).parent) for name in names}):
            self._files.makedirs(parent, exist_ok=True)
        return _map_concurrently(lambda name: self._send(folder / name, name, f"{at}/{name}"), names)

    def _send(self, source: Path, name: str, target: str) -> _File:
        """Upload a file; the digest is computed from the bytes that were sent."""
        digest, size = hashlib.blake2b(), 0
        with source.open("rb") as local, self._files.open(target, "wb") as remote:
            while chunk := local.read(CHUNK_BYTES):
                if self._stopped.is_set():
                    raise StoreFailed("the upload was stopped")
                digest.update(chunk)
                size += len(chunk)
                remote.write(chunk)
        return _File(name=name, size=size, blake2b=digest.hexdigest())

    def _write_manifest(self, at: str, manifest: _Manifest) -> None:
        temporary = f"{at}/{MANIFEST}.new"
        self._files.pipe_file(temporary, manifest.model_dump_json().encode())
        self._files.mv(temporary, f"{at}/{MANIFEST}")

    # -- reading -------------------------------------------------------------------------------------------------------

    def list_complete(self, run: str) -> list[str]:
        """Return the names of a run's complete checkpoints, oldest first.

        Raises:
            StoreFailed: The store failed.
        """
        with _report_failure("list checkpoints"):
            return list(self._list_complete(run))

    def fetch(self, run_folder: Path) -> list[str]:
        """Download the checkpoints that the run folder lacks, if the store has a newer checkpoint than the folder.

        Returns:
            The names of the downloaded checkpoints; empty if the store has no newer checkpoint.

        Raises:
            StoreFailed: The store failed.
            UserError: A file in the store is damaged or missing; no checkpoint was added to the run folder.
        """
        here, run = current_folder(run_folder), _run_name(run_folder)
        checkpoints = here / "checkpoints"
        with _report_failure("list checkpoints"):
            there = self._list_complete(run)
        latest, newest = latest_checkpoint(checkpoints), next(reversed(there), None)
        if newest is None or (latest is not None and step_number(latest[0].name) >= step_number(newest)):
            return []
        missing = [name for name in there if not (checkpoints / name).exists()]
        for name in missing:
            self._fetch_checkpoint(self._claims.checkpoint_path(run, there[name], name), checkpoints / f"{name}.tmp")
        self._fetch_records(self._claims.checkpoint_path(run, there[newest], newest), here)
        for name in missing:  # after all downloads, newest last: a run must not resume from an older one
            finalize_folder(checkpoints / f"{name}.tmp")
        return missing

    def _fetch_checkpoint(self, at: str, folder: Path) -> None:
        manifest = self._read_manifest(at)
        files = f"{at}/{manifest.upload}/checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        _map_concurrently(
            lambda file: self._receive_file(f"{files}/{file.name}", file, folder / file.name), manifest.files
        )

    def _fetch_records(self, at: str, here: Path) -> None:
        manifest = self._read_manifest(at)
        for file in manifest.records:
            record = here / file.name
            received = record.with_suffix(".tmp")
            self._receive_file(f"{at}/{manifest.upload}/run/{file.name}", file, received)
            received.replace(record)
            sync_to_disk(record.parent)
        Journal(here / "journal").count_restore()

    def _receive_file(self, source: str, file: _File, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _report_failure("read a checkpoint"):
                self._files.get_file(source, str(target))
        except StoreFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise self._damaged_error(source, "is missing") from None
            raise
        if target.stat().st_size != file.size:
            raise self._damaged_error(source, f"has {target.stat().st_size} bytes instead of {file.size}")
        with target.open("rb") as content:
            if hashlib.file_digest(content, hashlib.blake2b).hexdigest() != file.blake2b:
                raise self._damaged_error(source, "does not match its checksum")

    def _read_manifest(self, at: str) -> _Manifest:
        path = f"{at}/{MANIFEST}"
        try:
            with _report_failure("read a manifest"):
                content = self._files.cat_file(path, end=MAX_MANIFEST_BYTES)
            manifest = _Manifest.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise self._damaged_error(path, f"is damaged ({first['msg']})") from None
        refuse_newer_format(manifest.format, FORMAT, self._public_path(path))
        return manifest

    def _damaged_error(self, path: str, what: str) -> UserError:
        """Return the error for a damaged file. The error suggests restoring the file or starting a new run.

        The run cannot resume from an earlier checkpoint, because only the last checkpoint has a training state.
        """
        return UserError(
            f"{self._public_path(path)} in the checkpoint store {what}; restore this file, or start a new run with "
            f"`model` set to an earlier checkpoint",
            public_message="a checkpoint in the operator's checkpoint store is damaged",
        )

    def _list_complete(self, run: str) -> dict[str, int]:
        return self._claims.find_complete(run, self._claims.list_claims(run))

    def _public_path(self, path: str) -> str:
        """Return a path relative to the store's root, because the root may be private."""
        return path.removeprefix(f"{self._root}/")


def _check_path(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or "\0" in name or "\\" in name:
        raise ValueError("the path of a file points outside its folder")
    return name


def _check_record(file: _File) -> _File:
    if file.name not in RESUME_FILES:
        raise ValueError("not a file that a resumed run needs")
    return file


class _File(BaseModel):
    """Uploaded file.

    `name` is a path. In a manifest's `files`, it is relative to the checkpoint. In `records`, it is relative to the run
    folder.
    """

    name: Annotated[str, Field(min_length=1), AfterValidator(_check_path)]
    size: Annotated[int, Field(ge=0)]
    blake2b: str


class _Manifest(BaseModel):
    format: int
    upload: Annotated[str, Field(pattern="^files-[0-9a-f]{16}$")]
    files: list[_File]
    records: list[Annotated[_File, AfterValidator(_check_record)]]


def _run_name(run_folder: Path) -> str:
    return run_folder.resolve().name


def _map_concurrently(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Apply `work` to a few items at a time and return the results. After an error, no more items are started."""
    with ThreadPoolExecutor(MAX_CONCURRENT_TRANSFERS, thread_name_prefix="checkpoint-store") as pool:
        return list(pool.map(work, items))


@contextmanager
def _report_failure(what: str) -> Iterator[None]:
    try:
        yield
    except RftError:
        raise
    except Exception as error:  # each storage library has different error types
        cause = f"{type(error).__name__}: {error}"
        raise StoreFailed(
            f"{SETTING}: cannot {what}: {cause}", public_message="the operator's checkpoint store failed"
        ) from error
