"""Claims on a run's checkpoints in a store: only the process with the newest claim may write the checkpoints.

    <run>/owner-000002.json          claim of the second process that trained this run
    <run>/owner-000002/step-000005/  checkpoint that the second process wrote
    <run>/step-000005/               checkpoint from a version of agent-rft without claims

A process creates its claim only if no file with this name exists. The claim lists the complete checkpoints of earlier
owners, which the new owner adopts. An earlier owner that was suspended may still finish an upload, but only in its own
folder, and readers ignore uploads that were completed after the newest claim. Claims need no clock, lock or rename.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from agent_rft.errors import RftError, UserError

FORMAT = 1
"""Version of the claim format. Increase it when older programs must not read new claims."""
MAX_CLAIM_BYTES = 16 << 20
MANIFEST = "manifest.json"
"""Name of the file that is written last; a checkpoint with this file is complete."""
NO_OWNER = 0
"""Owner number of checkpoints that an old version of agent-rft wrote. Old versions had no claims."""
STEP = re.compile(r"step-\d{6,12}")
_OWNER = re.compile(r"owner-(\d{6,12})")
_CLAIM = re.compile(r"owner-(\d{6,12})\.json")


class CheckpointsTaken(RftError):
    """Another process has taken over the run's checkpoints. Trying again does not help."""


class CheckpointClaims:
    """Claims of this process and of other processes on the runs in a store.

    The name of a run is the name of its run folder. `files` is an fsspec file system; its errors are raised unchanged.
    """

    def __init__(self, files: Any, root: str, setting: str) -> None:
        self._files = files
        self._root = root
        self._setting = setting
        self._claimed: dict[str, int] = {}

    def take_ownership(self, run: str) -> None:
        """Make this process the owner of a run's checkpoints, and adopt the checkpoints that are already complete.

        Raises:
            UserError: The store does not support conditional writes.
        """
        self._files.makedirs(f"{self._root}/{run}", exist_ok=True)
        claims = self.list_claims(run)
        while True:
            number = max(claims, default=NO_OWNER) + 1
            path, claim = self._claim_path(run, number), _Claim(format=FORMAT, adopted=self.find_complete(run, claims))
            if not self._create(path, claim):
                claims.append(number)  # another process was faster, or the listing was outdated
                continue
            is_unconditional = self._create(path, claim)
            # Earlier owners start no more uploads. Uploads that they finished since the listing must be adopted, too.
            if not is_unconditional and self.find_complete(run, claims) == claim.adopted:
                break
            self._files.rm_file(path)
            if is_unconditional:
                raise self._unsupported_error()
        self._claimed[run] = number

    def ensure_claim(self, run: str) -> int:
        """Return the number of this process's claim on a run; claim the run first if necessary.

        Raises:
            CheckpointsTaken: Another process has a newer claim.
            UserError: The store does not support conditional writes.
        """
        claims = self.list_claims(run)
        if max(claims, default=NO_OWNER) > self._claimed.get(run, math.inf):
            raise CheckpointsTaken(
                f"another process has claimed the checkpoints of {run}; this process stops uploading"
            )
        if self._claimed.get(run) not in claims:
            self.take_ownership(run)
        return self._claimed[run]

    def list_claims(self, run: str) -> list[int]:
        """Return the numbers of all claims on a run, oldest first."""
        return self._list_numbers(run, _CLAIM)

    def list_owners(self, run: str) -> list[int]:
        """Return the numbers of all owners that may have written checkpoints of a run, oldest first."""
        return [NO_OWNER, *self._list_numbers(run, _OWNER)]

    def find_complete(self, run: str, claims: Sequence[int]) -> dict[str, int]:
        """Return the complete checkpoints of a run with the owners that wrote them, oldest first.

        Two kinds of checkpoints are returned: checkpoints that the newest of `claims` adopted, and checkpoints that the
        owner of this newest claim wrote.
        """
        number, adopted = self._read_newest(run, claims)
        candidates = [*adopted.items(), *((name, number) for name in self.list_checkpoints(run, number))]
        found = {
            name: owner
            for name, owner in candidates
            if self._files.exists(f"{self.checkpoint_path(run, owner, name)}/{MANIFEST}")
        }
        return dict(sorted(found.items(), key=lambda item: step_number(item[0])))

    def list_checkpoints(self, run: str, owner: int) -> list[str]:
        """Return the checkpoints that an owner wrote or began to write, oldest first."""
        names = map(last_part, self.list_paths(self._owner_folder(run, owner)))
        return sorted((name for name in names if STEP.fullmatch(name)), key=step_number)

    def remove(self, run: str, number: int) -> None:
        """Remove the claim and the folder of an earlier owner."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._claim_path(run, number))
        with suppress(FileNotFoundError):
            self._files.rm(self._owner_folder(run, number), recursive=True)

    def checkpoint_path(self, run: str, owner: int, checkpoint: str) -> str:
        """Return the path of an owner's checkpoint."""
        return f"{self._owner_folder(run, owner)}/{checkpoint}"

    def list_paths(self, at: str) -> list[str]:
        """Return the paths in a folder; empty if the folder does not exist."""
        self._files.invalidate_cache()  # other processes may have written
        try:
            return [str(path) for path in self._files.ls(at, detail=False)]
        except FileNotFoundError:
            return []

    def _read_newest(self, run: str, claims: Sequence[int]) -> tuple[int, dict[str, int]]:
        """Return the newest of `claims`, and the checkpoints that this claim adopted. Incomplete claims are ignored."""
        for number in sorted(claims, reverse=True):
            path = self._claim_path(run, number)
            try:
                claim = _Claim.model_validate_json(self._files.cat_file(path, end=MAX_CLAIM_BYTES))
            except (FileNotFoundError, ValidationError):
                continue
            refuse_newer_format(claim.format, FORMAT, path.removeprefix(f"{self._root}/"))
            return number, claim.adopted
        return NO_OWNER, {}

    def _create(self, path: str, claim: _Claim) -> bool:
        """Write a new file; return False if a file with this name exists."""
        try:
            with self._files.open(path, "xb") as file:
                file.write(claim.model_dump_json().encode())
        except (NotImplementedError, ValueError) as error:
            raise self._unsupported_error() from error
        except OSError:  # FileExistsError, or an error of an S3-compatible server that does not name the condition
            self._files.invalidate_cache()
            if self._files.exists(path):
                return False
            raise
        return True

    def _unsupported_error(self) -> UserError:
        problem = "the store does not support conditional writes, so two processes could write the same checkpoints"
        fix = "use a store with conditional writes, such as s3://, gs://, az:// or file://"
        return UserError(f"{self._setting}: {problem}; {fix}")

    def _list_numbers(self, run: str, pattern: re.Pattern[str]) -> list[int]:
        found = (pattern.fullmatch(last_part(path)) for path in self.list_paths(f"{self._root}/{run}"))
        return sorted(int(match[1]) for match in found if match)

    def _owner_folder(self, run: str, owner: int) -> str:
        return f"{self._root}/{run}" if owner == NO_OWNER else f"{self._root}/{run}/owner-{owner:06d}"

    def _claim_path(self, run: str, number: int) -> str:
        return f"{self._owner_folder(run, number)}.json"


class _Claim(BaseModel):
    """Claim of an owner on the checkpoints of a run.

    `adopted` contains the checkpoints that were complete before the claim. It maps the name of each checkpoint to the
    owner that wrote the checkpoint.
    """

    format: int
    adopted: dict[Annotated[str, StringConstraints(pattern=rf"^{STEP.pattern}$")], Annotated[int, Field(ge=0)]]


def refuse_newer_format(found: int, known: int, shown: str) -> None:
    """Raise UserError if `found`, a file's format version, is newer than `known`, the newest supported version.

    `shown` is the displayed path of the file.
    """
    if found > known:
        raise UserError(f"{shown} was written by a newer version of agent-rft; resume with that version")


def last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def step_number(name: str) -> int:
    return int(name.removeprefix("step-"))
