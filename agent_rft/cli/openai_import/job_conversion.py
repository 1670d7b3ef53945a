"""Conversion of an OpenAI job into a job file and an operator configuration, with notes on the differences.

Values that agent-rft does not support are omitted and listed in the notes. The result is a valid job file without
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_rft.actors.endpoints.http_response import truncate
from agent_rft.actors.grading.grader_factory import iterate_graders
from agent_rft.cli.openai_import.export_source import ROWS
from agent_rft.cli.openai_import.open_models import propose_model
from agent_rft.cli.openai_import.openai_objects import OpenAIJob
from agent_rft.cli.openai_import.openai_source import OPENAI, to_one_line
from agent_rft.cli.openai_import.row_conversion import ConvertedRows
from agent_rft.cli.openai_import.secret_variables import DOLLAR, SecretVariables
from agent_rft.cluster.checks.endpoint_checks import check_endpoints
from agent_rft.cluster.checks.offline_checks import make_invalid_job
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.config_reader import (
    KeyPath,
    LineNumbers,
    ParsedFile,
    Variables,
    drop_nulls,
    format_key_path,
    validate,
)
from agent_rft.spec.endpoints import MAX_TIMEOUT_S, MAX_TRIAL_CALL_S, ToolSpec
from agent_rft.spec.graders import LabelModelGrader, ScoreModelGrader, TextSimilarityGrader
from agent_rft.spec.job import JobSpec, Reinforcement, RolloutLimits
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from agent_rft.spec.step_plan import REASONING_TOKENS
from agent_rft.spec.trackers import WandbSettings

EMBEDDINGS = "text-embedding-3-large"
"""Embedding model for graders with the metric `cosine`. OpenAI's graders do not name an embedding model."""
MAX_AUTO_CONTEXT = 16_384
"""Maximum context length that `cluster.context_length: auto` selects."""
BYTES_PER_TOKEN = 4
UNSET_VALUES = ("auto", "default")
SAME_MEANING = ("batch_size", "n_epochs", "eval_interval", "eval_samples")
"""Hyperparameters with the same meaning in agent-rft."""
UNFINISHED_STATUSES = ("validating_files", "queued", "running", "paused")


@dataclass(slots=True)
class JobConversion:
    """Result of the conversion of a job, with notes on differences.

    Attributes:
        job: Content of `job.yaml`.
        operator: Content of `agent-rft.yaml`.
        variables: Purpose of each environment variable that the user must set, by name.
        notes: Differences between the job at OpenAI and the converted job.
    """

    job: dict[str, Any]
    operator: dict[str, Any]
    variables: dict[str, str]
    notes: list[str] = field(default_factory=list)


def convert_job(job: OpenAIJob, rows: Mapping[str, ConvertedRows], model: str | None) -> JobConversion:
    """Convert a job of OpenAI's API into a job file and an operator configuration.

    Args:
        job: The job at OpenAI.
        rows: Converted rows, keyed by the setting that refers to the row file, such as training_file.
        model: Base model for the job file; None to propose a model.

    Raises:
        InvalidJob: The job uses a feature that agent-rft does not support.
    """
    secrets = SecretVariables()
    notes = list(_state_notes(job))
    cluster = _choose_model(job, rows, model, notes)
    notes += _row_notes(rows)
    method = _convert_method(job, secrets, notes)
    raw: dict[str, Any] = {"model": cluster.pop("model")}
    raw |= {name: ROWS[name] for name in ROWS if name in rows}
    if job.seed is not None:
        raw["seed"] = job.seed % 2**31
    if suffix := job.user_provided_suffix or _parse_suffix(job.fine_tuned_model):
        raw["suffix"] = secrets.escape(suffix)
    raw["method"] = method
    if integrations := list(_convert_integrations(job, notes)):
        raw["integrations"] = secrets.escape(integrations)
    if cluster:
        raw["cluster"] = cluster
    spec = _validate(raw, secrets, notes)
    operator: dict[str, Any] = {"aliases": dict.fromkeys((_strip_date(job.model), raw["model"]), raw["model"])}
    if spec.method.type == "reinforcement":
        if judges := _configure_judges(spec.reinforcement, secrets, notes):
            operator["models"] = judges
        _check_endpoints(spec.reinforcement, operator, notes)
    notes += _metadata_notes(job)
    return JobConversion(raw, operator, secrets.purposes, notes)


# -- the method --------------------------------------------------------------------------------------------------------


def get_supported_method(job: OpenAIJob) -> str:
    """Return the type of the job's method: reinforcement or supervised.

    Raises:
        InvalidJob: The method is not supported.
    """
    kind = (job.method or {"type": "supervised"}).get("type")
    if kind in ("reinforcement", "supervised"):
        return str(kind)
    fix = (
        "export the job, change the method and the rows in the export, and import the export with --from. To train on "
        "the preferred answers, use the method supervised. Or use reinforcement with a grader that prefers these "
        "answers"
    )
    message = f"is {str(kind)[:40]!r}; only reinforcement and supervised are supported"
    raise InvalidJob("the job cannot be imported", [Problem("unsupported_method", "method.type", message, fix)])


def _convert_method(job: OpenAIJob, secrets: SecretVariables, notes: list[str]) -> dict[str, Any]:
    kind = get_supported_method(job)
    method = (job.method or {}).get(kind)
    part: dict[str, Any] = secrets.escape(method) if isinstance(method, dict) else {}
    if kind == "supervised" and not part.get("hyperparameters"):
        part["hyperparameters"] = secrets.escape(job.hyperparameters or {})
    if isinstance(part.get("hyperparameters"), dict):
        part["hyperparameters"] = _convert_hyperparameters(drop_nulls(part["hyperparameters"]), notes)
    if isinstance(part.get("tools"), list):
        part["tools"] = [_convert_tool(tool, i, secrets, notes) for i, tool in enumerate(part["tools"])]
    for name in ("grader", "held_out_grader"):
        if name in part:
            part[name] = _convert_grader(part[name], name, secrets, notes)
    for i, guard in enumerate(part["guards"] if isinstance(part.get("guards"), list) else ()):
        if isinstance(guard, dict):
            guard["grader"] = _convert_grader(guard.get("grader"), f"guards[{i}].grader", secrets, notes)
    if "session" in part:
        session = secrets.replace_secrets(part["session"], "session", "start_url", "end_url")
        part["session"] = _with_openai_timeouts(session, "session", notes)
    if part.pop("signing_secret", None) is not None:
        notes.append(
            "signing_secret: omitted, because the API does not return it; set it if your server checks signatures"
        )
    if secrets.without_headers:
        notes.append(
            f"{to_one_line(', '.join(secrets.without_headers))}: headers are missing, because the API does not "
            "return them; "
            'if your server requires a key, add headers: {Authorization: "Bearer ${TOOL_KEY}"}'
        )
    return {"type": kind, kind: drop_nulls(part)}  # at the end, because a header's value may be null until then


def _convert_hyperparameters(values: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    set_values = {
        name: truncate(to_one_line(str(value)), 40) for name, value in values.items() if value not in UNSET_VALUES
    }
    if same := [f"{name} {set_values[name]}" for name in SAME_MEANING if name in set_values]:
        notes.append(f"{', '.join(same)}: imported unchanged; to let agent-rft choose a value, set it to auto")
    if (compute := set_values.get("compute_multiplier")) is not None:
        notes.append(
            f"compute_multiplier {compute}: imported unchanged; in agent-rft, the value 1 means eight rollouts per row"
        )
    if (effort := set_values.get("reasoning_effort")) in REASONING_TOKENS:
        notes.append(
            f"reasoning_effort {effort}: imported; allows up to {REASONING_TOKENS[effort]:,} reasoning tokens per turn"
        )
    if (rate := set_values.get("learning_rate_multiplier")) is not None:
        notes.append(
            f"learning_rate_multiplier: changed from {rate} to auto, because {rate} was chosen for another model"
        )
        return values | {"learning_rate_multiplier": "auto"}
    return values


def _convert_tool(tool: Any, index: int, secrets: SecretVariables, notes: list[str]) -> Any:
    if not isinstance(tool, dict):
        return tool
    unknown = [name for name in tool if name not in ToolSpec.model_fields]
    if unknown:
        names = ", ".join(to_one_line(str(name)) for name in unknown)
        notes.append(
            f"tools[{index}]: omitted {names}, because the values may be secret; if your server requires these keys, "
            "add them to the tool in job.yaml"
        )
    known = {name: value for name, value in tool.items() if name not in unknown}
    place = f"tools[{index}]"
    return _with_openai_timeouts(secrets.replace_secrets(known, place, "server_url"), place, notes)


def _convert_grader(grader: Any, place: str, secrets: SecretVariables, notes: list[str]) -> Any:
    if not isinstance(grader, dict):
        return grader
    if grader.get("type") == "endpoint":
        return _with_openai_timeouts(secrets.replace_secrets(grader, place, "url"), place, notes)
    parts = grader.get("graders")
    if grader.get("type") == "multi" and isinstance(parts, dict):
        if isinstance(parts.get("type"), str):  # a single grader, as the SDK's types define it
            parts = {str(parts.get("name") or parts["type"]): parts}
        return grader | {
            "graders": {
                name: _convert_grader(part, f"{place}.graders.{name}", secrets, notes) for name, part in parts.items()
            }
        }
    return grader


def _with_openai_timeouts(endpoint: Any, place: str, notes: list[str]) -> Any:
    """Return the endpoint with its timeouts lowered to OpenAI's limit, and add a note for each change."""
    if not isinstance(endpoint, dict):
        return endpoint
    longer = {
        name: value
        for name in ("timeout_s", "attempt_timeout_s")
        if isinstance(value := endpoint.get(name), int | float) and value > MAX_TRIAL_CALL_S
    }
    for name, value in longer.items():
        notes.append(
            f"{to_one_line(place)}.{name}: changed from {truncate(str(value), 40)} to OpenAI's limit of "
            f"{MAX_TRIAL_CALL_S:g}; you can raise the value in the job file to at most {MAX_TIMEOUT_S}"
        )
    return endpoint | dict.fromkeys(longer, MAX_TRIAL_CALL_S)


# -- schema ------------------------------------------------------------------------------------------------------------


def _validate(raw: dict[str, Any], secrets: SecretVariables, notes: list[str]) -> JobSpec:
    """Remove unknown keys from `raw`, add a note for each key, and return the validated job.

    Raises:
        InvalidJob: The job has problems other than unknown keys.
    """
    variables = Variables(_placeholder_values(secrets))
    while True:
        source = ParsedFile("job", raw, LineNumbers(None))
        spec, found = validate(JobSpec, variables.fill_in(raw, ()), source, variables)
        if spec is not None:
            return spec
        unknown = [path for path, problem in found if problem.code == "invalid_extra_forbidden"]
        if len(unknown) < len(found):
            raise make_invalid_job([problem for path, problem in found if path not in unknown])
        for path in unknown:
            _remove_key(raw, path)
            notes.append(f"{to_one_line(format_key_path(path))}: omitted, because agent-rft has no such setting")


def _remove_key(raw: Any, path: KeyPath) -> None:
    for key in path[:-1]:
        raw = raw[key]
    del raw[path[-1]]


def _placeholder_values(secrets: SecretVariables) -> dict[str, str]:
    """Return a placeholder value for each variable, for the schema check."""
    return {name: "$" if name == DOLLAR else "x" for name in secrets.purposes}


def _check_endpoints(reinforcement: Reinforcement, written: Mapping[str, Any], notes: list[str]) -> None:
    """Check the endpoints of graders and tools. Forbidden addresses become notes, because an operator may allow them.

    Missing imports become notes, too, because the package may be installed later.

    Raises:
        InvalidJob: The graders or tools have other problems.
    """
    models = {name: ModelEndpoint(base_url=judge["base_url"]) for name, judge in written.get("models", {}).items()}
    found = check_endpoints(reinforcement, OperatorConfig(models=models))
    problems = [problem for problem in found if problem.code != "missing_import"]
    notes += [
        f"{problem.field.removeprefix('method.reinforcement.')}: {problem.message}; {problem.fix}"
        for problem in found
        if problem.code == "missing_import"
    ]
    forbidden = [problem for problem in problems if problem.code == "forbidden_address"]
    if len(forbidden) < len(problems):
        raise make_invalid_job([problem for problem in problems if problem not in forbidden])
    places: dict[tuple[str, str], list[str]] = {}
    for problem in forbidden:
        field = problem.field.removeprefix("method.reinforcement.")
        places.setdefault((problem.message, problem.fix), []).append(field)
    notes += [
        f"{', '.join(fields)}: {message}; for `agent-rft serve` and shared clusters, {fix}"
        for (message, fix), fields in places.items()
    ]


# -- judges and python graders -----------------------------------------------------------------------------------------


def _configure_judges(reinforcement: Reinforcement, secrets: SecretVariables, notes: list[str]) -> dict[str, Any]:
    """Return the setting `models` of agent-rft.yaml, with OpenAI's API as the server of each judge in the job."""
    models: dict[str, Any] = {}
    for _, grader in iterate_graders(reinforcement):
        judge = {"base_url": OPENAI, "api_key": "${OPENAI_API_KEY}"}
        if isinstance(grader, TextSimilarityGrader) and grader.evaluation_metric == "cosine":
            models[grader.model] = judge | {"model": EMBEDDINGS}
        elif isinstance(grader, ScoreModelGrader | LabelModelGrader):
            models[grader.model] = judge
    for name in models:
        notes.append(
            f"the judge {to_one_line(name)!r} still runs at OpenAI, which charges for it; to use another judge, change "
            "models in agent-rft.yaml"
        )
    if models:
        secrets.purposes["OPENAI_API_KEY"] = "the API key for the judges, such as the key used for the import"
    return models


# -- the model, the rows and the state of the job ----------------------------------------------------------------------


def _choose_model(
    job: OpenAIJob, rows: Mapping[str, ConvertedRows], model: str | None, notes: list[str]
) -> dict[str, Any]:
    """Return the job's setting `model` and, if the rows are long, `context_length` for the section `cluster`."""
    longest = max(found.longest_bytes for found in rows.values()) // BYTES_PER_TOKEN
    context = longest + RolloutLimits.model_fields["max_completion_tokens"].default
    proposed = propose_model(_base_name(job.model), context, tools=any(found.has_tools for found in rows.values()))
    old = to_one_line(job.model)
    if job.model.startswith("ft:"):
        notes.append(
            f"the base model {old} was tuned at OpenAI, and its weights cannot be downloaded; training starts from an "
            "open model"
        )
    if model is None:
        size = f"{proposed.parameters_in_billions:.2g}B parameters"
        facts = f"{size}, {proposed.context_length:,} tokens of context, {proposed.license}"
        advice = "the model size is a guess, so also try a smaller or larger model"
        notes.append(f"model: {proposed.name} ({facts}) replaces {old}; {advice}")
    found: dict[str, Any] = {"model": model or proposed.name}
    if context > MAX_AUTO_CONTEXT:
        found["context_length"] = min(proposed.context_length, -(-context // 1024) * 1024)
        notes.append(
            f"cluster.context_length was set to {found['context_length']:,}, because the longest row has about "
            f"{longest:,} tokens"
        )
    return found


def _row_notes(rows: Mapping[str, ConvertedRows]) -> Iterator[str]:
    if num_developer := sum(found.num_developer for found in rows.values()):
        yield (
            f"{num_developer} rows have developer messages: if the model's chat template does not render them, "
            "they become system messages in training and in serving; no change is needed"
        )
    for name, found in rows.items():
        if found.num_joined:
            yield f"{ROWS[name]}: the text parts of a message were joined into one string in {found.num_joined} rows"


def _state_notes(job: OpenAIJob) -> Iterator[str]:
    if job.status in UNFINISHED_STATUSES:
        yield f"the job has not ended at OpenAI ({job.status}): import it again later to get all checkpoints and events"
    elif job.status == "failed":
        why = f"{job.error.code}: {job.error.message}" if job.error is not None else "no reason is given"
        yield f"the job failed at OpenAI ({truncate(to_one_line(why), 300)}); agent-rft check may find the same error"
    elif job.status != "succeeded":
        yield f"the job's status at OpenAI is {to_one_line(job.status)}: checkpoints and events may be incomplete"
    if job.seed is not None and job.seed != job.seed % 2**31:
        yield f"seed: changed from {job.seed} to {job.seed % 2**31}, because seeds must be below 2^31"


def _metadata_notes(job: OpenAIJob) -> Iterator[str]:
    """Yield a note if the job has metadata, because a job file has no setting for metadata."""
    if job.metadata:
        yield (
            "metadata: omitted, because job files have no such setting; imported.json contains the metadata, and jobs "
            "that are created with the API accept metadata"
        )


def _convert_integrations(job: OpenAIJob, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the supported trackers with their supported settings, and add a note for each tracker to `notes`."""
    for integration in job.integrations or ():
        match integration:
            case {"type": "wandb", "wandb": dict(settings)}:
                notes.append("integrations: wandb was imported; set trackers.wandb.api_key in agent-rft.yaml")
                supported = {name: settings.get(name) for name in WandbSettings.model_fields}
                yield {"type": "wandb", "wandb": drop_nulls(supported)}
            case _:
                notes.append(
                    "integrations: a tracker was omitted, because the import supports only wandb; for all trackers "
                    "that agent-rft supports, see `integrations` in the reference of the job file"
                )


def _parse_suffix(tuned: str | None) -> str | None:
    """Return the suffix in `ft:{base}:{org}:{suffix}:{id}`; None if the suffix is empty or missing."""
    parts = (tuned or "").split(":")
    return parts[3] or None if len(parts) > 4 else None


def _strip_date(model: str) -> str:
    """Return the base name of a model without a date suffix, such as `gpt-4o` for `gpt-4o-2024-08-06`."""
    return re.sub(r"-\d{4}-\d\d-\d\d$", "", _base_name(model))


def _base_name(model: str) -> str:
    """Return the base model in the name of a tuned model, such as `ft:{base}:...`; return other names unchanged."""
    return re.sub(r"^ft:([^:]+).*", r"\1", model)
