"""Reader of the operator's configuration from YAML or JSON, which reports every error with its field and line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.config_reader import drop_missing_variable_problems, read_source, substitute_variables, validate
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig

DEFAULT_FILE = "agent-rft.yaml"


def find_config_path(path: Path | None, folder: Path = Path()) -> Path | None:
    """Return the path of the file that `load_operator` reads; None: there is no file."""
    if path is None and (folder / DEFAULT_FILE).exists():
        return folder / DEFAULT_FILE
    return path


def load_operator(
    path: Path | None, folder: Path = Path(), environment: Mapping[str, str] = os.environ
) -> OperatorConfig:
    """Read the operator's configuration at `path`.

    If `path` is None, DEFAULT_FILE in `folder` is read. If this file does not exist, the default configuration is
    returned.

    Raises:
        InvalidJob: The file has errors; the exception lists all of them.
    """
    path = find_config_path(path, folder)
    if path is None:
        return DEFAULT_CONFIG
    operator, problems = _read(path, environment)
    if problems or operator is None:
        errors = f"{len(problems)} error{'s' * (len(problems) != 1)}"
        raise InvalidJob(f"{errors} in the operator's configuration", problems)
    return operator


def _read(path: Path, environment: Mapping[str, str]) -> tuple[OperatorConfig | None, list[Problem]]:
    source = read_source(path, "config")
    if isinstance(source, Problem):
        return None, [source]
    if source.raw is None:  # an empty file
        return DEFAULT_CONFIG, []
    if not isinstance(source.raw, dict):
        fix = "write `key: value` lines, such as `allowed_networks: [10.0.0.0/8]`"
        return None, [Problem("config_shape", "config", "must be a mapping of keys to values", fix, source.file)]
    raw, variables, problems = substitute_variables(source, environment)
    operator, found = validate(OperatorConfig, raw, source, variables)
    return operator, source.find_duplicates() + problems + drop_missing_variable_problems(found, variables)
