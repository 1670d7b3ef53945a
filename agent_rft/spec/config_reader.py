"""Conversion of YAML and JSON files to pydantic models. Every error is reported with its field and line.

Values from the environment (`${NAME}`) are secrets and never appear in messages. A problem is printed as

    method.reinforcement.limits.max_tool_cals (job.yaml:12): unknown key [invalid_extra_forbidden]
        -> did you mean 'max_tool_calls'?
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from agent_rft.errors import Problem

M = TypeVar("M", bound=BaseModel)
KeyPath = tuple[str | int, ...]
"""Location of a value in a file: keys and indices from the root."""
KnownProblem = Callable[[KeyPath], tuple[str, str, str] | None]
"""Function that returns (code, message, fix) for an error at a path, to replace pydantic's message; None keeps
pydantic's message."""

MAX_PROBLEMS = 200
"""Maximum number of reported errors."""
WITH_NULLS = ("response_format", "template_arguments")
"""Keys whose values are JSON schemas or arguments, in which null is a valid value."""
MAX_SHOWN_CHARS = 1_000
"""Maximum length of a value that is included in a message."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ANY = "*"
"""Placeholder for any index of a list."""
_MIN_SIMILARITY = 0.75
"""Minimum difflib ratio between a misspelled key and the known key."""
_SECRETS = {"headers", "api_key", "signing_secret", "token", "tracking_uri"}
_KEY_CODES = {"invalid_extra_forbidden", "truncated_sampling"}
"""Codes of errors that are caused by a key itself and not by its value."""
_MAPPING = "a mapping of keys to values"
_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": _MAPPING,
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "list_type": "a list",
    "model_attributes_type": _MAPPING,
    "model_type": _MAPPING,
    "string_type": "a string",
    "tuple_type": "a list",
}
"""Description of the expected value for each type of pydantic error. Pydantic's own message would contain names of
Python types."""
_INPUT_SHOULD_BE = "Input should be "
_SHOULD_HAVE = re.compile(r"\w+ should have (at \w+ \d+ \w+).*")


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A parsed YAML or JSON file. `root` is the name of the file's top level in messages: job or config."""

    root: str
    raw: Any
    lines: LineNumbers
    file: str | None = None

    def problem(self, code: str, path: KeyPath, message: str, fix: str) -> Problem:
        return Problem(code, format_key_path(path) or self.root, message, fix, self.file, self.lines.find_line(path))

    def find_duplicates(self) -> list[Problem]:
        """Return a problem for each duplicated key. A YAML parser would silently use only the last value."""
        return [
            Problem("duplicate_key", format_key_path(path), "duplicate key", "remove all but one", self.file, line)
            for path, line in self.lines.find_duplicates()
        ]


def read_source(path: Path, root: str) -> ParsedFile | Problem:
    """Return the parsed file, or the problem that prevents parsing it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        fix = "give the path of a readable YAML or JSON file"
        return Problem(f"unreadable_{root}", root, f"cannot be read: {why}", fix, str(path))
    try:
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        return ParsedFile(root, raw, LineNumbers(yaml.compose(text, yaml.SafeLoader)), str(path))
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        # str(error) would quote the line, which may contain a secret.
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
        why = getattr(error, "problem", None) or getattr(error, "msg", None) or "it is not valid YAML"
        language = "JSON" if path.suffix == ".json" else "YAML"
        fix = f"fix the {language} syntax at this line" if line else f"fix the {language} syntax"
        return Problem(f"{root}_syntax", root, f"cannot be parsed: {why}", fix, str(path), line)


def substitute_variables(source: ParsedFile, environment: Mapping[str, str]) -> tuple[Any, Variables, list[Problem]]:
    """Return the file's content with `${NAME}` replaced, and a problem at the first use of each missing variable."""
    variables = Variables(environment)
    raw = variables.fill_in(source.raw, ())
    places: dict[str, list[KeyPath]] = {}
    for path, name in variables.missing:
        places.setdefault(name, []).append(path)
    problems = []
    for name, (first, *others) in places.items():
        also = f", but used {len(others) + 1} times" if others else ""
        message = f"the environment variable {name} is not set{also}"
        problems.append(source.problem("missing_variable", first, message, f"run `export {name}=...` first"))
    return raw, variables, problems


def validate(
    model: type[M], raw: Any, source: ParsedFile, variables: Variables, known_problem: KnownProblem = lambda path: None
) -> tuple[M | None, list[tuple[KeyPath, Problem]]]:
    """Return `raw` as an instance of `model`. If `raw` is invalid, return None and the path and problem of each error.

    `known_problem` may replace pydantic's message for an error at a path.
    """
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        found: dict[KeyPath, list[Any]] = {}
        for item in error.errors(include_url=False)[:MAX_PROBLEMS]:
            path = to_key_path(item["loc"], raw, missing=item["type"] == "missing")
            found.setdefault(path, []).append(item)
        for path in [path for path, items in found.items() if items[0]["type"] == "too_short"]:
            if any(other[: len(path)] == path for other in found if other != path):
                del found[path]  # the list has enough items, but some are invalid
        keys = _known_keys(model)
        return None, [
            (at, _convert_errors(items, at, source, variables, known_problem, keys)) for at, items in found.items()
        ]


def drop_missing_variable_problems(found: Sequence[tuple[KeyPath, Problem]], variables: Variables) -> list[Problem]:
    """Return the problems, except problems with values that are empty because an environment variable is not set."""
    empty = {path for path, _ in variables.missing}
    return [problem for path, problem in found if path not in empty or problem.code in _KEY_CODES]


@functools.cache
def _known_keys(model: type[BaseModel]) -> KnownKeys:
    return KnownKeys(model)


def drop_nulls(value: Any, *, key: str = "") -> Any:
    """Remove keys whose value is null, because clients send null for omitted fields.

    Nulls below the keys in WITH_NULLS are kept.
    """
    if key in WITH_NULLS:
        return value
    if isinstance(value, dict):
        return {k: drop_nulls(v, key=k) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [drop_nulls(item) for item in value]
    return value


def _convert_errors(
    errors: list[Any],
    path: KeyPath,
    source: ParsedFile,
    variables: Variables,
    known_problem: KnownProblem,
    keys: KnownKeys,
) -> Problem:
    """Return the problem with the value at `path`. For a union, `errors` has one pydantic error per type."""
    found = known_problem(path)
    if found is not None:
        code, message, fix = found
        return source.problem(code, path, message, fix)
    kind, given, context = errors[0]["type"], errors[0].get("input"), errors[0].get("ctx", {})
    if kind == "missing":
        what = "item" if isinstance(path[-1], int) else "key"
        message, fix = f"required {what} is missing", keys.suggest_for_missing(path, given)
    elif kind == "extra_forbidden":
        message, fix = "unknown key", keys.suggest_for_unknown(path)
        if (reason := REMOVED_SETTINGS.get(str(path[-1]))) is not None:
            message, fix = f"{path[-1]} was removed: {reason}", "delete this setting"
    elif kind == "union_tag_not_found":
        message, fix = "`type` is missing", "add `type: ...`"
    elif kind == "union_tag_invalid":
        message, fix = f"unknown type {context['tag']!r}", f"set `type` to one of {context['expected_tags']}"
    else:
        first, *others = [describe_requirement(error) for error in errors]
        message = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        fix = context.get("fix", "correct the value")
    shown = isinstance(given, str | int | float) and not isinstance(given, bool) and _SECRETS.isdisjoint(path)
    shown &= kind != "extra_forbidden"  # an unknown key may be a secret in the wrong place
    if shown and len(str(given)) <= MAX_SHOWN_CHARS:
        message += f" (given: {given!r})"
    return source.problem(f"invalid_{kind}", path, variables.hide(message), fix)


def describe_requirement(error: Any, *, is_json: bool = False) -> str:
    """Convert a pydantic error to a phrase such as `must be true or false`, without Python's type names.

    With `is_json`, a mapping is called an object.
    """
    message: str = error["msg"].removeprefix("Value error, ")
    kind = error["type"]
    if is_json and _EXPECTED.get(kind) == _MAPPING:
        return "must be an object"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}"
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "is an unknown key"
    if kind == "union_tag_not_found":
        return "`type` is missing"
    if kind == "union_tag_invalid":
        given = error["input"].get("type") if isinstance(error.get("input"), dict) else None
        shown = f"unknown type {given!r}" if isinstance(given, str) else "unknown type"
        return f"{shown}; must be one of {error['ctx']['expected_tags']}"
    if message.startswith(_INPUT_SHOULD_BE):
        return f"must be {message.removeprefix(_INPUT_SHOULD_BE)}"
    # A message of ours can contain a long text of a client. A search would take quadratic time, a match does not.
    found = _SHOULD_HAVE.match(message)
    return message if found is None else f"must have {found[1]}"


def describe_json_error(place: str, error: Any) -> str:
    """Return a sentence about a pydantic error in JSON, such as `messages[0].content must be a string`."""
    requirement = describe_requirement(error, is_json=True)
    if not place:
        return requirement
    return f"{place} {requirement}" if requirement.startswith(("must ", "is ")) else f"{place}: {requirement}"


def to_key_path(loc: Sequence[str | int], raw: Any, *, missing: bool) -> KeyPath:
    """Convert the location in a pydantic error to a path in the file `raw`.

    Pydantic's location may contain names of union members, which are not keys of the file. If `missing` is
    true, the last key of the location is not in the file.
    """
    path: list[str | int] = []
    for part in loc:
        is_index = isinstance(raw, list) and isinstance(part, int) and part in range(len(raw))
        if is_index or (isinstance(raw, dict) and part in raw):
            path.append(part)
            raw = raw[part]
    return (*path, loc[-1]) if missing else tuple(path)


class KnownKeys:
    """The valid keys of each mapping in a file, to suggest the right key for an unknown or missing key."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._schema = model.model_json_schema()
        self._known: dict[KeyPath, set[str]] = {}
        self._visit(self._schema, (), ())

    def suggest_for_unknown(self, path: KeyPath) -> str:
        """Return the fix for the unknown key at the end of `path`."""
        (*parent, key), parents = _generalize_indices(path), _generalize_indices(path[:-1])
        near = get_close_matches(str(key), self._known.get(tuple(parent), ()), 1, _MIN_SIMILARITY)
        if near:
            return f"did you mean {near[0]!r}?"
        homes = [home for home, keys in self._known.items() if key in keys]
        homes = [home for home in homes if home[: len(parents)] == parents] or homes
        if 0 < len(homes) <= 2:
            return "move it to " + " or ".join(format_key_path(home) or "the top level" for home in homes)
        return "remove it or check its spelling"

    def suggest_for_missing(self, path: KeyPath, mapping: Any) -> str:
        """Return the text of the fix for a missing key, such as `rename 'modle' to 'model'`.

        The missing key is the last part of `path`. `mapping` is the mapping that lacks the key.
        """
        if isinstance(path[-1], int):
            return "add the item"
        known = self._known.get(_generalize_indices(path[:-1]), set())
        unknown = set(islice(mapping, MAX_PROBLEMS)) - known if isinstance(mapping, dict) else ()
        near = get_close_matches(str(path[-1]), [key for key in unknown if isinstance(key, str)], 1, _MIN_SIMILARITY)
        return f"rename {near[0]!r} to {path[-1]!r}" if near else f"add `{path[-1]}: ...`"

    def _visit(self, schema: Any, path: KeyPath, above: tuple[str, ...]) -> None:
        if not isinstance(schema, dict):
            return
        name = schema.get("$ref")
        if name is not None and name not in above:  # graders contain graders: one level is enough
            self._visit(self._schema["$defs"][name.rpartition("/")[2]], path, (*above, name))
        for key, value in schema.get("properties", {}).items():
            self._known.setdefault(path, set()).add(key)
            self._visit(value, (*path, key), above)
        for inner in ("anyOf", "oneOf", "allOf"):
            for value in schema.get(inner, ()):
                self._visit(value, path, above)
        for value in [schema.get("items"), *schema.get("prefixItems", ())]:
            self._visit(value, (*path, _ANY), above)


def _generalize_indices(path: KeyPath) -> KeyPath:
    return tuple(_ANY if isinstance(part, int) else part for part in path)


def format_key_path(path: KeyPath) -> str:
    """Return a path as users write it, such as `tools[0].server_url`; empty for the root."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


class Variables:
    """Replacement of `${NAME}` by environment variables, with a record of used and missing variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._used: dict[str, str] = {}
        self.missing: list[tuple[KeyPath, str]] = []

    def fill_in(self, value: Any, path: KeyPath) -> Any:
        """Return `value`, which is at `path` in its file, with all variables replaced."""
        if isinstance(value, dict):
            return {key: self.fill_in(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.fill_in(inner, (*path, i)) for i, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        return _VARIABLE.sub(lambda match: self._read_variable(match[1], path), value)

    def _read_variable(self, name: str, path: KeyPath) -> str:
        if name not in self._environment:
            self.missing.append((path, name))
            return ""
        self._used[name] = self._environment[name].strip()  # files and secrets end with a line break
        return self._used[name]

    def hide(self, text: str) -> str:
        """Return `text` with the values of variables replaced by their names."""
        for name, value in self._used.items():
            text = text.replace(value, f"${{{name}}}") if value else text
        return text


class LineNumbers:
    """Line numbers of the keys in a parsed YAML document. JSON is a subset of YAML."""

    def __init__(self, root: yaml.Node | None) -> None:
        self._root = root

    def find_line(self, path: KeyPath) -> int | None:
        """Return the line of the deepest part of `path` that exists; None if not even the first part exists."""
        node, line = self._root, None
        for part in path:
            found = next((pair for pair in _iter_children(node) if pair[0] == part), None)
            if found is None:
                break
            _, line, node = found
        return line

    def find_duplicates(self) -> list[tuple[KeyPath, int]]:
        """Return the path and line of each duplicated key."""
        found: list[tuple[KeyPath, int]] = []

        def visit(node: yaml.Node | None, path: KeyPath) -> None:
            seen = set()
            for key, line, child in _iter_children(node):
                if key in seen:
                    found.append(((*path, key), line))
                seen.add(key)
                visit(child, (*path, key))

        visit(self._root, ())
        return found


def _iter_children(node: yaml.Node | None) -> Iterator[tuple[str | int, int, yaml.Node]]:
    """Yield (key or index, line, value) for each item of a mapping or list; nothing for other nodes."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield i, value.start_mark.line + 1, value


# -- removed -----------------------------------------------------------------------------------------------------------


REMOVED_SETTINGS: Mapping[str, str] = {
    "context_weight": "the model is trained only on the assistant's tokens",
    "dispatchers": (
        "the number of dispatchers is derived from max_num_seqs of the engines and max_concurrency of the tools"
    ),
    "straggler_quorum": "the quorum is always 0.75",
}
"""Explanation of each removed setting, for error messages."""
