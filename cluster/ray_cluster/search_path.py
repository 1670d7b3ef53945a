"""The search path of Ray's workers: a user's own `trainer.py` beside the job must not hide our package of that name."""

from __future__ import annotations

from collections.abc import Iterable

from ray.job_config import JobConfig


class _NoFolders(list[str]):
    """A list to which Ray adds the folders that its workers search first."""

    def extend(self, folders: Iterable[str]) -> None:
        """Add none of them: they are the working directory and the folder of the command."""


def job_config() -> JobConfig:
    """The settings of a Ray job whose workers find modules where their own Python finds them, and nowhere else."""
    config = JobConfig()
    config._py_driver_sys_path = _NoFolders()  # Ray has no public setting for it
    return config
