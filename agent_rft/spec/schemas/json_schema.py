"""Validation of values with users' JSON schemas, for the API, job checks, rollouts and grammars.

The validation time is limited, because users write the schemas. A value that is too large to be validated in this time
is reported as a violation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import jsonschema_rs

from agent_rft.spec.schemas.schema_limits import (
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_MAP_KEYWORDS,
    Path,
    SchemaProblem,
    SchemaRejected,
    check_schema_limits,
    count_subschemas,
    find_patterns,
    format_schema_path,
    resolve_reference,
    shorten,
)

REGEX_BYTES = 1 << 20
"""Maximum memory of a compiled pattern, and of the states that it caches while it runs."""
MAX_BACKTRACKS = 10_000
"""Maximum number of backtracking steps for matching one string with one pattern. 10,000 steps take a few
milliseconds."""
MAX_COMPARISONS = 5_000_000
"""Limit on the number of values multiplied by the number of subschemas in one validation."""
MAX_PATTERN_WORK = 1_000_000
"""Maximum product of the number of characters in the value and the number of patterns in the schema, per validation."""
BACKTRACKING_COST = 10
"""Number of patterns on the linear-time engine that cost as much as one pattern on the backtracking engine."""
MAX_VALUE_DEPTH = 200
"""Maximum nesting depth of a value. jsonschema-rs fails beyond about 250 levels."""
MAX_MESSAGE_CHARS = 300
MAX_VALUE_CHARS = 60
HALF_SURROGATE_PAIR = "at $: the value has half of a surrogate pair; write complete characters"
MAX_EXPLAINED = 50
"""Maximum subschemas that are examined to explain a violation."""

_VALUE = "\0"
"""Placeholder for the value in jsonschema-rs's messages, since the value may have any length."""
_DIALECTS = {
    "json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
_LINEAR = jsonschema_rs.RegexOptions(size_limit=REGEX_BYTES, dfa_size_limit=REGEX_BYTES)
_BACKTRACKING = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=MAX_BACKTRACKS, size_limit=REGEX_BYTES, dfa_size_limit=REGEX_BYTES
)
MAX_REPEATS = 1_000
"""Maximum sum of the repetition counts in one pattern of a grammar; the count of {1,1000} is 1000. Compile time grows
with the square of this sum: 0.04 s at the limit."""
MAX_TOTAL_REPETITIONS = 10_000
"""Maximum sum of the repetition counts of all patterns in a schema that is compiled to a grammar."""
_REPETITION = re.compile(r"\{(?:\d*,)?(\d+),?\}")
_NOT_IN_GRAMMARS = re.compile(r"\\[bBpP]")


def find_schema_problem(schema: Any, *, grammar: bool = False) -> SchemaProblem | None:
    """Return why values cannot be validated with this JSON schema; None if they can. Compiles every pattern.

    With `grammar`, also check whether decoding can be constrained to the schema.
    """
    if schema is None:
        return None
    if (problem := find_structure_problem(schema, grammar=grammar)) is not None:
        return problem
    patterns = find_patterns(schema)
    all_repeats = 0
    for path, pattern in patterns if grammar else ():
        repeats = sum(map(int, _REPETITION.findall(pattern)))
        all_repeats += repeats
        if repeats > MAX_REPEATS or all_repeats > MAX_TOTAL_REPETITIONS:
            message = f"the pattern has {repeats:,} repetitions, and all patterns up to this one have {all_repeats:,}; "
            message += (
                f"in a schema that a grammar enforces, one pattern may have at most {MAX_REPEATS:,} repetitions, and "
                f"all patterns together at most {MAX_TOTAL_REPETITIONS:,}"
            )
            fix = "use + or * instead of counted repetitions, and limit the length with minLength and maxLength"
            return SchemaProblem("schema_too_large", path, message, fix)
    try:
        _, options = _compile(_plain(schema), _get_dialect(schema))
    except ValueError as error:
        for path, pattern in patterns:
            if not _is_supported(pattern, _LINEAR) and not _is_supported(pattern, _BACKTRACKING):
                shown = repr(shorten(pattern, MAX_VALUE_CHARS))
                message = f"{shown} is not a valid ECMA-262 regular expression, or needs more than 1 MiB when compiled"
                fix = "correct it; use maxLength instead of large repetitions"
                return SchemaProblem("invalid_schema", path, message, fix)
        return SchemaProblem("invalid_schema", (), shorten(str(error), MAX_MESSAGE_CHARS))
    for path, pattern in patterns if grammar else ():
        if (lacking := _find_unsupported(pattern, options)) is not None:
            message = f"{shorten(pattern, MAX_VALUE_CHARS)!r} has {lacking}, which a grammar cannot express"
            fix = "use only character classes, groups and repetitions, such as [a-z]+"
            return SchemaProblem("unsupported_pattern", path, message, fix)
    return None


def find_structure_problem(schema: Any, *, grammar: bool = False) -> SchemaProblem | None:
    """Return the structural error of a schema, or None. Does not compile patterns, so it always takes milliseconds.

    With `grammar`, also check the limits of grammars.
    """
    if schema is None:
        return None
    try:
        check_schema_limits(schema, grammar=grammar)
    except SchemaRejected as refused:
        return refused.problem
    plain = _plain(schema)
    try:
        described = plain if isinstance(plain, bool) else {**plain, "$schema": _dialect_url(_get_dialect(schema))}
        jsonschema_rs.meta.validate(described)
    except jsonschema_rs.ValidationError as error:
        path, value = tuple(error.instance_path), error.instance  # the path contains a key such as "1" as a number
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))  # as in the message
        words = error.message.replace(written, _format_value(value))
        return SchemaProblem("invalid_schema", path, shorten(words, MAX_MESSAGE_CHARS))
    return None


class SchemaValidator:
    """Validator of values against a JSON schema.

    If the schema violates the current limits, only the top level of each value is validated. Jobs of earlier versions
    may contain such schemas.
    """

    def __init__(self, schema: Any) -> None:
        schema = schema if find_schema_problem(schema) is None else keep_top_level(schema)
        self._schema = _plain(schema)
        self._dialect = _get_dialect(schema)
        self._validator, self._options = _compile(self._schema, self._dialect)
        self._parts: jsonschema_rs.ValidatorMap | None = None
        self._num_subschemas = count_subschemas(schema)
        self._pattern_cost = len(find_patterns(schema)) * (1 if self._options is _LINEAR else BACKTRACKING_COST)

    def find_violation(self, value: Any) -> str | None:
        """Return a message for the model about how a value violates the schema; None if the value is valid.

        The message has the format `at $.path: problem`.
        """
        num_values, num_chars, depth = _measure_size(value)
        if depth > MAX_VALUE_DEPTH:
            return f"at $: the value is nested more than {MAX_VALUE_DEPTH} levels deep"
        if num_values * self._num_subschemas > MAX_COMPARISONS or num_chars * self._pattern_cost > MAX_PATTERN_WORK:
            return "at $: the value is too large to be checked; write a smaller value"
        try:
            if self._validator.is_valid(value):
                return None
            _, path, words = _ViolationSearch(self._schema, self._dialect, self._get_subschema_validator).explain(
                (), value, ()
            )
        except UnicodeEncodeError:
            return HALF_SURROGATE_PAIR
        return shorten(f"at {format_schema_path(path)}: {words}", MAX_MESSAGE_CHARS)

    def _get_subschema_validator(self, path: Path) -> jsonschema_rs.Validator | None:
        if self._parts is None:
            self._parts = jsonschema_rs.validator_map_for(
                {**self._schema, "$schema": _dialect_url(self._dialect)},
                validate_formats=False,
                offline=True,
                pattern_options=self._options,
            )
        return self._parts.get("#" + "".join(f"/{_escape_pointer(str(part))}" for part in path))


def keep_top_level(schema: Any) -> dict[str, Any]:
    """Return a schema that keeps only the type and required keys of `schema`, and the type of each of its properties.

    Return {}, which accepts every value, if `schema` is not an object or the kept part is not a usable schema.
    """
    if not isinstance(schema, dict):
        return {}
    properties = schema.get("properties")
    kept: dict[str, Any] = {key: schema[key] for key in ("type", "required") if key in schema}
    if isinstance(properties, dict):
        kept["properties"] = {
            name: {"type": part["type"]} if isinstance(part, dict) and "type" in part else {}
            for name, part in properties.items()
        }
    return kept if find_schema_problem(kept) is None else {}


# -- compiled schemas --------------------------------------------------------------------------------------------------


def _compile(schema: Any, dialect: type[jsonschema_rs.Validator]) -> tuple[jsonschema_rs.Validator, Any]:
    """Compile a schema; return (validator, regex options). Uses the linear-time engine if it supports all patterns."""
    for options in (_LINEAR, _BACKTRACKING):
        with suppress(ValueError):
            return dialect(schema, validate_formats=False, offline=True, mask=_VALUE, pattern_options=options), options
    # Raise the error of the engine that supports more patterns.
    return dialect(schema, validate_formats=False, offline=True, mask=_VALUE, pattern_options=_BACKTRACKING), None


def _is_supported(pattern: str, options: Any) -> bool:
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True, pattern_options=options)
    except ValueError:
        return False
    return True


def _find_unsupported(pattern: str, options: Any) -> str | None:
    """Return the part of a pattern that no grammar can express, or None."""
    if options is not _LINEAR and not _is_supported(pattern, _LINEAR):
        return "lookaround or a backreference"
    found = _NOT_IN_GRAMMARS.search(pattern.replace("\\\\", ""))
    return None if found is None else found[0]


def _get_dialect(schema: Any) -> type[jsonschema_rs.Validator]:
    url = schema.get("$schema") if isinstance(schema, dict) else None
    name = str(url).rstrip("#").removeprefix("http://").removeprefix("https://")
    return _DIALECTS.get(name, jsonschema_rs.Draft202012Validator)


def _dialect_url(dialect: type[jsonschema_rs.Validator]) -> str:
    name = next(name for name, found in _DIALECTS.items() if found is dialect)
    return f"{'https' if name.endswith(('2019-09/schema', '2020-12/schema')) else 'http'}://{name}"


def _plain(schema: Any) -> Any:
    """Remove ids and dialects from a schema, so that all references resolve from its root."""
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key not in ("$schema", "$vocabulary")}
    for key in ("$id", "id"):  # an id that starts with # is an older form of an anchor
        if isinstance(name := plain.get(key), str) and not name.startswith("#"):
            del plain[key]
    for key, value in plain.items():
        if key in SCHEMA_KEYWORDS and isinstance(value, dict):
            plain[key] = _plain(value)
        elif key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            plain[key] = {name: _plain(part) for name, part in value.items()}
        elif isinstance(value, list) and key not in ("enum", "examples", "const", "default", "required"):
            plain[key] = [_plain(part) for part in value]
    return plain


def _escape_pointer(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _measure_size(value: Any) -> tuple[int, int, int]:
    """Return the number of values in a JSON value, the number of characters in its strings and keys, and its depth."""
    num_values = num_chars = depth = 0
    level = [value]
    while level:
        num_values, depth = num_values + len(level), depth + 1
        num_chars += sum(len(one) for one in level if isinstance(one, str))
        num_chars += sum(len(key) for one in level if isinstance(one, dict) for key in one)
        level = [part for one in level if isinstance(one, dict | list) for part in _children(one)]
    return num_values, num_chars, depth


def _children(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


# -- explanations ------------------------------------------------------------------------------------------------------


class _ViolationSearch:
    """Search for one violation to report, from the root of the schema down to the subschema that rejects the value.

    jsonschema-rs could list all violations, but their number grows exponentially with the depth of a value.
    """

    def __init__(self, root: Any, dialect: type[jsonschema_rs.Validator], part: Any) -> None:
        self._root, self._dialect, self._get_subschema_validator = root, dialect, part
        self._left = MAX_EXPLAINED

    def explain(self, at: Path, value: Any, path: Path) -> tuple[int, Path, str]:
        """Return why the subschema at `at` rejects `value`, as (path length, path of the violation, message)."""
        schema = _value_at(self._root, at)
        if not isinstance(schema, dict):
            return len(path), path, f"{_format_value(value)} is not allowed here"
        self._left -= 1
        if (words := self._find_own_violation(schema, value)) is not None:
            return len(path), path, words
        for place, inner, inner_path in self._iter_applied_subschemas(schema, at, value, path):
            if self._left <= 0:
                break
            if not self._is_valid(place, inner):
                return self.explain(place, inner, inner_path)
        for key in ("anyOf", "oneOf"):
            if key in schema and (found := self._explain_branches(key, at, schema, value, path)) is not None:
                return found
        keys = [key for key in ("not", "contains", "propertyNames", "if", "unevaluatedProperties") if key in schema]
        rest = f"'{keys[0]}'" if keys else "the schema"
        return len(path), path, f"{_format_value(value)} breaks the rule {rest}"

    def _find_own_violation(self, schema: Mapping[str, Any], value: Any) -> str | None:
        """Return how `value` violates the schema's own keywords, ignoring its subschemas; None if it does not."""
        own = {
            key: part
            for key, part in schema.items()
            if key not in SCHEMA_KEYWORDS | SCHEMA_LIST_KEYWORDS | SCHEMA_MAP_KEYWORDS and key[:1] != "$"
        }
        if schema.get("additionalProperties") is False:
            own |= {"properties": dict.fromkeys(schema.get("properties") or {"": True}, True)}
            own |= {"patternProperties": dict.fromkeys(schema.get("patternProperties") or {}, True)}
            own["additionalProperties"] = False
        try:
            _compile(own, self._dialect)[0].validate(value)
        except jsonschema_rs.ValidationError as error:
            return _describe_violation(error, value)
        return None

    def _iter_applied_subschemas(self, schema: Mapping[str, Any], at: Path, value: Any, path: Path) -> Any:
        """Yield (subschema path, value, value path) for each reference, `allOf`, property and item to validate."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(schema.get(key), str) and (found := resolve_reference(self._root, schema[key])) is not None:
                yield found[0], value, path
        for i in range(len(schema.get("allOf") or ())):
            yield (*at, "allOf", i), value, path
        if isinstance(value, dict):
            named = schema.get("properties") or {}
            for name, inner in value.items():
                if name in named:
                    yield (*at, "properties", name), inner, (*path, name)
                elif isinstance(schema.get("additionalProperties"), dict) and "patternProperties" not in schema:
                    yield (*at, "additionalProperties"), inner, (*path, name)
        if isinstance(value, list):
            first = (
                "prefixItems" if "prefixItems" in schema else "items" if isinstance(schema.get("items"), list) else ""
            )
            num_first = len(schema.get(first) or ())
            for i, inner in enumerate(value):
                if i < num_first:
                    yield (*at, first, i), inner, (*path, i)
                elif isinstance(schema.get("items"), dict):
                    yield (*at, "items"), inner, (*path, i)

    def _explain_branches(
        self, key: str, at: Path, schema: Mapping[str, Any], value: Any, path: Path
    ) -> tuple[int, Path, str] | None:
        """Return why `value` violates `key`, which is anyOf or oneOf; None if it does not."""
        branches = range(len(schema[key]))
        fitting = [i for i in branches if self._is_valid((*at, key, i), value)]
        if fitting:
            if key == "anyOf" or len(fitting) == 1:
                return None
            return len(path), path, f"{_format_value(value)} is valid under more than one of the given schemas"
        found = [self.explain((*at, key, i), value, path) for i in branches if self._left > 0]
        deepest = max((depth for depth, *_ in found), default=0)
        nearly = [one for one in found if one[0] == deepest]
        if len(nearly) == 1:
            return nearly[0]
        return len(path), path, f"{_format_value(value)} is not valid under any of the given schemas"

    def _is_valid(self, at: Path, value: Any) -> bool:
        if isinstance(part := _value_at(self._root, at), bool):
            return part
        validator = self._get_subschema_validator(at)
        return validator is None or bool(validator.is_valid(value))


def _value_at(root: Any, path: Path) -> Any:
    for part in path:
        root = root[part]
    return root


def _describe_violation(error: jsonschema_rs.ValidationError, value: Any) -> str:
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded):
        return f"{_format_value(value)} cannot be compared with the pattern within {MAX_BACKTRACKS:,} steps"
    return shorten(error.message, MAX_MESSAGE_CHARS).replace(_VALUE, _format_value(value))


def _format_value(value: Any) -> str:
    """Return a value as shortened JSON, or a phrase such as "the object" if the value is large."""
    if isinstance(value, dict | list) and _measure_size(value)[0] > MAX_VALUE_CHARS:
        return "the object" if isinstance(value, dict) else "the list"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # an integer with thousands of digits
        return "the number"
    return shorten(text, MAX_VALUE_CHARS)
