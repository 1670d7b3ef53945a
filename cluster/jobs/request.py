"""A request for a fine-tuning job, as the wire contract writes it -> JobSpec.

Every mistake of its form is a Problem whose field is the path in the request. Nothing is filled in from the server's
environment, and a model is a name that the registry knows, never a path.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, Field, GetJsonSchemaHandler, StrictInt, StrictStr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cluster.preflight.form_check import FILES, endpoint_problems
from cluster.records.redact import plain, public_job
from trainer.errors import InvalidJob, Problem, UserError
from trainer.spec.endpoints import Strict
from trainer.spec.job import ClusterSpec, JobSpec, Method
from trainer.spec.operator import Operator
from trainer.spec.reader import Lines, ParsedFile, Variables, validate

TRAINING_PURPOSES = ("fine-tune",)
LEGACY = ("batch_size", "n_epochs", "learning_rate_multiplier")

ShortText = Annotated[StrictStr, Field(max_length=64)]
FileId = Annotated[StrictStr, Field(min_length=1, max_length=128)]


class Described:
    """In an annotation: what is checked elsewhere is shown as `model` where the API is described."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self._model.__pydantic_core_schema__)


class WireJob(Strict):
    """The body of POST /fine_tuning/jobs. `test_file` and `cluster` are our own; `integrations` are ignored."""

    model: Annotated[StrictStr, Field(min_length=1, max_length=255)]
    training_file: FileId
    validation_file: FileId | None = None
    test_file: FileId | None = None
    method: Annotated[dict[str, Any], Described(Method)] | None = None
    hyperparameters: dict[str, Any] | None = None
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = None
    suffix: ShortText | None = None
    metadata: Annotated[dict[ShortText, Annotated[StrictStr, Field(max_length=512)]], Field(max_length=16)] | None = (
        None
    )
    integrations: list[Any] | None = None
    cluster: Annotated[dict[str, Any], Described(ClusterSpec)] | None = None


class KnownModel(Protocol):
    """What is needed of cluster.stores.model_registry.ModelRecord."""

    @property
    def folder(self) -> str: ...
    @property
    def base(self) -> str: ...


class ModelCatalog(Protocol):
    """What is needed of cluster.stores.model_registry.ModelRegistry. Raises UserError where there is no such model."""

    def resolve(self, model_id: str) -> KnownModel: ...


class File(Protocol):
    """What is needed of cluster.stores.file_store.FileRecord."""

    @property
    def purpose(self) -> str: ...


class Files(Protocol):
    """What is needed of cluster.stores.file_store.FileStore. Raises UserError where there is no such file."""

    def get(self, file_id: str) -> File: ...


@dataclass(frozen=True, slots=True)
class ApiJob:
    """A request that passed. `spec` names files by their ids; `secret_spec` is its JSON with all secrets, `method` the
    echo without any.
    """

    request: WireJob
    spec: JobSpec
    base: str
    secret_spec: str
    method: dict[str, Any]
    digest: str


def parse_api_job(body: Any, models: ModelCatalog, files: Files, operator: Operator) -> ApiJob:
    """Raises:
    InvalidJob: with what is wrong, as far as a request can be read without its files.
    """
    request = _validated(WireJob, body)
    raw: dict[str, Any] = {
        "model": request.model,
        "training_file": request.training_file,
        "validation_file": request.validation_file,
        "test_file": request.test_file,
        "seed": secrets.randbelow(2**31) if request.seed is None else request.seed,
        "suffix": request.suffix,
        "method": _method(request),
        "cluster": request.cluster,
    }
    raw = _without_nulls(raw)
    spec = _validated(JobSpec, raw)
    found = [*_switches(raw["method"]), *_sizes(spec)]
    if spec.method.type == "reinforcement":
        found += endpoint_problems(spec.reinforcement, operator)
    _refuse(found)
    model = _known_model(request.model, models)
    _refuse([p for name in FILES if (p := _file_problem(name, getattr(request, name), files)) is not None])
    raw["model"] = model.folder
    return ApiJob(
        request=request,
        spec=spec.model_copy(update={"model": model.folder}),
        base=model.base,
        secret_spec=json.dumps(raw),
        method=echo_of(spec, raw["method"]),
        digest=hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest(),
    )


def echo_of(spec: JobSpec, method: Mapping[str, Any]) -> dict[str, Any]:
    """`method` as the client gave it, with all hyperparameters and without secrets."""
    part = spec.method.type
    public: dict[str, Any] = plain(public_job(spec, exclude_unset=True))["method"]
    shown = public.setdefault(part, {})
    shown["hyperparameters"] = (
        spec.supervised if part == "supervised" else spec.reinforcement
    ).hyperparameters.model_dump(mode="json")
    if "response_format" in shown:  # the spec keeps its bare schema
        shown["response_format"] = plain(method[part]["response_format"])
    return public


def slug(text: str) -> str:
    """`text` as a part of a model's name, in which `:` parts and `/` is no part of a path."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-.")


def model_name(base: str, organization: str, suffix: str | None, job_id: str, step: int | None = None) -> str:
    """`ft:{base}:{org}:{suffix}:{id}`, and a checkpoint's."""
    name = f"ft:{base}:{slug(organization)}:{slug(suffix or '')}:{job_id.partition('-')[2]}"
    return name if step is None else f"{name}:ckpt-step-{step}"


# -- its form ----------------------------------------------------------------------------------------------------------


def _validated(model: Any, raw: Any) -> Any:
    if not isinstance(raw, dict):
        raise InvalidJob("no job", [Problem("invalid_type", "body", "is no JSON object", "send an object")])
    value, problems = validate(model, raw, ParsedFile("body", raw, Lines(None)), Variables({}))
    _refuse([problem for _, problem in problems])
    return value


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidJob(f"{len(problems)} mistake{'s' * (len(problems) != 1)} in the request", problems)


def _without_nulls(value: Any, key: str = "") -> Any:
    """Without keys whose value is null, which clients write for what they leave out. A schema's nulls are values."""
    if key == "response_format":
        return value
    if isinstance(value, dict):
        return {k: _without_nulls(v, k) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _method(request: WireJob) -> dict[str, Any]:
    """The method; a request without one, or with hyperparameters of its own, is the older form of supervised jobs."""
    method = dict(request.method or {"type": "supervised"})
    if request.hyperparameters:
        supervised = method.get("supervised") or {}
        if method.get("type") != "supervised" or (isinstance(supervised, dict) and supervised.get("hyperparameters")):
            remedy = "give them in method only"
            raise InvalidJob("twice", [Problem("two_places", "hyperparameters", "stand beside method's", remedy)])
        for name in request.hyperparameters:
            if name not in LEGACY:
                message = f"is none of {', '.join(LEGACY)}"
                raise InvalidJob("unknown", [Problem("unknown_key", f"hyperparameters.{name}", message, "remove it")])
        if isinstance(supervised, dict):
            method["supervised"] = supervised | {"hyperparameters": request.hyperparameters}
    return method


def _switches(method: Mapping[str, Any]) -> list[Problem]:
    """True and false where a number belongs, which Python would take for 1 and 0."""
    problems = []
    for part in ("reinforcement", "supervised"):
        values = (method.get(part) or {}).get("hyperparameters") or {}
        for name, value in values.items():
            if isinstance(value, bool):
                field = f"method.{part}.hyperparameters.{name}"
                problems.append(Problem("invalid_type", field, "is true or false", "give a number or auto"))
    return problems


MOST = {"batch_size": 100_000, "n_epochs": 1_000, "eval_interval": 1_000_000, "eval_samples": 1_000}
MOST_SCALE = 1_000.0
"""Of a multiplier. Larger numbers are slips of the hand; some are too large for a plan to be computed."""


def _sizes(spec: JobSpec) -> list[Problem]:
    """Hyperparameters far beyond any use."""
    part = spec.method.type
    values = (spec.supervised if part == "supervised" else spec.reinforcement).hyperparameters.model_dump()
    problems = []
    for name, value in values.items():
        most = MOST.get(name, MOST_SCALE)
        if isinstance(value, int | float) and value > most:
            field = f"method.{part}.hyperparameters.{name}"
            problems.append(Problem("too_large", field, f"is over {most:,}", "give a smaller number or auto"))
    return problems


# -- what it names -----------------------------------------------------------------------------------------------------


def _known_model(name: str, models: ModelCatalog) -> KnownModel:
    try:
        return models.resolve(name)
    except UserError as error:
        message, remedy = str(plain(error.message)), "use a name of GET /v1/models"
        raise InvalidJob("unknown model", [Problem("model_not_found", "model", message, remedy)]) from error


def _file_problem(field: str, file_id: str | None, files: Files) -> Problem | None:
    if file_id is None:
        return None
    try:
        purpose = files.get(file_id).purpose
    except UserError:
        message = f"there is no file {file_id} on this server"
        return Problem("file_not_found", field, message, "upload it first: POST /v1/files with purpose fine-tune")
    if purpose not in TRAINING_PURPOSES:
        message = f"the file {file_id} has the purpose {purpose}"
        return Problem("invalid_purpose", field, message, "upload it with purpose fine-tune")
    return None
