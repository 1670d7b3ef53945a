"""From a job's grader to one that runs, and what is wrong with it before anything runs."""

from __future__ import annotations

from typing import assert_never

from actors.endpoint import endpoint_mistake
from actors.graders.base import Grader
from actors.graders.endpoint import EndpointGrade
from actors.graders.expression import expression_problems, name_problem
from actors.graders.multi import Multi
from actors.graders.string_check import StringCheck
from actors.http_client import REAL_TIMING, Timing
from actors.templates import template_problems
from trainer.errors import InvalidJob, Problem
from trainer.grader_spec import EndpointGrader, GraderSpec, MultiGrader, StringCheckGrader
from trainer.operator import NOTHING_ALLOWED, Operator

FIELD = "method.reinforcement.grader"


def make_grader(spec: GraderSpec, operator: Operator = NOTHING_ALLOWED, timing: Timing = REAL_TIMING) -> Grader:
    """The grader that `spec` describes.

    Raises:
        InvalidJob: it has mistakes (`grader_problems`).
    """
    problems = grader_problems(spec)
    if problems:
        raise InvalidJob("the grader has mistakes", problems)
    return _make(spec, spec.name or spec.type, operator, timing)


def grader_problems(spec: GraderSpec, field: str = FIELD) -> list[Problem]:
    """The mistakes that show without calling anything: templates, expressions, names, URLs and headers."""
    match spec:
        case StringCheckGrader():
            return [
                Problem("invalid_template", f"{field}.{name}", problem, "write paths as {{ item.x }} or {{ sample.x }}")
                for name in ("input", "reference")
                for problem in template_problems(getattr(spec, name))
            ]
        case EndpointGrader():
            mistake = endpoint_mistake(spec.url, spec.headers)
            remedy = "correct url or headers of this grader"
            return [Problem("invalid_endpoint", f"{field}.url", mistake, remedy)] if mistake else []
        case MultiGrader():
            return _multi_problems(spec, field)
    assert_never(spec)


def _multi_problems(spec: MultiGrader, field: str) -> list[Problem]:
    problems = []
    for name, part in spec.graders.items():
        mistake = name_problem(name)
        if mistake:
            problems.append(Problem("invalid_grader_name", f"{field}.graders.{name}", mistake, "rename this grader"))
        problems += grader_problems(part, f"{field}.graders.{name}")
    remedy = "use + - * / ^, parentheses, numbers, the graders' names, min, max, abs, floor, ceil, exp, sqrt, log"
    problems += [
        Problem("invalid_expression", f"{field}.calculate_output", mistake, remedy)
        for mistake in expression_problems(spec.calculate_output, spec.graders)
    ]
    return problems


def _make(spec: GraderSpec, label: str, operator: Operator, timing: Timing) -> Grader:
    match spec:
        case StringCheckGrader():
            return StringCheck(spec, label)
        case EndpointGrader():
            return EndpointGrade(spec, label, operator, timing)
        case MultiGrader():
            return Multi(
                spec, label, {name: _make(part, name, operator, timing) for name, part in spec.graders.items()}
            )
    assert_never(spec)
