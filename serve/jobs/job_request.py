"""Parser that turns the body of POST /fine_tuning/jobs into a JobSpec.

Each error is reported as a Problem, whose `field` is the path in the request. Variables of the server's environment are
never substituted. A model is an id in the registry, never a path.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, Field, GetJsonSchemaHandler, StrictInt, StrictStr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from agent_rft.actors.grading.grader_factory import iterate_graders, size_problems
from agent_rft.cluster.checks.endpoint_checks import check_early_stop, check_endpoints
from agent_rft.cluster.records.redaction import public_job, to_plain_json
from agent_rft.errors import InvalidJob, Problem, UserError
from agent_rft.serve.stores.file_store import FileRecord
from agent_rft.serve.stores.model_registry import ModelCatalog, ModelRecord
from agent_rft.spec.config_reader import LineNumbers, ParsedFile, Variables, drop_nulls, validate
from agent_rft.spec.endpoints import StrictModel
from agent_rft.spec.job import FILES, ClusterSpec, JobSpec, Method
from agent_rft.spec.model_options import ModelOptions
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.spec.trackers import Integrations

TRAINING_PURPOSES = ("fine-tune",)
LEGACY = ("batch_size", "n_epochs", "learning_rate_multiplier")

ShortText = Annotated[StrictStr, Field(max_length=64)]
FileId = Annotated[StrictStr, Field(min_length=1, max_length=128)]


class DescribedAs:
    """Annotation that gives a dict the OpenAPI schema of `model`. Other code validates the dict."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self._model.__pydantic_core_schema__)


class JobRequestBody(StrictModel):
    """The body of POST /fine_tuning/jobs. `test_file`, `cluster` and `model_options` are extensions of OpenAI's API."""

    model: Annotated[StrictStr, Field(min_length=1, max_length=255)]
    """Id of the model to train: a base model of the server (see GET /models), a tuned model or a checkpoint."""
    training_file: FileId
    """Id of an uploaded JSONL file with one task per line. Its purpose must be fine-tune."""
    validation_file: FileId | None = None
    """Id of a file that is evaluated before the first step and at intervals, to decide which checkpoints are kept."""
    test_file: FileId | None = None
    """Id of a file that is evaluated before and after training. It does not influence training."""
    method: Annotated[dict[str, Any], DescribedAs(Method)] | None = None
    """Training method. If omitted, the job is supervised and uses the request's top-level `hyperparameters`."""
    hyperparameters: dict[str, Any] | None = None
    """Legacy field for a supervised job's `batch_size`, `n_epochs` and `learning_rate_multiplier`."""
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = None
    """Seed for row order and sampling. The default is a random seed, which the job object contains."""
    suffix: ShortText | None = None
    """Part of the name of the tuned model, `ft:{base}:{organization}:{suffix}:{id}`."""
    metadata: Annotated[dict[ShortText, Annotated[StrictStr, Field(max_length=512)]], Field(max_length=16)] | None = (
        None
    )
    """Up to 16 key-value pairs, returned with the job; keys up to 64 characters, values up to 512."""
    integrations: Annotated[Integrations, BeforeValidator(drop_nulls)] | None = None
    """Trackers that receive the job's metrics. An event reports trackers that the operator has not set up."""
    cluster: Annotated[dict[str, Any], DescribedAs(ClusterSpec)] | None = None
    """Resources of the job, within the operator's limits."""
    model_options: Annotated[dict[str, Any], DescribedAs(ModelOptions)] | None = None
    """Options for the model's conversation syntax. Here, `chat_template` is the template itself, not a path."""


class FileLookup(Protocol):
    """Interface for finding files. Implemented by agent_rft.serve.stores.file_store.FileStore."""

    def get(self, file_id: str) -> FileRecord:
        """Return the record of a file.

        Raises:
            UserError: The file does not exist.
        """


@dataclass(frozen=True, slots=True)
class ApiJob:
    """Valid request for a job.

    `spec` has file ids instead of paths. `secret_spec` is `spec` as JSON, including secrets. `method`, `model_options`
    and `integrations` contain no secrets and are returned in responses.
    """

    request: JobRequestBody
    spec: JobSpec
    base: str
    secret_spec: str
    method: dict[str, Any]
    model_options: dict[str, Any] | None
    integrations: list[dict[str, Any]]
    digest: str


def parse_api_job(body: Any, models: ModelCatalog, files: FileLookup, operator: OperatorConfig) -> ApiJob:
    """Parse a request body, and find the requested model in `models`. The requested data files are not read.

    Raises:
        InvalidJob: The request is invalid. The error contains all problems that were found.
    """
    request = _validate(JobRequestBody, body)
    integrations = [integration.model_dump(mode="json") for integration in request.integrations or ()]
    raw: dict[str, Any] = {
        "model": request.model,
        "training_file": request.training_file,
        "validation_file": request.validation_file,
        "test_file": request.test_file,
        "seed": secrets.randbelow(2**31) if request.seed is None else request.seed,
        "suffix": request.suffix,
        "method": _build_method(request),
        "cluster": request.cluster,
        "model_options": request.model_options,
        "integrations": integrations,
    }
    raw = drop_nulls(raw)
    spec = _validate(JobSpec, raw)
    found = [*_find_boolean_problems(raw["method"]), *_find_size_problems(spec)]
    if spec.method.type == "reinforcement":
        found += check_early_stop(spec)
        found += size_problems(list(iterate_graders(spec.reinforcement))) or check_endpoints(
            spec.reinforcement, operator
        )
    _raise_problems(found)
    model = _resolve_model(request.model, models)
    _raise_problems([p for name in FILES if (p := _find_file_problem(name, getattr(request, name), files)) is not None])
    raw["model"] = model.folder
    return ApiJob(
        request=request,
        spec=spec.model_copy(update={"model": model.folder}),
        base=model.base,
        secret_spec=json.dumps(raw),
        method=make_echo(spec, raw["method"]),
        model_options=spec.model_options.model_dump(mode="json", exclude_unset=True) or None,
        integrations=integrations,
        digest=hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest(),
    )


def make_echo(spec: JobSpec, method: Mapping[str, Any]) -> dict[str, Any]:
    """Return `method` as the client sent it, with default hyperparameters added and secrets redacted."""
    part = spec.method.type
    public: dict[str, Any] = to_plain_json(public_job(spec, exclude_unset=True))["method"]
    shown = public.setdefault(part, {})
    shown["hyperparameters"] = (
        spec.supervised if part == "supervised" else spec.reinforcement
    ).hyperparameters.model_dump(mode="json")
    if "response_format" in shown:  # the spec holds only the schema inside it
        shown["response_format"] = to_plain_json(method[part]["response_format"])
    return public


def to_slug(text: str) -> str:
    """Return `text` for use in a model id. All characters except letters, digits, `_`, `.` and `-` are replaced."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-.")


def make_model_id(base: str, organization: str, suffix: str | None, job_id: str, step: int | None = None) -> str:
    """Return the id of a tuned model, `ft:{base}:{org}:{suffix}:{id}`, or of a checkpoint, `...:ckpt-step-{step}`."""
    name = f"ft:{base}:{to_slug(organization)}:{to_slug(suffix or '')}:{job_id.partition('-')[2]}"
    return name if step is None else f"{name}:ckpt-step-{step}"


# -- schema of the request ---------------------------------------------------------------------------------------------


def _validate(model: Any, raw: Any) -> Any:
    if not isinstance(raw, dict):
        problem = Problem("invalid_type", "body", "must be a JSON object", "send an object")
        raise InvalidJob("the request is invalid", [problem])
    value, problems = validate(model, raw, ParsedFile("body", raw, LineNumbers(None)), Variables({}))
    _raise_problems([problem for _, problem in problems])
    return value


def _raise_problems(problems: list[Problem]) -> None:
    if problems:
        raise InvalidJob(f"{len(problems)} problem{'s' * (len(problems) != 1)} in the request", problems)


def _build_method(request: JobRequestBody) -> dict[str, Any]:
    """Return the request's method (default: supervised), with the legacy `hyperparameters` added."""
    method = dict(request.method or {"type": "supervised"})
    if request.hyperparameters:
        supervised = method.get("supervised") or {}
        if method.get("type") != "supervised" or (isinstance(supervised, dict) and supervised.get("hyperparameters")):
            message = "is allowed only for supervised jobs, and only if method has no hyperparameters"
            problem = Problem(
                "duplicate_hyperparameters", "hyperparameters", message, "give all hyperparameters in method"
            )
            raise InvalidJob("the request is invalid", [problem])
        for name in request.hyperparameters:
            if name not in LEGACY:
                problem = Problem(
                    "unknown_key", f"hyperparameters.{name}", f"must be one of {', '.join(LEGACY)}", "remove it"
                )
                raise InvalidJob("the request is invalid", [problem])
        if isinstance(supervised, dict):
            method["supervised"] = supervised | {"hyperparameters": request.hyperparameters}
    return method


def _find_boolean_problems(method: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each hyperparameter that is true or false. Python would accept these values as 1 and 0."""
    problems = []
    for part in ("reinforcement", "supervised"):
        values = (method.get(part) or {}).get("hyperparameters") or {}
        for name, value in values.items():
            if isinstance(value, bool):
                field = f"method.{part}.hyperparameters.{name}"
                problems.append(Problem("invalid_type", field, "must not be a boolean", "give a number or auto"))
    return problems


MAX_VALUES = {"batch_size": 100_000, "n_epochs": 1_000, "eval_interval": 1_000_000, "eval_samples": 1_000}
MAX_MULTIPLIER = 1_000.0
"""Maximum value of hyperparameters that are not in MAX_VALUES. Larger values are typos."""


def _find_size_problems(spec: JobSpec) -> list[Problem]:
    """Return a problem for each hyperparameter that is too large to be intended."""
    part = spec.method.type
    values = (spec.supervised if part == "supervised" else spec.reinforcement).hyperparameters.model_dump()
    problems = []
    for name, value in values.items():
        bound = MAX_VALUES.get(name, MAX_MULTIPLIER)
        if isinstance(value, int | float) and value > bound:
            field = f"method.{part}.hyperparameters.{name}"
            problems.append(Problem("too_large", field, f"must be at most {bound:,}", "give a smaller number or auto"))
    return problems


# -- model and files of the request ------------------------------------------------------------------------------------


def _resolve_model(name: str, models: ModelCatalog) -> ModelRecord:
    try:
        return models.resolve(name)
    except UserError as error:
        problem = Problem("model_not_found", "model", str(to_plain_json(error.problem)), str(to_plain_json(error.fix)))
        raise InvalidJob("unknown model", [problem]) from error


def _find_file_problem(field: str, file_id: str | None, files: FileLookup) -> Problem | None:
    if file_id is None:
        return None
    try:
        purpose = files.get(file_id).purpose
    except UserError:
        message = f"the file {file_id} does not exist on this server"
        return Problem("file_not_found", field, message, "upload it first: POST /v1/files with purpose fine-tune")
    if purpose not in TRAINING_PURPOSES:
        message = f"the file {file_id} has the purpose {purpose}, not fine-tune"
        return Problem("invalid_purpose", field, message, "upload it with purpose fine-tune")
    return None
