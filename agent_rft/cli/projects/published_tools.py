"""Reader of published lists of tools: OpenAI's array, MCP's `tools/list`, BFCL, verl, and rows in JSONL.

Such a list describes tools without an implementation. Differences from JSON Schema are converted where their meaning is
clear, and are listed in the notes of the project.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rft.cli.projects.openapi_document import SourceDocument
from agent_rft.cli.projects.project_tools import (
    NAME,
    NAME_RULE,
    ProjectTool,
    raise_problems,
    select_tools,
    trim_description,
)
from agent_rft.errors import Problem, UserError
from agent_rft.rows.bounded_file import decode_utf8, read_bounded
from agent_rft.rows.dataset_rows import parse_row
from agent_rft.rows.row_schema import unwrap_item
from agent_rft.spec.config_reader import KeyPath, format_key_path
from agent_rft.spec.schemas.dataset_schemas import convert_dataset_schema
from agent_rft.spec.schemas.json_schema import find_schema_problem
from agent_rft.spec.schemas.schema_inlining import inline_references
from agent_rft.spec.schemas.schema_limits import SchemaRejected

CODE = "unsupported_tool"
MAX_ROWS_BYTES = 64 << 20
SCHEMA_KEYS = ("parameters", "inputSchema")
"""Keys that contain the JSON schema of a tool's arguments: `parameters` in OpenAI's format, `inputSchema` in MCP's."""
FORMATS = (
    "an OpenAI tools array, the result of MCP's tools/list, function documents of BFCL, a tool_config.yaml of verl, or "
    "rows in JSONL with the key `tools`"
)
_ROOT: KeyPath = ()
_TOOL_KEYS = {"name", "class_name", *SCHEMA_KEYS}
_ROW_KEYS = {"messages", "question"}
"""Keys that only rows have. An object with one of these keys is a row and not a tool, even if it has a `name`."""
OMIT_HINT = "or leave out this tool: give --tool NAME for each tool that you need"


@dataclass(frozen=True, slots=True)
class ToolList:
    """Tools of a published list, and notes on what was converted."""

    where: str
    tools: tuple[ProjectTool, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ListedTool:
    """Tool as it is written in a file.

    Attributes:
        path: Location of the tool in the document, or in its line if the file has one JSON value per line.
        line: Number of this line; None for a document.
    """

    raw: Any
    path: KeyPath
    line: int | None = None


@dataclass(slots=True)
class _ToolListReader:
    """Converts the tools of one list. `document` contains the list; None if the file has one JSON value per line."""

    where: str
    document: SourceDocument | None
    problems: list[Problem] = field(default_factory=list)
    changes: dict[str, list[str]] = field(default_factory=dict)
    """Maps the description of a change to the names of the tools that were changed in this way."""

    def add_problem(self, listed: _ListedTool, path: KeyPath, message: str, fix: str) -> None:
        path = (*listed.path, *path)
        if self.document is not None:
            self.problems.append(self.document.make_problem(CODE, path, message, fix))
        else:
            where = format_key_path(path)[:300] or "the line"
            self.problems.append(Problem(CODE, where, message, fix, self.where, listed.line))

    def read(self, listed: Sequence[_ListedTool], requested: Sequence[str]) -> ToolList:
        """Convert the requested tools.

        Raises:
            UserError: A requested tool does not exist, or there are too many tools.
            InvalidJob: Some of the tools cannot be used.
        """
        what = f"{self.where} has tools that cannot be used"
        versions: dict[str, list[tuple[_ListedTool, Mapping[str, Any], KeyPath]]] = {}
        seen: set[str] = set()
        for one in listed:
            if (found := self._find_function(one)) is None:
                continue
            written = json.dumps(found[0], sort_keys=True, default=str)
            if written not in seen:  # most rows repeat the tools of other rows
                seen.add(written)
                versions.setdefault(_get_name(found[0]), []).append((one, *found))
        if not requested:  # a requested tool may be next to tools that cannot be used
            raise_problems(what, self.problems)
        self.problems.clear()
        names = select_tools(list(versions), [_to_name(name) for name in requested], "tool", self.where)
        tools = [tool for name in names if (tool := self._convert_versions(name, versions[name])) is not None]
        raise_problems(what, self.problems)
        notes = (f"{change}: {_join_names(names)}" for change, names in self.changes.items())
        return ToolList(self.where, tuple(tools), tuple(notes))

    def _convert_versions(
        self, name: str, versions: Sequence[tuple[_ListedTool, Mapping[str, Any], KeyPath]]
    ) -> ProjectTool | None:
        """Return the tool with this name; None if its first definition in `versions` is invalid.

        Add a problem for each definition that is invalid or differs from the first.
        """
        first, *others = ((one, path, self._convert(one, function, path, name)) for one, function, path in versions)
        for one, path, tool in others:
            if tool is not None and first[2] is not None and tool != first[2]:
                at = f"line {first[0].line}" if first[0].line is not None else format_key_path(first[0].path)
                fix = f"rename one of the two tools, {OMIT_HINT}"
                self.add_problem(one, path, f"{name!r} is defined differently at {at}", fix)
        return first[2]

    def _find_function(self, listed: _ListedTool) -> tuple[Mapping[str, Any], KeyPath] | None:
        """Return (function, path) of a tool in any of the formats.

        If the tool has no function, add a problem and return None.
        """
        tool, path = listed.raw, _ROOT
        if isinstance(tool, dict) and "class_name" in tool:  # verl
            if not isinstance(tool.get("tool_schema"), dict):
                fix = "write the tool's schema below tool_schema, or give the result of the MCP server's tools/list"
                self.add_problem(listed, ("tool_schema",), "is missing", fix)
                return None
            tool, path = tool["tool_schema"], ("tool_schema",)
        if not isinstance(tool, dict):
            self.add_problem(listed, path, "must be an object", 'write {"type": "function", "function": {...}}')
            return None
        if (kind := tool.get("type")) not in (None, "function"):
            what = f"{kind[:40]!r} is not a supported type of tool" if isinstance(kind, str) else "must be a string"
            self.add_problem(listed, (*path, "type"), what, 'write "function", or remove the tool')
            return None
        if tool.get("function") is None:
            return tool, path
        if not isinstance(tool["function"], dict):
            self.add_problem(listed, (*path, "function"), "must be an object", 'write {"name": ..., "parameters": ...}')
            return None
        return tool["function"], (*path, "function")

    def _convert(
        self, listed: _ListedTool, function: Mapping[str, Any], path: KeyPath, name: str
    ) -> ProjectTool | None:
        """Return the tool. If the name, description or schema is invalid, add a problem and return None."""
        given = function.get("name")
        if not NAME.fullmatch(name):
            message, fix = "is missing", "write a name"
            if given is not None:
                message = f"{given[:80]!r} is not a valid name: {NAME_RULE}" if name else "must be a string"
            if proposed := re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64]:
                fix = f"write {proposed}"
            self.add_problem(listed, (*path, "name"), message, f"{fix}, {OMIT_HINT}")
            return None
        if given != name:
            self._note("dots in names became _", name)
        description = function.get("description")
        if description is not None and not isinstance(description, str):
            fix = "write a sentence that explains the tool to the model"
            self.add_problem(listed, (*path, "description"), "must be a string", fix)
            return None
        key = next((key for key in SCHEMA_KEYS if function.get(key) is not None), SCHEMA_KEYS[0])
        schema = function.get(key)
        if schema is None:
            schema = {"type": "object", "properties": {}}
        try:
            converted, changes = convert_dataset_schema(schema)
        except SchemaRejected as error:
            self.add_problem(listed, (*path, key, *error.problem.path), error.problem.message, error.problem.fix)
            return None
        if not isinstance(converted, dict) or converted.get("type", "object") != "object" or not _is_schema(converted):
            fix = 'write {"type": "object", "properties": {...}}'
            self.add_problem(listed, (*path, key), "must be the JSON schema of an object", fix)
            return None
        plain, problem = inline_references({"type": "object", **converted}, converted)
        if (problem := problem or find_schema_problem(plain)) is not None:
            self.add_problem(listed, (*path, key, *problem.path), problem.message, problem.fix)
            return None
        for change in changes:
            self._note(change, name)
        return ProjectTool(name, trim_description(description or name), plain or {})

    def _note(self, change: str, name: str) -> None:
        names = self.changes.setdefault(change, [])
        if name not in names:
            names.append(name)


def has_json_lines(path: Path) -> bool:
    """Return whether a file has one JSON object on each line. BFCL's files have this format, but are named `.json`."""
    try:
        with path.open("rb") as file:
            first, second = file.readline(MAX_ROWS_BYTES), file.readline(MAX_ROWS_BYTES)
        return bool(second.strip()) and isinstance(json.loads(first), dict)
    except (OSError, ValueError, RecursionError):
        return False


def is_tool_list(document: SourceDocument) -> bool:
    """Return whether the document is a list of tools and not an OpenAPI document."""
    return isinstance(document.raw, list) or (
        isinstance(document.raw, dict)
        and not document.raw.keys() & {"openapi", "swagger", "paths"}
        and bool(document.raw.keys() & {"tools", "result", "function", "class_name", *SCHEMA_KEYS})
    )


def read_tool_document(document: SourceDocument, requested: Sequence[str] = ()) -> ToolList:
    """Read the list of tools in a JSON or YAML document.

    If `requested` is not empty, only the tools with these names are returned.

    Raises:
        UserError: The document is not a list of tools.
        InvalidJob: Some of the tools cannot be used.
    """
    raw, path = document.raw, _ROOT
    if isinstance(raw, dict) and isinstance(raw.get("result"), dict):  # JSON-RPC
        raw, path = raw["result"], ("result",)
    listed = list(_iter_tools(raw, path, None))
    if not listed:
        raise UserError(f"{document.where} has no tools: give {FORMATS}")
    found = _ToolListReader(document.where, document).read(listed, requested)
    if isinstance(raw, dict) and raw.get("nextCursor"):
        note = "the list has further pages (nextCursor), whose tools are missing"
        return ToolList(found.where, found.tools, (*found.notes, note))
    return found


def read_tool_lines(path: Path, requested: Sequence[str] = ()) -> ToolList:
    """Read the tools in a file with a JSON object per line: function documents, or rows that list their tools.

    If `requested` is not empty, only the tools with these names are returned.

    Raises:
        UserError: The file cannot be read, or has no tools.
        InvalidJob: Some of the tools cannot be used.
    """
    body = read_bounded(path, MAX_ROWS_BYTES, "give a file with fewer rows in which every tool still occurs")
    listed: list[_ListedTool] = []
    for number, line in enumerate(decode_utf8(body, str(path), "save the file as UTF-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = parse_row(line).value
        except ValueError as error:
            raise UserError(f"{path}:{number} is not valid JSON: {error}") from None
        listed += _iter_tools(unwrap_item(value), (), number)
    if not listed:
        raise UserError(f"{path} has no tools: give {FORMATS}")
    return _ToolListReader(str(path), None).read(listed, requested)


def _iter_tools(value: Any, path: KeyPath, line: int | None) -> Iterator[_ListedTool]:
    """Yield the tools in `value`, which is a document or the content of a line.

    The tools may be the items of a list, and the list may be under the key `tools` or `function`. Otherwise, `value`
    itself may be a tool.
    """
    key = next((key for key in ("tools", "function") if isinstance(value, dict) and key in value), None)
    if key == "tools" or (key == "function" and isinstance(value[key], list)):
        value, path = _parse_text(value[key]), (*path, str(key))
        if value is None:
            return
    elif isinstance(value, dict) and key is None and (value.keys() & _ROW_KEYS or not value.keys() & _TOOL_KEYS):
        return
    if isinstance(value, list):
        yield from (_ListedTool(one, (*path, i), line) for i, one in enumerate(value))
    else:
        yield _ListedTool(value, path, line)


def _parse_text(value: Any) -> Any:
    """Parse `value` if it is JSON text, otherwise return it. Many data sets store a row's tools as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_row(value).value
    except ValueError:
        return value


def _is_schema(schema: Mapping[str, Any]) -> bool:
    """Return whether `schema` is a JSON schema, and not a mapping from the names of arguments to their schemas."""
    return not schema or bool(schema.keys() & {"type", "properties", "$ref", "allOf", "anyOf", "oneOf"})


def _get_name(function: Mapping[str, Any]) -> str:
    name = function.get("name")
    return _to_name(name) if isinstance(name, str) else ""


def _to_name(name: str) -> str:
    """Return the tool name with each dot replaced by `_`. OpenAI's API does not allow dots in names of functions."""
    return name.replace(".", "_")


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
