"""An OpenAI job as a job file, with the operator's configuration beside it, and what differs.

Only values with a counterpart here are taken; each other one is named. The result has the form of a job file, and no
secret is in it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_rft.actors.endpoints.answer import cut
from agent_rft.actors.graders.kinds.python import MAX_PARSED_CHARS, imported_packages
from agent_rft.actors.grading.factory import graders_of
from agent_rft.cli.openai_import.api import OPENAI, one_line
from agent_rft.cli.openai_import.models import propose
from agent_rft.cli.openai_import.rows import Converted
from agent_rft.cli.openai_import.secrets import DOLLAR, Secrets
from agent_rft.cli.openai_import.source import ROWS
from agent_rft.cli.openai_import.wire import WireJob
from agent_rft.cluster.preflight.form_check import endpoint_problems
from agent_rft.cluster.preflight.static import invalid_job
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.endpoints import MAX_TIMEOUT_S, TRIAL_CALL_S, ToolSpec
from agent_rft.spec.graders import LabelModelGrader, PythonGrader, ScoreModelGrader, TextSimilarityGrader
from agent_rft.spec.integrations import WandbSettings
from agent_rft.spec.job import JobSpec, Reinforcement, RolloutLimits
from agent_rft.spec.operator.config import ModelEndpoint, Operator
from agent_rft.spec.plan import THINKING_TOKENS
from agent_rft.spec.reader import KeyPath, Lines, ParsedFile, Variables, field_name, validate, without_nulls

EMBEDDINGS = "text-embedding-3-large"
"""OpenAI's model for `cosine`, which its graders do not name."""
USUAL_CONTEXT = 16_384
"""The most that `cluster.context_length: auto` means."""
BYTES_PER_TOKEN = 4
UNSET = ("auto", "default")
SAME = ("batch_size", "n_epochs", "eval_interval", "eval_samples")
"""Hyperparameters that mean the same here."""
NOT_ENDED = ("validating_files", "queued", "running", "paused")


@dataclass(slots=True)
class Definition:
    """What is written: `job` and `operator` as they are in the files, the variables to set, and what differs."""

    job: dict[str, Any]
    operator: dict[str, Any]
    variables: dict[str, str]
    notes: list[str] = field(default_factory=list)


def definition_of(job: WireJob, rows: Mapping[str, Converted], model: str | None) -> Definition:
    """The job file for a job with these rows, by field; `model` is what the user chose, or None for a proposal.

    Raises:
        InvalidJob: Something in it is not here.
    """
    secrets = Secrets()
    notes = list(_state_notes(job))
    cluster = _cluster(job, rows, model, notes)
    notes += _row_notes(rows)
    method = _method(job, secrets, notes)
    raw: dict[str, Any] = {"model": cluster.pop("model")}
    raw |= {name: ROWS[name] for name in ROWS if name in rows}
    if job.seed is not None:
        raw["seed"] = job.seed % 2**31
    if suffix := job.user_provided_suffix or _suffix(job.fine_tuned_model):
        raw["suffix"] = secrets.literal(suffix)
    raw["method"] = method
    if integrations := list(_integrations(job, notes)):
        raw["integrations"] = secrets.literal(integrations)
    if cluster:
        raw["cluster"] = cluster
    spec = _valid(raw, secrets, notes)
    operator: dict[str, Any] = {"aliases": dict.fromkeys((_undated(job.model), raw["model"]), raw["model"])}
    if spec.method.type == "reinforcement":
        if judges := _judges(spec.reinforcement, secrets, notes):
            operator["models"] = judges
        _check(spec.reinforcement, operator, notes)
        notes += _python_notes(spec.reinforcement)
    notes += _left_notes(job)
    return Definition(raw, operator, secrets.needed, notes)


# -- the method --------------------------------------------------------------------------------------------------------


def known_method(job: WireJob) -> str:
    """The job's method.

    Raises:
        InvalidJob: It is not here.
    """
    kind = (job.method or {"type": "supervised"}).get("type")
    if kind in ("reinforcement", "supervised"):
        return str(kind)
    remedy = (
        "train on the preferred answers (supervised), or write a grader that prefers them (reinforcement): change the "
        "method and the rows of an export, and import it with --from"
    )
    message = f"is {str(kind)[:40]!r}; here there are reinforcement and supervised"
    raise InvalidJob("the job cannot be imported", [Problem("unsupported_method", "method.type", message, remedy)])


def _method(job: WireJob, secrets: Secrets, notes: list[str]) -> dict[str, Any]:
    kind = known_method(job)
    method = (job.method or {}).get(kind)
    part: dict[str, Any] = secrets.literal(method) if isinstance(method, dict) else {}
    if kind == "supervised" and not part.get("hyperparameters"):
        part["hyperparameters"] = secrets.literal(job.hyperparameters or {})
    if isinstance(part.get("hyperparameters"), dict):
        part["hyperparameters"] = _hyperparameters(without_nulls(part["hyperparameters"]), notes)
    if isinstance(part.get("tools"), list):
        part["tools"] = [_tool(tool, i, secrets, notes) for i, tool in enumerate(part["tools"])]
    for name in ("grader", "held_out_grader"):
        if name in part:
            part[name] = _grader(part[name], name, secrets, notes)
    for i, guard in enumerate(part["guards"] if isinstance(part.get("guards"), list) else ()):
        if isinstance(guard, dict):
            guard["grader"] = _grader(guard.get("grader"), f"guards[{i}].grader", secrets, notes)
    if "session" in part:
        session = secrets.endpoint(part["session"], "session", "start_url", "end_url")
        part["session"] = _with_openai_timeouts(session, "session", notes)
    if part.pop("signing_secret", None) is not None:
        notes.append("signing_secret: left out, since no API shows it; set it again if your server checks it")
    if secrets.without_headers:
        notes.append(
            f"{one_line(', '.join(secrets.without_headers))}: no headers are known, since the API shows none; if your "
            'server wants a key, add headers: {Authorization: "Bearer ${TOOL_KEY}"}'
        )
    return {"type": kind, kind: without_nulls(part)}  # at the end: of headers there may be only the names


def _hyperparameters(given: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    set_there = {name: cut(one_line(str(value)), 40) for name, value in given.items() if value not in UNSET}
    if same := [f"{name} {set_there[name]}" for name in SAME if name in set_there]:
        notes.append(f"{', '.join(same)}: kept, and they mean the same; auto chooses for the model here")
    if (compute := set_there.get("compute_multiplier")) is not None:
        notes.append(f"compute_multiplier {compute}: kept; 1 means eight rollouts for each row here")
    if (effort := set_there.get("reasoning_effort")) in THINKING_TOKENS:
        notes.append(
            f"reasoning_effort {effort}: kept; at most {THINKING_TOKENS[effort]:,} thinking tokens a turn here"
        )
    if (rate := set_there.get("learning_rate_multiplier")) is not None:
        notes.append(f"learning_rate_multiplier was {rate} and is auto now: it scaled another model's learning rate")
        return given | {"learning_rate_multiplier": "auto"}
    return given


def _tool(tool: Any, index: int, secrets: Secrets, notes: list[str]) -> Any:
    if not isinstance(tool, dict):
        return tool
    unknown = [name for name in tool if name not in ToolSpec.model_fields]
    if unknown:
        names = ", ".join(one_line(str(name)) for name in unknown)
        notes.append(f"tools[{index}]: left out {names}, which may be secret; add what your server needs")
    known = {name: value for name, value in tool.items() if name not in unknown}
    place = f"tools[{index}]"
    return _with_openai_timeouts(secrets.endpoint(known, place, "server_url"), place, notes)


def _grader(grader: Any, place: str, secrets: Secrets, notes: list[str]) -> Any:
    if not isinstance(grader, dict):
        return grader
    if grader.get("type") == "endpoint":
        return _with_openai_timeouts(secrets.endpoint(grader, place, "url"), place, notes)
    parts = grader.get("graders")
    if grader.get("type") == "multi" and isinstance(parts, dict):
        if isinstance(parts.get("type"), str):  # a single grader, as the SDK's types have it
            parts = {str(parts.get("name") or parts["type"]): parts}
        return grader | {
            "graders": {name: _grader(part, f"{place}.graders.{name}", secrets, notes) for name, part in parts.items()}
        }
    return grader


def _with_openai_timeouts(endpoint: Any, place: str, notes: list[str]) -> Any:
    """Return an endpoint whose calls take at most as long as OpenAI's; each change adds a note."""
    if not isinstance(endpoint, dict):
        return endpoint
    longer = {
        name: value
        for name in ("timeout_s", "attempt_timeout_s")
        if isinstance(value := endpoint.get(name), int | float) and value > TRIAL_CALL_S
    }
    for name, value in longer.items():
        notes.append(
            f"{one_line(place)}.{name} was {cut(str(value), 40)} and is {TRIAL_CALL_S:g} now, the limit at OpenAI; "
            f"you can raise it in the job file, to at most {MAX_TIMEOUT_S}"
        )
    return endpoint | dict.fromkeys(longer, TRIAL_CALL_S)


# -- its form ----------------------------------------------------------------------------------------------------------


def _valid(raw: dict[str, Any], secrets: Secrets, notes: list[str]) -> JobSpec:
    """The job that `raw` is, after unknown keys were removed from it and named.

    Raises:
        InvalidJob: It has other mistakes.
    """
    variables = Variables(_stand_ins(secrets))
    while True:
        source = ParsedFile("job", raw, Lines(None))
        spec, found = validate(JobSpec, variables.fill_in(raw, ()), source, variables)
        if spec is not None:
            return spec
        unknown = [path for path, problem in found if problem.code == "invalid_extra_forbidden"]
        if len(unknown) < len(found):
            raise invalid_job([problem for path, problem in found if path not in unknown])
        for path in unknown:
            _remove(raw, path)
            notes.append(f"{one_line(field_name(path))}: left out, since there is no such setting here")


def _remove(raw: Any, path: KeyPath) -> None:
    for key in path[:-1]:
        raw = raw[key]
    del raw[path[-1]]


def _stand_ins(secrets: Secrets) -> dict[str, str]:
    """A value for each variable, with which the form can be checked."""
    return {name: "$" if name == DOLLAR else "x" for name in secrets.needed}


def _check(reinforcement: Reinforcement, written: Mapping[str, Any], notes: list[str]) -> None:
    """Check what a job's form alone does not show; which addresses are allowed is the operator's to say.

    Raises:
        InvalidJob: Something is wrong with the graders or the tools.
    """
    models = {name: ModelEndpoint(base_url=judge["base_url"]) for name, judge in written.get("models", {}).items()}
    problems = endpoint_problems(reinforcement, Operator(models=models))
    forbidden = [problem for problem in problems if problem.code == "forbidden_address"]
    if len(forbidden) < len(problems):
        raise invalid_job([problem for problem in problems if problem not in forbidden])
    places: dict[tuple[str, str], list[str]] = {}
    for problem in forbidden:
        field = problem.field.removeprefix("method.reinforcement.")
        places.setdefault((problem.message, problem.remedy), []).append(field)
    notes += [
        f"{', '.join(fields)}: {message}; for `agent-rft serve` and shared clusters, {remedy}"
        for (message, remedy), fields in places.items()
    ]


# -- judges and python graders -----------------------------------------------------------------------------------------


def _judges(reinforcement: Reinforcement, secrets: Secrets, notes: list[str]) -> dict[str, Any]:
    """The operator's `models` for the job's judges, which stay where they are until the user changes that."""
    models: dict[str, Any] = {}
    for _, grader in graders_of(reinforcement):
        judge = {"base_url": OPENAI, "api_key": "${OPENAI_API_KEY}"}
        if isinstance(grader, TextSimilarityGrader) and grader.evaluation_metric == "cosine":
            models[grader.model] = judge | {"model": EMBEDDINGS}
        elif isinstance(grader, ScoreModelGrader | LabelModelGrader):
            models[grader.model] = judge
    for name in models:
        notes.append(
            f"the judge {one_line(name)!r} is still OpenAI's, and costs there; to take another, change models in "
            "agent-rft.yaml"
        )
    if models:
        secrets.needed["OPENAI_API_KEY"] = "the key of the judges; that of the import, if it is still set"
    return models


def _python_notes(reinforcement: Reinforcement) -> Iterator[str]:
    for place, grader in graders_of(reinforcement):
        if isinstance(grader, PythonGrader) and len(grader.source) <= MAX_PARSED_CHARS:
            missing = sorted(
                imported_packages(ast.parse(grader.source)) - sys.stdlib_module_names - {"numpy", "agent_rft"}
            )
            if missing:
                yield f"{place}: imports {', '.join(missing)}; here it has numpy and the standard library only"


# -- the model, the rows and the state of the job ----------------------------------------------------------------------


def _cluster(job: WireJob, rows: Mapping[str, Converted], model: str | None, notes: list[str]) -> dict[str, Any]:
    """`model`, and what has to be set in `cluster` for it."""
    longest = max(found.longest_bytes for found in rows.values()) // BYTES_PER_TOKEN
    context = longest + RolloutLimits.model_fields["max_completion_tokens"].default
    proposed = propose(_base(job.model), context, tools=any(found.has_tools for found in rows.values()))
    old = one_line(job.model)
    if job.model.startswith("ft:"):
        notes.append(
            f"the start model {old} was tuned at OpenAI; its weights stay there, so the start is an open model"
        )
    if model is None:
        facts = f"{proposed.billions:.2g}B parameters, {proposed.context:,} tokens of context, {proposed.licence}"
        notes.append(f"model: {proposed.name} in place of {old} ({facts}); a guess from the name, so try two sizes")
    found: dict[str, Any] = {"model": model or proposed.name}
    if context > USUAL_CONTEXT:
        found["context_length"] = min(proposed.context, -(-context // 1024) * 1024)
        notes.append(
            f"cluster.context_length is {found['context_length']:,}: the longest row has about {longest:,} tokens"
        )
    return found


def _row_notes(rows: Mapping[str, Converted]) -> Iterator[str]:
    for name, found in rows.items():
        if found.num_joined:
            yield f"{ROWS[name]}: the texts of contents in parts are joined, in {found.num_joined} rows"
        if found.num_unweighted:
            yield (
                f"{ROWS[name]}: {found.num_unweighted} rows have messages with weight 0; here all of the assistant's "
                "messages are trained"
            )


def _state_notes(job: WireJob) -> Iterator[str]:
    if job.status in NOT_ENDED:
        yield f"the job has not ended there ({job.status}): import it again later for its last checkpoints and events"
    elif job.status == "failed":
        why = f"{job.error.code}: {job.error.message}" if job.error is not None else "no reason is given"
        yield f"the job failed there ({cut(one_line(why), 300)}); agent-rft check may find the same mistake"
    elif job.status != "succeeded":
        yield f"the job is {one_line(job.status)} there: its checkpoints and events end early"
    if job.seed is not None and job.seed != job.seed % 2**31:
        yield f"seed was {job.seed}; here it is {job.seed % 2**31}, since seeds are below 2^31"


def _left_notes(job: WireJob) -> Iterator[str]:
    """What of the job is in no written setting."""
    if job.metadata:
        yield "metadata is not a setting of a job file; it is in imported.json, and jobs of the API take it"


def _integrations(job: WireJob, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The trackers that are here, with the keys that they have here; the others are named."""
    for given in job.integrations or ():
        match given:
            case {"type": "wandb", "wandb": dict(settings)}:
                notes.append("integrations: wandb is kept; set integrations.wandb.api_key in agent-rft.yaml")
                known = {name: settings.get(name) for name in WandbSettings.model_fields}
                yield {"type": "wandb", "wandb": without_nulls(known)}
            case _:
                notes.append("integrations: one that is not wandb is left out; see the list in the reference of jobs")


def _suffix(tuned: str | None) -> str | None:
    """The suffix in `ft:{base}:{org}:{suffix}:{id}`."""
    parts = (tuned or "").split(":")
    return parts[3] or None if len(parts) > 4 else None


def _undated(model: str) -> str:
    """The base without its date: as an alias it serves its dated forms too."""
    return re.sub(r"-\d{4}-\d\d-\d\d$", "", _base(model))


def _base(model: str) -> str:
    """The base of a tuned model's name, or the name itself."""
    return re.sub(r"^ft:([^:]+).*", r"\1", model)
