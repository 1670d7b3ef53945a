"""Check of a job request before the job is created: checks files, model, tools and graders, but calls no endpoint.

    python -m agent_rft.serve.jobs.processes.request_check --settings FILE --check OUT < DRAFT

The check runs in a separate process, like the check of a created job, because rows and schemas are user input.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_rft.actors.runtime.process_setup import limit_process
from agent_rft.cluster.checks.limit_checks import check_row_limits
from agent_rft.cluster.checks.offline_checks import check_offline, make_invalid_job
from agent_rft.cluster.planning.model_folder import ModelFolder
from agent_rft.errors import Problem
from agent_rft.serve.jobs.client_errors import hide_details
from agent_rft.serve.jobs.processes.check_process import CPU_S, MEMORY_BYTES, OUT_OF_MEMORY
from agent_rft.serve.jobs.processes.driver_settings import DriverSettings, ServerAccess
from agent_rft.spec.job import FILES, JobSpec


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Input of a request check: a valid request for which no job exists yet.

    `spec` is the job specification as JSON, with its secrets. `model` is the model id in the request. `samples` is the
    number of rollouts per row if the request is for a readiness check, or None if it is for training.
    """

    spec: str
    model: str
    samples: int | None = None

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def check(server: ServerAccess, draft: CheckRequest) -> list[Problem]:
    """Return the problems with a request, as clients see them.

    Raises:
        UserError: A file no longer exists.
    """
    given = JobSpec.model_validate_json(draft.spec)
    spec = server.with_paths(given)
    validation = None if spec.validation_file is None else Path(spec.validation_file)
    found = check_row_limits(server.operator.jobs, Path(spec.training_file), validation, draft.samples)
    found += check_offline(spec, ModelFolder.find(spec.model), server.operator)
    names = server.client_names_in(spec, draft.model, {name: getattr(given, name) for name in FILES})
    return [hide_details(problem, None, names) for problem in make_invalid_job(found).problems]


def main() -> None:
    parser = argparse.ArgumentParser(description="Check a job request from stdin before the job is created.")
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--check", type=Path, required=True, help="file to write the problems to")
    options = parser.parse_args()
    limit_process(CPU_S, MEMORY_BYTES)
    server = ServerAccess(DriverSettings.read(options.settings))
    try:
        problems = check(server, CheckRequest(**json.load(sys.stdin)))
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    finally:
        server.close()
    options.check.write_text(json.dumps([asdict(problem) for problem in problems]))


if __name__ == "__main__":
    main()
