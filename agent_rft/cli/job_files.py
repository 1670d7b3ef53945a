"""Arguments and reading of job files, for the commands that take one."""

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
    from agent_rft.spec.operator.config import Operator


def stripped(value: str | None) -> str | None:
    """Return an option, which may come from the environment, without the white space around it; None if it is empty."""
    return (value or "").strip() or None


JobFile = Annotated[Path, typer.Argument(help="the job, YAML or JSON; ${NAME} is taken from the environment")]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        help="a running Ray cluster, HOST:PORT or auto (default: one of this machine only)",
        envvar="RAY_ADDRESS",
        callback=stripped,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="the operator's configuration (default: agent-rft.yaml here, if it exists)", envvar="AGENT_RFT_CONFIG"
    ),
]
Runs = Annotated[Path, typer.Option(help="folder in which the run gets a folder of its own")]


def read_operator(config: Path | None) -> Operator:
    from agent_rft.spec.operator.config_file import load_operator

    return load_operator(config)


def read_job_file(
    path: Path, operator: Operator, address: str | None, model: str | None = None
) -> tuple[JobSpec, ModelFolder, Operator]:
    """Read and check a job file; this takes a second, because nothing is started or called.

    Args:
        path: The job file.
        operator: The operator's configuration.
        address: The Ray cluster of the command; None if the command starts its own.
        model: Replaces the job's model if it is not None.

    Returns:
        The job, the folder of its model, and `operator` with the endpoints of the job that it may call on this machine.

    Raises:
        InvalidJob: The job has problems; lists all that its file, rows and model folder show.
    """
    from agent_rft.spec.job_file import load_job, read_job

    job, problems = read_job(path)
    if job is None:
        job = load_job(path)  # raises
    from agent_rft.cluster.planning.model_folder import ModelFolder
    from agent_rft.cluster.preflight.job_endpoints import allow_own_endpoints
    from agent_rft.cluster.preflight.static import invalid_job, static_problems

    job = job if model is None else job.model_copy(update={"model": expanduser(model)})
    operator = allow_own_endpoints(operator, job, address)
    folder = ModelFolder.find(job.model)
    if problems := [*problems, *static_problems(job, folder, operator)]:
        with job_lines(path):
            raise invalid_job(problems)
    return job, folder, operator


def given_options(options: Mapping[str, object]) -> list[str]:
    """The options that have a value, as words of a command."""
    return [word for name, value in options.items() if value is not None for word in (name, str(value))]


@contextmanager
def job_lines(job: Path) -> Iterator[None]:
    """Adds the field's line in the file to problems found elsewhere, for example at an endpoint or in the model."""
    from agent_rft.spec.job_file import with_lines

    try:
        yield
    except InvalidJob as error:
        raise InvalidJob(error.message, with_lines(job, error.problems)) from error
