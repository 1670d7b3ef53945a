"""Factory of a job's graders. It also checks the graders' specs and computes the time limit of each grade."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from agent_rft.actors.endpoints.model_client import CHAT, EMBEDDINGS, ModelClients, add_key_header, join_model_url
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem
from agent_rft.actors.endpoints.network.proxies import find_proxy_problem
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.graders.grader_protocol import UNGATED, Grader
from agent_rft.actors.graders.grader_templates import MAX_PLACEHOLDERS, num_placeholders, template_problems
from agent_rft.actors.graders.kinds.code_check import CodeCheck
from agent_rft.actors.graders.kinds.endpoint_grader import EndpointCaller
from agent_rft.actors.graders.kinds.grade_expression import expression_problems, name_problem
from agent_rft.actors.graders.kinds.judge import RESERVED_PARAMETERS, Judge
from agent_rft.actors.graders.kinds.judge_logprobs import logprobs_problems
from agent_rft.actors.graders.kinds.judge_messages import message_problems, message_templates
from agent_rft.actors.graders.kinds.length_grader import LengthCheck
from agent_rft.actors.graders.kinds.multi_grader import Multi
from agent_rft.actors.graders.kinds.python_grader import PythonRunner, find_missing_imports, python_source_problems
from agent_rft.actors.graders.kinds.string_check import StringCheck
from agent_rft.actors.graders.kinds.text_similarity import TextSimilarity
from agent_rft.actors.grading.text_trials import TextTrialGrader, TextTrials
from agent_rft.actors.grading.trial_slots import OneGradeGrader, Slot, SlottedGrader
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.graders import (
    MAX_SOURCE_BYTES,
    CodeCheckGrader,
    EndpointGrader,
    GraderSpec,
    LabelModelGrader,
    LengthGrader,
    MultiGrader,
    PythonGrader,
    ScoreModelGrader,
    SingleGrader,
    StringCheckGrader,
    TextSimilarityGrader,
)
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.model_names import find_similar_name, match_model_name
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig

MAX_GRADERS, MAX_HEAVY = 64, 16
"""Maximum number of parts of a multi grader, and maximum number of these parts that are heavy (`is_heavy`).

All graders of a job together may have twice as many parts and heavy parts."""
LOCAL_DEADLINE_S = 120.0
"""Deadline, in seconds, of a grade by a local grader."""
QUEUE_S = 480.0
"""Maximum seconds that a python grader waits for a worker.

The wait is long if hundreds of samples arrive at the same time, because each core has only one worker. The grader's
`timeout_s` limits the run itself."""
GRACE_S = 5.0
"""Seconds by which the deadline of a grade exceeds the deadline of its endpoint call."""
REINFORCEMENT = "method.reinforcement"
FIELD = "method.reinforcement.grader"
GUARDS = "method.reinforcement.guards"
HELD_OUT = "method.reinforcement.held_out_grader"
PythonGraderFactory = Callable[..., Grader]
"""Function that makes a grader from a PythonGrader and a label. Optional arguments: `num_workers`, `start_ahead`."""
MODEL_FIX = "add the model to `models` in the operator's configuration, or use a model that is listed there"


def make_grader(
    spec: GraderSpec,
    operator: OperatorConfig = DEFAULT_CONFIG,
    timing: Timing = REAL_TIMING,
    models: ModelClients | None = None,
    signer: Signer | None = None,
    slot: Slot | None = None,
    python: PythonGraderFactory | None = None,
    *,
    has_answered: bool = False,
) -> Grader:
    """Create the grader that `spec` describes.

    Graders with the same `models` share the limits of the model endpoints. `python` creates python graders, which by
    default run in workers of this process. `slot` is set only for trials, in which each grade of a heavy grader
    (`is_heavy`) waits for a slot. `has_answered`: see EndpointClient.

    Raises:
        InvalidJob: The spec has problems (`grader_problems`).
    """
    problems = grader_problems(spec, operator)
    if problems:
        raise InvalidJob("the grader is invalid", problems)
    models = ModelClients(operator.models, timing) if models is None else models
    python = python or partial(PythonRunner, operator=operator)
    return _GraderMaker(operator, timing, models, signer, slot, python, has_answered).make(spec, spec.name or spec.type)


@dataclass(frozen=True, slots=True)
class _GraderMaker:
    operator: OperatorConfig
    timing: Timing
    models: ModelClients
    signer: Signer | None
    slot: Slot | None
    python: PythonGraderFactory
    has_answered: bool

    def make(self, spec: GraderSpec, label: str) -> Grader:
        if isinstance(spec, MultiGrader):
            return Multi(spec, label, self.make_parts(spec.graders))
        return self.make_parts({label: spec})[label]

    def make_parts(self, specs: Mapping[str, SingleGrader]) -> dict[str, Grader]:
        if self.slot is None:
            return {name: self._make_single(spec, name) for name, spec in specs.items()}
        texts = TextTrials({name: spec for name, spec in specs.items() if not is_heavy(spec)}, self.slot)
        return {name: self._make_trial(spec, name, texts, self.slot) for name, spec in specs.items()}

    def _make_trial(self, spec: SingleGrader, label: str, texts: TextTrials, slot: Slot) -> Grader:
        if not is_heavy(spec):
            return TextTrialGrader(label, self._make_single(spec, label), texts)
        if isinstance(spec, PythonGrader):
            once = partial(self.python, spec, label, num_workers=1, start_ahead=False)
            return OneGradeGrader(once, slot)
        return SlottedGrader(self._make_single(spec, label), slot)

    def _make_single(self, spec: SingleGrader, label: str) -> Grader:
        match spec:
            case StringCheckGrader():
                return StringCheck(spec, label)
            case TextSimilarityGrader():
                by_model = spec.evaluation_metric == "cosine"
                return TextSimilarity(
                    spec, label, self.models.get_model_client(spec.model, EMBEDDINGS) if by_model else None
                )
            case PythonGrader():
                return self.python(spec, label)
            case ScoreModelGrader() | LabelModelGrader():
                return Judge(spec, label, self.models.get_model_client(spec.model, CHAT))
            case EndpointGrader():
                return EndpointCaller(
                    spec, label, self.operator, self.timing, self.signer, has_answered=self.has_answered
                )
            case CodeCheckGrader():
                return CodeCheck(spec, label)
            case LengthGrader():
                return LengthCheck(spec, label)
        assert_never(spec)


def grade_deadline_s(spec: GraderSpec, operator: OperatorConfig) -> float:
    """Return the time limit of a grade in seconds. Parts of a `multi` run concurrently, so the longest limit counts."""
    match spec:
        case MultiGrader():
            return max(grade_deadline_s(part, operator) for part in spec.graders.values())
        case EndpointGrader():
            return spec.timeout_s + GRACE_S
        case PythonGrader():
            return spec.timeout_s + QUEUE_S
        case ScoreModelGrader() | LabelModelGrader() | TextSimilarityGrader():
            entry = match_model_name(spec.model, operator.models)
            return LOCAL_DEADLINE_S if entry is None else operator.models[entry].timeout_s + GRACE_S
        case StringCheckGrader() | CodeCheckGrader() | LengthGrader():
            return LOCAL_DEADLINE_S
    assert_never(spec)


# -- checks ------------------------------------------------------------------------------------------------------------


def all_grader_problems(reinforcement: Reinforcement, operator: OperatorConfig) -> list[Problem]:
    """Return the problems of a job's grader, guards and held-out grader. Does not call an endpoint."""
    problems = size_problems(list(iterate_graders(reinforcement)))
    problems += grader_problems(reinforcement.grader, operator)
    seen = set()
    for i, guard in enumerate(reinforcement.guards):
        problems += grader_problems(guard.grader, operator, f"{GUARDS}[{i}].grader")
        problems += _find_threshold_problem(guard.grader, operator, f"{GUARDS}[{i}].grader")
        if guard.name in seen:
            message = f"the name {guard.name!r} is duplicated"
            problems.append(Problem("duplicate_name", f"{GUARDS}[{i}].name", message, "rename this guard"))
        seen.add(guard.name)
    if reinforcement.held_out_grader is not None:
        problems += grader_problems(reinforcement.held_out_grader, operator, HELD_OUT)
    return problems


def grader_problems(spec: GraderSpec, operator: OperatorConfig = DEFAULT_CONFIG, field: str = FIELD) -> list[Problem]:
    """Return problems in a grader's templates, formulas, names, models, URLs and headers. Does not call endpoints."""
    problems = list(_find_own_problems(spec, operator))
    problems += [
        Problem("invalid_template", template_field, problem, "write paths as {{ item.x }} or {{ sample.x }}")
        for template_field, template in iterate_templates(spec)
        for problem in template_problems(template)
    ]
    problems = [replace(problem, field=f"{field}.{problem.field}") for problem in problems]
    if isinstance(spec, MultiGrader):
        for name, part in spec.graders.items():
            problems += grader_problems(part, operator, f"{field}.graders.{name}")
    return problems


def iterate_graders(reinforcement: Reinforcement) -> Iterator[tuple[str, GraderSpec]]:
    """Yield (field, grader) of all graders of a job, including the parts of multi graders."""
    top_level: list[tuple[str, GraderSpec]] = [(FIELD, reinforcement.grader)]
    top_level += [(f"{GUARDS}[{i}].grader", guard.grader) for i, guard in enumerate(reinforcement.guards)]
    if reinforcement.held_out_grader is not None:
        top_level.append((HELD_OUT, reinforcement.held_out_grader))
    for field, spec in top_level:
        yield field, spec
        if isinstance(spec, MultiGrader):
            yield from ((f"{field}.graders.{name}", part) for name, part in spec.graders.items())


def size_problems(graders: Sequence[tuple[str, GraderSpec]]) -> list[Problem]:
    """Return the problems with the number and size of a job's graders.

    `graders` contains the pairs from `iterate_graders`. `make_grader` does not check for these problems, so that a
    running job whose graders exceed the limits can continue.
    """
    problems: list[Problem] = []
    for field, spec in graders:
        if isinstance(spec, MultiGrader):
            problems += _find_count_problems(f"{field}.graders", list(spec.graders.values()), 1)
        for place, template in iterate_templates(spec):
            if num_placeholders(template) > MAX_PLACEHOLDERS:
                problems.append(_make_size_problem(f"{field}.{place}", f"more than {MAX_PLACEHOLDERS:,} placeholders"))
    single = [spec for _, spec in graders if not isinstance(spec, MultiGrader)]
    sources = sum(len(spec.source.encode()) for spec in single if isinstance(spec, PythonGrader))
    if sources > MAX_SOURCE_BYTES:
        problems.append(
            _make_size_problem(graders[0][0], f"more than {MAX_SOURCE_BYTES:,} bytes of python sources in total")
        )
    return problems or list(_find_count_problems(REINFORCEMENT, single, 2))


def _find_count_problems(field: str, graders: Sequence[GraderSpec], factor: int) -> Iterator[Problem]:
    max_graders, max_heavy = MAX_GRADERS * factor, MAX_HEAVY * factor
    if len(graders) > max_graders:
        yield _make_size_problem(field, f"more than {max_graders} graders")
    if sum(map(is_heavy, graders)) > max_heavy:
        yield _make_size_problem(
            field, f"more than {max_heavy} graders that start a process or call a model or an endpoint"
        )


def _make_size_problem(field: str, what: str) -> Problem:
    return Problem("grader_too_large", field, f"has {what}", "combine several checks in one python grader")


def is_heavy(spec: GraderSpec) -> bool:
    """Return whether the grader starts a process, or calls a model or an endpoint, for each sample."""
    match spec:
        case PythonGrader() | EndpointGrader() | ScoreModelGrader() | LabelModelGrader():
            return True
        case TextSimilarityGrader():
            return spec.evaluation_metric == "cosine"
        case StringCheckGrader() | CodeCheckGrader() | LengthGrader() | MultiGrader():
            return False
    assert_never(spec)


def iterate_templates(spec: GraderSpec) -> Iterator[tuple[str, str]]:
    """Yield each template of a grader as (relative field, template). Skips the parts of a multi grader."""
    yield from ((field, getattr(spec, field)) for field in spec.TEMPLATE_FIELDS)
    if isinstance(spec, ScoreModelGrader | LabelModelGrader):
        yield from message_templates(spec.input)


def _find_own_problems(spec: GraderSpec, operator: OperatorConfig) -> Iterator[Problem]:
    """Yield one grader's problems, except those in its templates or parts.

    The fields of the problems are relative to the grader.
    """
    match spec:
        case EndpointGrader():
            if problem := find_endpoint_problem(spec.url, spec.headers):
                yield Problem("invalid_endpoint", "url", problem, "correct the url or the headers of this grader")
        case PythonGrader():
            for problem in python_source_problems(spec.source):
                yield Problem("invalid_source", "source", problem, "fix the source")
            for problem, fix in find_missing_imports(spec.source):
                yield Problem("missing_import", "source", problem, fix)
        case TextSimilarityGrader():
            if spec.evaluation_metric == "cosine":
                yield from _find_model_problems(spec.model, EMBEDDINGS, operator)
        case ScoreModelGrader() | LabelModelGrader():
            yield from _find_model_problems(spec.model, CHAT, operator)
            yield from _find_judge_problems(spec)
            if _uses_logprobs(spec, operator):
                for field, problem, fix in logprobs_problems(spec):
                    yield Problem("logprobs_unsupported", field, problem, fix)
        case CodeCheckGrader():
            if spec.check == "reference_returned" and not spec.reference:
                fix = "set `reference` to the reference solution, for example {{ item.reference }}"
                message = "is missing, but the check `reference_returned` requires a reference"
                yield Problem("missing_reference", "reference", message, fix)
        case MultiGrader():
            yield from _find_multi_problems(spec)
        case StringCheckGrader() | LengthGrader():
            pass
        case _:
            assert_never(spec)


def _find_model_problems(name: str, path: str, operator: OperatorConfig) -> Iterator[Problem]:
    entry = match_model_name(name, operator.models)
    if entry is None:
        known = ", ".join(sorted(operator.models)) or "none"
        message = f"the operator's configuration has no model {name!r}; it has {known}"
        near = find_similar_name(name, operator.models)
        yield Problem(
            "unknown_model", "model", message, f"did you mean {near!r}? Otherwise, {MODEL_FIX}" if near else MODEL_FIX
        )
        return
    endpoint = operator.models[entry]
    url = join_model_url(endpoint, path)
    if problem := find_endpoint_problem(url, add_key_header(endpoint).headers, "base_url") or find_proxy_problem(url):
        fix = f"correct models.{entry} in the operator's configuration"
        yield Problem("invalid_endpoint", "model", problem, fix)


def _find_judge_problems(spec: ScoreModelGrader | LabelModelGrader) -> Iterator[Problem]:
    fix = 'write messages as {"role": "user", "content": "text with {{ sample.output_text }}"}'
    for field, problem in message_problems(spec.input):
        yield Problem("invalid_message", field, problem, fix)
    for name in sorted(RESERVED_PARAMETERS & set(spec.sampling_params)):
        yield Problem("invalid_parameter", f"sampling_params.{name}", "is set by the grader", "remove it")
    if isinstance(spec, LabelModelGrader) and (unknown := sorted(set(spec.passing_labels) - set(spec.labels))):
        message = f"contains {', '.join(map(repr, unknown))}, which `labels` does not contain"
        yield Problem("unknown_label", "passing_labels", message, "use only values of `labels`")


def _uses_logprobs(spec: GraderSpec, operator: OperatorConfig) -> bool:
    if not isinstance(spec, ScoreModelGrader | LabelModelGrader):
        return False
    entry = match_model_name(spec.model, operator.models)
    return entry is not None and operator.models[entry].scoring == "logprobs"


def _find_threshold_problem(spec: SingleGrader, operator: OperatorConfig, field: str) -> Iterator[Problem]:
    """Yield a problem if a guard's judge uses log-probabilities and can never reach the guard's threshold."""
    best = spec.range[1] if isinstance(spec, ScoreModelGrader) else 1.0
    if _uses_logprobs(spec, operator) and spec.pass_threshold >= best:
        message = f"is {spec.pass_threshold:g}, which a judge with `scoring: logprobs` never reaches"
        fix = f"set pass_threshold below {best:g}, for example to {best / 2:g}"
        yield Problem("logprobs_unsupported", f"{field}.pass_threshold", message, fix)


def _find_multi_problems(spec: MultiGrader) -> Iterator[Problem]:
    for name in spec.graders:
        if problem := name_problem(name):
            yield Problem("invalid_grader_name", f"graders.{name}", problem, "rename this grader")
        elif name == UNGATED:
            message = f"{UNGATED!r} is reserved for the grade before guards are applied"
            yield Problem("invalid_grader_name", f"graders.{name}", message, "rename this grader")
    fix = "use + - * / ^, parentheses, numbers, the graders' names, min, max, abs, floor, ceil, exp, sqrt, log"
    for problem in expression_problems(spec.calculate_output, spec.graders):
        yield Problem("invalid_expression", "calculate_output", problem, fix)
