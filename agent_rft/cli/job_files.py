"""Shared arguments of the commands that take a job file, and functions that read the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_rft.errors import InvalidJob

if TYPE_CHECKING:
    from agent_rft.cluster.planning.model_folder import ModelFolder
    from agent_rft.spec.job import JobSpec
    from agent_rft.spec.operator.operator_config import OperatorConfig


def strip_option(value: str | None) -> str | None:
    """Return the value of an option or variable without surrounding white space; None if the value is empty."""
    return (value or "").strip() or None


JobFile = Annotated[
    Path, typer.Argument(help="YAML or JSON file of the job; ${NAME} is replaced by an environment variable")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        help="address of a running Ray cluster: HOST:PORT or auto (default: start a cluster on this machine)",
        envvar="RAY_ADDRESS",
        callback=strip_option,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(help="operator's configuration (default: ./agent-rft.yaml, if it exists)", envvar="AGENT_RFT_CONFIG"),
]
Runs = Annotated[Path, typer.Option(help="folder in which to create the run folder")]


def read_operator(config: Path | None) -> OperatorConfig:
    from agent_rft.spec.operator.operator_file import load_operator

    return load_operator(config)


def read_job_file(
    path: Path, operator: OperatorConfig, address: str | None, model: str | None = None
) -> tuple[JobSpec, ModelFolder, OperatorConfig]:
    """Read a job file and check it without starting processes or calling endpoints. This takes about a second.

    Args:
        path: The job file.
        operator: The operator's configuration.
        address: Address of the command's Ray cluster; None if the command starts a cluster.
        model: Model to use instead of the model in the job file; None to use the model in the job file.

    Returns:
        The job, its model folder, and the operator's configuration. The returned configuration may also allow access
        to the job's local endpoints (see `allow_local_endpoints`).

    Raises:
        InvalidJob: The job file, rows or model folder have problems; the error lists all of them.
    """
    from agent_rft.spec.job_file import load_job, read_job

    job, problems = read_job(path)
    if job is None:
        job = load_job(path)  # raises
    from agent_rft.cluster.checks.local_endpoints import allow_local_endpoints
    from agent_rft.cluster.checks.offline_checks import check_offline, make_invalid_job
    from agent_rft.cluster.planning.model_folder import ModelFolder

    job = job if model is None else job.model_copy(update={"model": expanduser(model)})
    operator = allow_local_endpoints(operator, job, address)
    folder = ModelFolder.find(job.model)
    if problems := [*problems, *check_offline(job, folder, operator)]:
        with add_line_numbers(path):
            raise make_invalid_job(problems)
    return job, folder, operator


def to_cli_arguments(options: Mapping[str, object]) -> list[str]:
    """Return the options that are not None as command-line arguments, such as `["--samples", "8"]`."""
    return [word for name, value in options.items() if value is not None for word in (name, str(value))]


@contextmanager
def add_line_numbers(job: Path) -> Iterator[None]:
    """Context manager that adds line numbers of the job file to the problems of an `InvalidJob` raised in its block.

    Checks that do not read the file, such as checks of endpoints or the model, report problems without line numbers.
    """
    from agent_rft.spec.job_file import add_lines

    try:
        yield
    except InvalidJob as error:
        raise InvalidJob(error.message, add_lines(job, error.problems)) from error
