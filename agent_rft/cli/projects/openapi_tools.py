"""Conversion of the operations in an OpenAPI document (3.0 or 3.1) to tools, each with its HTTP request.

The arguments of a tool have the names of the operation's parameters. If the operation takes a JSON body, the tool has
an additional argument `body`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from agent_rft.cli.projects.openapi_document import SourceDocument, read_document
from agent_rft.cli.projects.project_tools import (
    MAX_PROBLEMS,
    NAME,
    NAME_RULE,
    ProjectTool,
    raise_problems,
    select_tools,
    trim_description,
)
from agent_rft.errors import InvalidJob, Problem, UserError
from agent_rft.spec.config_reader import KeyPath
from agent_rft.spec.schemas.json_schema import find_schema_problem
from agent_rft.spec.schemas.schema_inlining import inline_references
from agent_rft.spec.schemas.schema_limits import resolve_reference

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
READ_METHODS = ("get", "head", "options")
MAX_OPERATIONS = 5_000
MAX_URL_CHARS = 2_000
CODE = "unsupported_operation"
BODY = "body"
SERVER_HEADERS = {"accept", "content-type", "authorization", "cookie", "host", "content-length"}
OMIT_HINT = "or leave out this operation: give --tool NAME for each operation that you need"


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """Tool and the HTTP request that each call sends. `path` is appended to the API's URL."""

    tool: ProjectTool
    method: str
    path: str
    argument_places: Mapping[str, str]
    """Place of each argument in the HTTP request, by the argument's name: `path`, `query`, `header` or `body`."""


@dataclass(frozen=True, slots=True)
class ToolApi:
    """API at a URL, with its operations as tools."""

    url: str
    operations: tuple[ApiOperation, ...]


class _UnsupportedOperation(Exception):
    """Error about an operation that cannot be a tool."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_api(source: str | SourceDocument, requested: Sequence[str] = ()) -> ToolApi:
    """Read the API in an OpenAPI document. `source` is the document's path or URL, or the document itself.

    If `requested` is not empty, only the operations with these names are returned.

    Raises:
        UserError: The document cannot be read, or is not an OpenAPI document.
        InvalidJob: Some of the operations cannot be tools.
    """
    document = read_document(source) if isinstance(source, str) else source
    paths = _read_paths(document)
    what = f"{document.where} has operations that cannot be tools"
    found: dict[str, KeyPath] = {}
    problems: list[Problem] = []
    for number, (at, operation) in enumerate(_iter_operations(paths), start=1):
        if number > MAX_OPERATIONS:
            raise UserError(f"{document.where} has more than the limit of {MAX_OPERATIONS:,} operations")
        name = operation.get("operationId")
        if not requested and len(problems) <= MAX_PROBLEMS and (bad := _find_name_problem(document, at, name, found)):
            problems.append(bad)
        if isinstance(name, str):
            found.setdefault(name, at)
    if not found and not problems:
        raise UserError(f"{document.where} has no operations below `paths`")
    raise_problems(what, problems)
    names = select_tools(list(found), requested, "operation", document.where)
    operations = []
    for name in names:
        try:
            if bad := _find_name_problem(document, found[name], name, {}):
                raise _UnsupportedOperation(bad)
            operations.append(_OperationReader(document, name, found[name]).read())
        except _UnsupportedOperation as error:
            problems.append(error.problem)
    raise_problems(what, problems)
    return ToolApi(_api_url(document), tuple(operations))


def _read_paths(document: SourceDocument) -> Mapping[str, Any]:
    raw = document.raw
    if isinstance(raw, dict) and isinstance(raw.get("swagger"), str | float):
        raise UserError(
            f"{document.where} is Swagger {raw['swagger']}: convert it to OpenAPI 3, for example with swagger2openapi"
        )
    version = str(raw.get("openapi", "")) if isinstance(raw, dict) else ""
    if not re.match(r"3\.[0-9]", version):
        raise UserError(
            f"{document.where} is not an OpenAPI document: `openapi` must be 3.0 or 3.1, not {version[:20]!r}"
        )
    paths = raw.get("paths")
    if not isinstance(paths, dict):
        raise UserError(f"{document.where} has no object `paths`, which must contain the operations")
    return paths


def _iter_operations(paths: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    for path, item in paths.items():
        for method in METHODS:
            if isinstance(item, dict) and isinstance(operation := item.get(method), dict):
                yield ("paths", str(path), method), operation


def _find_name_problem(
    document: SourceDocument, at: KeyPath, name: Any, others: Mapping[str, KeyPath]
) -> Problem | None:
    proposed = re.sub(r"[^a-zA-Z0-9]+", "_", f"{at[2]}_{at[1]}" if name is None else str(name)).strip("_")[:64]
    if name is None:
        message, fix = "operationId, which names the tool, is missing", f"add operationId: {proposed}"
        return document.make_problem(CODE, at, message, f"{fix}, {OMIT_HINT}")
    where = (*at, "operationId")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        fix = f"write {proposed}, {OMIT_HINT}"
        return document.make_problem(CODE, where, f"{str(name)[:80]!r} is not a valid name: {NAME_RULE}", fix)
    if name in others:
        message = f"{name!r} is also the operationId of {others[name][2]} {others[name][1]}"
        return document.make_problem(CODE, where, message, "give each operation a different name")
    return None


def _api_url(document: SourceDocument) -> str:
    servers = document.raw.get("servers")
    first = servers[0] if isinstance(servers, list) and servers and isinstance(servers[0], dict) else {}
    url = str(first.get("url") or "/")
    variables = first.get("variables")
    for name, variable in variables.items() if isinstance(variables, dict) else ():
        default = str(variable.get("default", "") if isinstance(variable, dict) else "")
        if len(url) <= MAX_URL_CHARS:  # a default may contain many variables itself
            url = url.replace("{" + name + "}", default[: MAX_URL_CHARS + 1])
    if len(url) > MAX_URL_CHARS:
        message, fix = "the API's URL is too long", f"use at most {MAX_URL_CHARS:,} characters"
    elif not url.isprintable() or " " in url:
        message, fix = "the API's URL has spaces or control characters", "remove them"
    elif found := re.search("[@?#]", url):
        message = f"the API's URL must not contain {found[0]!r}: a user name, query or fragment may be secret"
        fix = "remove this part; to authenticate, set API_AUTHORIZATION in the environment of the project's server"
    elif (absolute := _absolute_url(document.where, url)) is None:
        message = f"the API's URL is {url[:200]!r}, which is not absolute"
        fix = "add servers: [{url: https://api.example.com/v1}]"
    else:
        return absolute.rstrip("/")
    at: KeyPath = ("servers", 0, "url") if first else ()
    raise InvalidJob(
        f"{document.where} does not contain a usable URL of the API", [document.make_problem(CODE, at, message, fix)]
    )


def _absolute_url(where: str, url: str) -> str | None:
    """Return `url` resolved against the document's URL; None if the result is not a complete HTTP URL."""
    try:
        url = urljoin(where, url) if where.startswith(("http://", "https://")) else url
        parts = urlsplit(url)
    except ValueError:  # such as http://[
        return None
    return url if parts.scheme in ("http", "https") and parts.hostname and "{" not in url else None


class _OperationReader:
    """Reader of one operation of a document; `at` is the location of the operation in the document."""

    def __init__(self, document: SourceDocument, name: str, at: KeyPath) -> None:
        self._document = document
        self._name = name
        self._at = at

    def read(self) -> ApiOperation:
        """Return the operation as a tool.

        Raises:
            _UnsupportedOperation: The operation cannot be a tool.
        """
        _, path, method = map(str, self._at)
        if not path.startswith("/") or not path.isprintable():
            message = f"the operation's path {path[:200]!r} cannot be appended to the API's URL"
            raise self._make_error(self._at, message, "begin the path with /, and use no control characters")
        if len(path) > MAX_URL_CHARS:
            message = f"the operation's path has {len(path):,} characters"
            raise self._make_error(self._at, message, f"use at most {MAX_URL_CHARS:,}")
        item = self._document.raw["paths"][path]
        raw = item[method]
        properties: dict[str, Any] = {}
        required: list[str] = []
        places: dict[str, str] = {}
        for (name, place), (at, parameter) in self._parameters(item, raw).items():
            if place == "cookie" or (place == "header" and name.lower() in SERVER_HEADERS):
                continue  # the project's server sets these, not the model
            schema = self._inline_references(parameter.get("schema", {"type": "string"}), (*at, "schema"))
            if text := parameter.get("description"):
                schema = {"description": trim_description(str(text)), **schema}
            properties[name], places[name] = schema, place
            if parameter.get("required") is True or place == "path":
                required.append(name)
        if missing := [name for name in re.findall(r"\{([^{}]*)\}", path) if places.get(name) != "path"]:
            message = f"the path contains {{{missing[0]}}}, but the operation has no such parameter"
            raise self._make_error(self._at, message, f"add {{name: {missing[0]}, in: path}} to its parameters")
        self._add_body(raw, properties, required, places)
        parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        if (bad := find_schema_problem(parameters)) is not None:
            raise self._make_error(self._at, f"its arguments at {bad.location}: {bad.message}", bad.fix)
        texts = (str(raw[key]) for key in ("summary", "description") if raw.get(key))
        text = trim_description("\n".join(dict.fromkeys(texts)))
        tool = ProjectTool(self._name, text or f"{method.upper()} {path}", parameters, method not in READ_METHODS)
        return ApiOperation(tool, method.upper(), path, places)

    def _parameters(
        self, item: Mapping[str, Any], raw: Mapping[str, Any]
    ) -> dict[tuple[str, str], tuple[KeyPath, Mapping[str, Any]]]:
        """Return the operation's parameters, each with its key path, keyed by (`name`, `in`)."""
        found: dict[tuple[str, str], tuple[KeyPath, Mapping[str, Any]]] = {}
        for start, owner in ((self._at[:2], item), (self._at, raw)):
            parameters = owner.get("parameters")
            for i, parameter in enumerate(parameters if isinstance(parameters, list) else ()):
                at, value = self._resolve((*start, "parameters", i), parameter)
                name, place = value.get("name"), value.get("in")
                if not isinstance(name, str) or place not in ("path", "query", "header", "cookie"):
                    message = "`name` of a parameter must be a string, and `in` must be path, query, header or cookie"
                    raise self._make_error(at, message, "correct the parameter")
                found[name, place] = at, value
        return found

    def _add_body(
        self, raw: Mapping[str, Any], properties: dict[str, Any], required: list[str], places: dict[str, str]
    ) -> None:
        if "requestBody" not in raw:
            return
        at, body = self._resolve((*self._at, "requestBody"), raw["requestBody"])
        content = body.get("content")
        types = [str(name) for name in content] if isinstance(content, dict) else []
        kind = next((name for name in types if re.match(r"application/([\w.+-]+\+)?json\b", name)), None)
        if kind is None or not isinstance(content, dict):
            if body.get("required") is not True:
                return
            message = f"the content type of its body is {', '.join(types)[:100] or 'missing'}; only JSON is supported"
            raise self._make_error((*at, "content"), message, f"describe it as application/json, {OMIT_HINT}")
        if BODY in properties:
            raise self._make_error(
                at, f"a parameter has the name {BODY}, which is reserved for the JSON body", OMIT_HINT[3:]
            )
        media = content[kind] if isinstance(content[kind], dict) else {}
        properties[BODY] = self._inline_references(media.get("schema", {}), (*at, "content", kind, "schema"))
        places[BODY] = "body"
        if body.get("required") is True:
            required.append(BODY)

    def _resolve(self, at: KeyPath, value: Any) -> tuple[KeyPath, Mapping[str, Any]]:
        """Return `(at, value)` or, if `value` is a `$ref`, the location and value of the target."""
        if isinstance(value, dict) and "$ref" in value:
            found = resolve_reference(self._document.raw, str(value["$ref"]))
            if found is None or not isinstance(found[1], dict) or "$ref" in found[1]:
                fix = "refer to a value in this document, such as #/components/parameters/name"
                raise self._make_error((*at, "$ref"), f"{str(value['$ref'])[:200]!r} cannot be resolved", fix)
            return found
        if not isinstance(value, dict):
            raise self._make_error(at, "must be an object", "write an object")
        return at, value

    def _inline_references(self, schema: Any, at: KeyPath) -> dict[str, Any]:
        found, error = inline_references(schema, self._document.raw, at)
        if found is None:
            assert error is not None
            raise self._make_error(error.path, error.message, error.fix)
        return found

    def _make_error(self, at: KeyPath, message: str, fix: str) -> _UnsupportedOperation:
        return _UnsupportedOperation(self._document.make_problem(CODE, at, f"operation {self._name!r}: {message}", fix))
