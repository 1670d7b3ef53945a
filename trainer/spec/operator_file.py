"""Operator's files: YAML or JSON -> Operator, with every mistake named by its field and line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainer.errors import InvalidJob, Problem
from trainer.spec.operator import NOTHING_ALLOWED, Operator
from trainer.spec.reader import fill_in, read_source, validate

DEFAULT_FILE = "agent-rft.yaml"


def config_path(path: Path | None, folder: Path = Path()) -> Path | None:
    """The file that `load_operator` reads; None where there is none."""
    if path is None and (folder / DEFAULT_FILE).exists():
        return folder / DEFAULT_FILE
    return path


def load_operator(path: Path | None, folder: Path = Path(), environment: Mapping[str, str] = os.environ) -> Operator:
    """The configuration at `path`; where none is given, that of the file DEFAULT_FILE in `folder`, if there is one.

    Raises:
        InvalidJob: with all problems of the file.
    """
    path = config_path(path, folder)
    if path is None:
        return NOTHING_ALLOWED
    operator, problems = _read(path, environment)
    if problems or operator is None:
        mistakes = f"{len(problems)} mistake{'s' * (len(problems) != 1)}"
        raise InvalidJob(f"{mistakes} in the operator's configuration", problems)
    return operator


def _read(path: Path, environment: Mapping[str, str]) -> tuple[Operator | None, list[Problem]]:
    source = read_source(path, "config")
    if isinstance(source, Problem):
        return None, [source]
    if source.raw is None:  # an empty file
        return NOTHING_ALLOWED, []
    if not isinstance(source.raw, dict):
        remedy = "start with `allowed_networks: ...`"
        return None, [Problem("config_shape", "config", "is no mapping of keys to values", remedy, source.file)]
    raw, variables, problems = fill_in(source, environment)
    operator, found = validate(Operator, raw, source, variables)
    return operator, source.duplicates() + problems + [problem for _, problem in found]
