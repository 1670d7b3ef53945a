"""Warnings about valid job settings and rows that probably make training less effective."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import assert_never

from agent_rft.actors.engine.chat.dialect_detection import find_unread_names
from agent_rft.actors.graders.grader_templates import reads_sample
from agent_rft.actors.graders.kinds.grade_expression import parse_expression
from agent_rft.actors.graders.kinds.python_grader import ignores_sample
from agent_rft.actors.grading.grader_factory import FIELD, iterate_graders, iterate_templates
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import RenderFailed
from agent_rft.cluster.checks.endpoint_checks import SESSION, TOOLS
from agent_rft.errors import GraderFailed, Problem
from agent_rft.rows.dataset_rows import format_ranges
from agent_rft.spec.endpoints import Endpoint, ToolSpec
from agent_rft.spec.graders import (
    CodeCheckGrader,
    EndpointGrader,
    GraderSpec,
    LabelModelGrader,
    LengthGrader,
    MultiGrader,
    PythonGrader,
    ScoreModelGrader,
    StringCheckGrader,
    TextSimilarityGrader,
)
from agent_rft.spec.job import FILES, WAIT_FACTOR, JobSpec, Reinforcement
from agent_rft.spec.step_plan import StepPlan
from agent_rft.types import Task

MANY_EPOCHS = 20
"""Number of epochs above which the model usually memorizes the rows."""
OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of functions that OpenAI's API allows; the user's agent cannot send other names."""
MAX_NAMES = 50
"""Maximum number of tool names to try with the tool parser."""


def find_advice(job: JobSpec, plan: StepPlan, renderer: Renderer, files: Mapping[str, Sequence[Task]]) -> Iterator[str]:
    """Yield warnings about settings that are allowed but rarely intended. Each warning begins with its setting."""
    yield from _row_advice(plan, files)
    warm_up = job.optimizer_settings.warm_up_steps
    if warm_up != "auto" and warm_up >= plan.steps:
        rising = f"the learning rate is still rising at the last of the job's {plan.steps} steps"
        yield f"algorithm.warm_up_steps: with {warm_up} steps, {rising}; set fewer steps, or auto"
    yield from _developer_advice(renderer, files)
    if job.method.type == "supervised":
        return
    yield from _tool_advice(job.reinforcement, renderer, files)
    yield from _grader_advice(job.reinforcement)
    for problem in _timeout_problems(job.reinforcement):
        yield f"{problem.field}: {problem.message}; {problem.fix} [{problem.code}]"
    early_stop, validations = job.reinforcement.early_stop, math.ceil(plan.steps / plan.eval_interval)
    if early_stop is not None and files["validation_file"] and early_stop.patience >= validations:
        yield (
            f"early_stop: the job has only {validations} validation{'s' * (validations > 1)} (one every "
            f"{plan.eval_interval} steps), so a patience of {early_stop.patience} can never end the job early; lower "
            "patience or eval_interval"
        )
    if plan.max_reasoning_tokens is not None and renderer.reasoning_end_id is None:
        yield "reasoning_effort: the model has no token that ends its reasoning, so the reasoning cannot be limited"


def _row_advice(plan: StepPlan, files: Mapping[str, Sequence[Task]]) -> Iterator[str]:
    if plan.n_epochs > MANY_EPOCHS:
        rows = f"{plan.num_rows} row{'s' * (plan.num_rows > 1)} for {plan.n_epochs} epochs"
        yield f"training_file: has only {rows}, so the model will memorize the answers; add a few dozen rows or more"
    for name, tasks in files.items():
        if repeated := _find_repeated(tasks):
            rows = f"{len(repeated)} of {len(tasks)} rows repeat an earlier row (rows {format_ranges(repeated)})"
            yield f"{name}: {rows}, so the same task counts several times"
    trained = {json.dumps(task.messages, sort_keys=True) for task in files["training_file"]}
    for name in FILES[1:]:
        shared = sum(json.dumps(task.messages, sort_keys=True) in trained for task in files[name])
        if shared:
            total = len(files[name])
            yield f"{name}: {shared} of {total} rows are also in the training file, so their grades are too high"


def _find_repeated(tasks: Sequence[Task]) -> list[int]:
    """Return the line numbers of the rows that repeat an earlier row."""
    seen: set[bytes] = set()
    lines = []
    for task in tasks:
        digest = hashlib.blake2b(json.dumps(task.item, sort_keys=True).encode(), digest_size=16).digest()
        if digest in seen:
            lines.append(task.line)
        seen.add(digest)
    return lines


def _developer_advice(renderer: Renderer, files: Mapping[str, Sequence[Task]]) -> Iterator[str]:
    """Yield one note if developer messages are rendered as system messages."""
    rewritten = sum(_rewrites_developer(renderer, task) for tasks in files.values() for task in tasks)
    if rewritten:
        what = f"the developer messages of {rewritten} row{'s' * (rewritten > 1)} are rendered as system messages"
        yield f"messages: {what}, because the chat template does not support the role developer; no change is needed"


def _rewrites_developer(renderer: Renderer, task: Task) -> bool:
    try:
        return renderer.rewrites_developer(task.messages)
    except RenderFailed:  # a resumed run tolerates such rows
        return False


def _tool_advice(
    reinforcement: Reinforcement, renderer: Renderer, files: Mapping[str, Sequence[Task]]
) -> Iterator[str]:
    offered = {tool["function"]["name"]: None for tasks in files.values() for task in tasks for tool in task.tools}
    settings = set(ToolSpec.model_fields)
    for i, tool in enumerate(reinforcement.tools):
        for key in tool.model_extra or ():
            for meant in get_close_matches(key, settings, 1):
                yield f"{TOOLS}[{i}].{key}: is accepted but ignored; did you mean {meant!r}?"
        if tool.name not in offered:
            yield f"{TOOLS}[{i}]: no row offers the tool {tool.name!r}; add its schema to the rows' `tools`"
    for name in offered:
        if not OPENAI_NAME.fullmatch(name):
            rule = "OpenAI's API allows 1 to 64 letters, digits, _ and - in names of functions"
            yield f"tools: the agent cannot call {name!r:.100} through OpenAI's API: {rule}; rename the tool"
    for name in find_unread_names(renderer, list(offered)[:MAX_NAMES]):
        yield f"tools: the parser of this model's calls cannot read the name {name!r:.100}; rename the tool"


def _grader_advice(reinforcement: Reinforcement) -> Iterator[str]:
    for field, spec in iterate_graders(reinforcement):
        if field.startswith(FIELD) and _is_constant(spec):
            why = "gives all answers to a row the same grade, because it does not read `sample`"
            yield f"{field}: {why}, so the model learns nothing; let the grader read {{{{ sample.output_text }}}}"
        if isinstance(spec, MultiGrader):
            yield from _expression_advice(field, spec)


def _expression_advice(field: str, spec: MultiGrader) -> Iterator[str]:
    """Yield a warning if the expression has no value for the worst answers.

    For example, the F1 score of such an answer is 0 / 0.
    """
    lowest = {name: part.grade_range[0] for name, part in spec.graders.items()}
    try:
        parse_expression(spec.calculate_output, lowest).compute_value(lowest, field)
    except GraderFailed:
        why = "has no value if all parts give their lowest grade, so these rollouts are discarded"
        yield f"{field}.calculate_output: {why}; if it divides by a sum of grades, add 1e-9 to the sum"


def _timeout_problems(reinforcement: Reinforcement) -> Iterator[Problem]:
    """Yield a warning for each tool, session or grader whose timeout exceeds the time limit of a rollout.

    The limit is `rollout_timeout_s` for tools, and `wait_timeout_s` for the session and graders.
    """
    limits = reinforcement.limits
    wait = f"the {limits.wait_timeout_s:g} s that a rollout may wait ({WAIT_FACTOR} x limits.rollout_timeout_s)"
    for i, tool in enumerate(reinforcement.tools):
        if tool.timeout_s > limits.rollout_timeout_s:
            limit = f"limits.rollout_timeout_s ({limits.rollout_timeout_s:g} s)"
            yield _short_timeout(f"{TOOLS}[{i}]", tool, limit, tool.timeout_s)
    awaited_endpoints: list[tuple[str, Endpoint | None]] = [(SESSION, reinforcement.session)]
    awaited_endpoints += [
        (field, spec) for field, spec in iterate_graders(reinforcement) if isinstance(spec, EndpointGrader)
    ]
    for field, endpoint in awaited_endpoints:
        if endpoint is not None and endpoint.timeout_s > limits.wait_timeout_s:
            yield _short_timeout(field, endpoint, wait, endpoint.timeout_s / WAIT_FACTOR)


def _short_timeout(field: str, endpoint: Endpoint, limit: str, needed_s: float) -> Problem:
    message = (
        f"{endpoint.timeout_s:g} s is longer than {limit}, so a rollout is discarded before its slow call times out"
    )
    fix = f"set limits.rollout_timeout_s to more than {math.ceil(needed_s)}, or lower timeout_s"
    return Problem("short_rollout_timeout", f"{field}.timeout_s", message, fix)


def _is_constant(spec: GraderSpec) -> bool:
    """Return whether the grader certainly ignores the answer."""
    match spec:
        case PythonGrader():
            return ignores_sample(spec.source)
        case MultiGrader() | EndpointGrader():  # the parts of a multi grader are checked separately
            return False
        case (
            StringCheckGrader()
            | TextSimilarityGrader()
            | ScoreModelGrader()
            | LabelModelGrader()
            | CodeCheckGrader()
            | LengthGrader()
        ):
            return not any(reads_sample(template) for _, template in iterate_templates(spec))
    assert_never(spec)
