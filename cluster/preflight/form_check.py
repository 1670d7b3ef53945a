"""Checks of a job's endpoints, graders and schemas that need neither its files nor its model, and call nothing.

The API runs them before it accepts a job.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_rft.actors.endpoints.network.address_guard import Guard
from agent_rft.actors.endpoints.network.url import endpoint_mistake
from agent_rft.actors.endpoints.signing import PREFIX, secret_mistakes
from agent_rft.actors.grading.factory import all_grader_problems, grader_problems, graders_of, size_problems
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.endpoints import Headers
from agent_rft.spec.graders import EndpointGrader, GraderSpec, MultiGrader
from agent_rft.spec.job import JobSpec, Reinforcement
from agent_rft.spec.operator.config import Operator
from agent_rft.spec.schemas.json_schema import schema_mistake

TOOLS = "method.reinforcement.tools"
SESSION = "method.reinforcement.session"
SIGNING = "method.reinforcement.signing_secret"


def endpoint_problems(reinforcement: Reinforcement, operator: Operator) -> list[Problem]:
    """Return the problems of tools, sessions and graders that can be found without the job's rows."""
    problems = [
        Problem("invalid_endpoint", where, error, "fix the URL or headers")
        for where, url, headers in _tools_and_sessions(reinforcement)
        if (error := endpoint_mistake(url, headers)) is not None
    ]
    remedy = f"write it as ${{NAME}}, and create a secret with: echo {PREFIX}$(openssl rand -base64 32)"
    for error in secret_mistakes(reinforcement):
        problems.append(Problem("invalid_signing_secret", SIGNING, error, remedy))
    if (wrong := schema_mistake(reinforcement.response_format, grammar=True)) is not None:
        problems.append(Problem(wrong.code, "method.reinforcement.response_format", str(wrong), wrong.remedy))
    problems += all_grader_problems(reinforcement, operator)
    return problems + _address_problems(reinforcement, Guard(operator.reachable))


def _address_problems(reinforcement: Reinforcement, guard: Guard) -> list[Problem]:
    """Return problems of URLs with a forbidden IP address. The dry run resolves and checks host names."""
    problems = []
    for where, url in endpoint_urls(reinforcement):
        error = None if endpoint_mistake(url, {}) else guard.mistake(url)
        if error is not None:
            problems.append(Problem("forbidden_address", where, *error))
    return problems


def endpoint_urls(reinforcement: Reinforcement) -> Iterator[tuple[str, str]]:
    """Yield (field, URL) of all tools, sessions and graders."""
    yield from ((where, url) for where, url, _ in _tools_and_sessions(reinforcement))
    for where, spec in graders_of(reinforcement):
        if isinstance(spec, EndpointGrader):
            yield f"{where}.url", spec.url


def _tools_and_sessions(reinforcement: Reinforcement) -> Iterator[tuple[str, str, Headers]]:
    """Yield (field, URL, headers) of tools and sessions."""
    for i, tool in enumerate(reinforcement.tools):
        yield f"{TOOLS}[{i}].server_url", tool.server_url, tool.headers
    if (session := reinforcement.session) is not None:
        for name, url in (("start_url", session.start_url), ("end_url", session.end_url)):
            if url is not None:
                yield f"{SESSION}.{name}", url, session.headers


def early_stop_problems(job: JobSpec) -> list[Problem]:
    """Return a problem if a job has `early_stop` but no validation file."""
    early_stop = None if job.method.reinforcement is None else job.method.reinforcement.early_stop
    if early_stop is None or job.validation_file is not None:
        return []
    message = "needs validations, but the job has no validation_file"
    remedy = "set validation_file to a file with other rows than the training file, or remove early_stop"
    return [Problem("early_stop_without_validation", "method.reinforcement.early_stop", message, remedy)]


def check_grader(spec: GraderSpec, operator: Operator) -> None:
    """Check a grader without calling anything.

    Raises:
        InvalidJob: The grader has errors; lists all of them.
    """
    graders = list(_parts(spec))
    problems = size_problems(graders) or grader_problems(spec, operator, "grader")
    guard = Guard(operator.reachable)
    for place, part in graders:
        if isinstance(part, EndpointGrader) and not endpoint_mistake(part.url, {}):
            error = guard.mistake(part.url)
            if error is not None:
                problems.append(Problem("forbidden_address", f"{place}.url", *error))
    if problems:
        raise InvalidJob("the grader has errors", problems)


def _parts(spec: GraderSpec) -> Iterator[tuple[str, GraderSpec]]:
    yield "grader", spec
    if isinstance(spec, MultiGrader):
        yield from ((f"grader.graders.{name}", part) for name, part in spec.graders.items())
