"""Checks of a job's endpoints, graders and schemas, which the API makes before it accepts a job.

The checks read neither the job's files nor its model. They send no requests and run no graders.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_rft.actors.endpoints.network.address_guard import AddressGuard
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem
from agent_rft.actors.endpoints.signing import PREFIX, find_secret_problems
from agent_rft.actors.grading.grader_factory import all_grader_problems, grader_problems, iterate_graders, size_problems
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.endpoints import Headers
from agent_rft.spec.graders import EndpointGrader, GraderSpec, MultiGrader
from agent_rft.spec.job import JobSpec, Reinforcement
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.spec.schemas.json_schema import find_schema_problem

TOOLS = "method.reinforcement.tools"
SESSION = "method.reinforcement.session"
SIGNING = "method.reinforcement.signing_secret"


def check_endpoints(reinforcement: Reinforcement, operator: OperatorConfig) -> list[Problem]:
    """Return the problems of tools, sessions and graders that can be found without the job's rows."""
    problems = [
        Problem("invalid_endpoint", where, error, "fix the URL or headers")
        for where, url, headers in _tools_and_sessions(reinforcement)
        if (error := find_endpoint_problem(url, headers)) is not None
    ]
    fix = f"set signing_secret to ${{NAME}}, and create the value of NAME with: echo {PREFIX}$(openssl rand -base64 32)"
    for error in find_secret_problems(reinforcement):
        problems.append(Problem("invalid_signing_secret", SIGNING, error, fix))
    if (wrong := find_schema_problem(reinforcement.response_format, grammar=True)) is not None:
        problems.append(Problem(wrong.code, "method.reinforcement.response_format", str(wrong), wrong.fix))
    problems += all_grader_problems(reinforcement, operator)
    return problems + _address_problems(reinforcement, AddressGuard(operator.allowed_destinations))


def _address_problems(reinforcement: Reinforcement, guard: AddressGuard) -> list[Problem]:
    """Return a problem for each URL with a forbidden IP address. The dry run resolves and checks host names."""
    problems = []
    for where, url in list_endpoint_urls(reinforcement):
        error = None if find_endpoint_problem(url, {}) else guard.find_address_problem(url)
        if error is not None:
            problems.append(Problem("forbidden_address", where, *error))
    return problems


def list_endpoint_urls(reinforcement: Reinforcement) -> Iterator[tuple[str, str]]:
    """Yield (job field, URL) of each tool, each endpoint grader, and the session's start and end endpoints."""
    yield from ((where, url) for where, url, _ in _tools_and_sessions(reinforcement))
    for where, spec in iterate_graders(reinforcement):
        if isinstance(spec, EndpointGrader):
            yield f"{where}.url", spec.url


def _tools_and_sessions(reinforcement: Reinforcement) -> Iterator[tuple[str, str, Headers]]:
    """Yield (job field, URL, headers) of each tool, and of the session's start and end endpoints."""
    for i, tool in enumerate(reinforcement.tools):
        yield f"{TOOLS}[{i}].server_url", tool.server_url, tool.headers
    if (session := reinforcement.session) is not None:
        for name, url in (("start_url", session.start_url), ("end_url", session.end_url)):
            if url is not None:
                yield f"{SESSION}.{name}", url, session.headers


def check_early_stop(job: JobSpec) -> list[Problem]:
    """Return a problem if a job has `early_stop` but no validation file."""
    early_stop = None if job.method.reinforcement is None else job.method.reinforcement.early_stop
    if early_stop is None or job.validation_file is not None:
        return []
    message = "needs validations, but the job has no validation_file"
    fix = "set validation_file to a file whose rows are not in the training file, or remove early_stop"
    return [Problem("early_stop_without_validation", "method.reinforcement.early_stop", message, fix)]


def check_grader(spec: GraderSpec, operator: OperatorConfig) -> None:
    """Check a grader without running it and without sending requests.

    Raises:
        InvalidJob: The grader has errors. The exception lists all of them.
    """
    graders = list(_list_parts(spec))
    problems = size_problems(graders) or grader_problems(spec, operator, "grader")
    guard = AddressGuard(operator.allowed_destinations)
    for place, part in graders:
        if isinstance(part, EndpointGrader) and not find_endpoint_problem(part.url, {}):
            error = guard.find_address_problem(part.url)
            if error is not None:
                problems.append(Problem("forbidden_address", f"{place}.url", *error))
    if problems:
        raise InvalidJob("the grader has errors", problems)


def _list_parts(spec: GraderSpec) -> Iterator[tuple[str, GraderSpec]]:
    yield "grader", spec
    if isinstance(spec, MultiGrader):
        yield from ((f"grader.graders.{name}", part) for name, part in spec.graders.items())
