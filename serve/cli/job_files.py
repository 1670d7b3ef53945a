"""What the commands share that take a job file: their arguments, and how the file is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.errors import InvalidJob

if TYPE_CHECKING:
    from trainer.spec.job import JobSpec
    from trainer.spec.operator.config import Operator

JobFile = Annotated[Path, typer.Argument(help="the job, YAML or JSON; ${NAME} is taken from the environment")]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        help="a running Ray cluster, HOST:PORT or auto (default: one of this machine only)", envvar="RAY_ADDRESS"
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
    from trainer.spec.operator.config_file import load_operator

    return load_operator(config)


def read_job_file(path: Path, operator: Operator, model: str | None = None) -> JobSpec:
    """The job of a file, with `model` in place of its own. What its form and its files show is found in a second."""
    from trainer.spec.job_file import load_job, read_job

    job, problems = read_job(path)
    if job is None:
        return load_job(path)  # raises
    from cluster.preflight.static import invalid_job, static_problems

    job = job if model is None else job.model_copy(update={"model": model})
    if problems := [*problems, *static_problems(job, operator)]:
        with job_lines(path):
            raise invalid_job(problems)
    return job


def given_options(options: Mapping[str, object]) -> list[str]:
    """The options that have a value, as words of a command."""
    return [word for name, value in options.items() if value is not None for word in (name, str(value))]


@contextmanager
def job_lines(job: Path) -> Iterator[None]:
    """Adds the field's line in the file to problems found elsewhere, for example at an endpoint or in the model."""
    from trainer.spec.job_file import with_lines

    try:
        yield
    except InvalidJob as error:
        raise InvalidJob(error.message, with_lines(job, error.problems)) from error
