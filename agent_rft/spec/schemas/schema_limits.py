"""Limits on the structure of users' JSON schemas, which are checked before an engine compiles the schemas.

No document is ever retrieved: a reference must start with # and is resolved from the root of its schema. Ids are
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import product
from typing import Any
from urllib.parse import unquote

MAX_DEPTH = 64
"""Maximum nesting depth; each object or list is a level. Deeper schemas crash grammar compilers; real schemas have
about ten levels."""
MAX_BYTES = 256 << 10
"""Maximum size of a schema as JSON. Prompts contain the schemas of tools, and no context can hold a larger one."""
MAX_SUBSCHEMAS = 5_000
"""Maximum number of subschemas in a schema, counted after following references. Compiling a grammar with 5,000
subschemas takes about a second, and a value is checked against each subschema."""
MAX_CHOICES = 10_000
"""Maximum number of values in an enum. Compiling a grammar with 10,000 values takes 0.1 s and 25 MB."""
MAX_PATTERNS = 100
"""Maximum number of patterns in a schema. Each compiled pattern takes up to a few MB."""
MAX_PATTERN_CHARS = 2_000
"""Maximum length of a pattern. Even long common patterns, such as URL patterns, have only a few hundred characters."""
MAX_LOWER_BOUND = 10_000
"""Maximum value of keywords such as minItems and minLength."""
MAX_UPPER_BOUND = 1_000_000
"""Maximum value of upper bounds, such as maxItems, in a schema for a grammar. The grammar has to count the items."""

MIN_KEYWORDS = ("minLength", "minItems", "minProperties", "minContains")
MAX_KEYWORDS = ("maxLength", "maxItems", "maxProperties", "maxContains")
NUMERIC = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
BOUNDS = (*zip(MIN_KEYWORDS, MAX_KEYWORDS, strict=True), *product(NUMERIC[:2], NUMERIC[2:]))
"""Pairs of keywords for the lower and the upper bound of the same quantity."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
IN_PLACE_KEYWORDS = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)
"""Keywords whose subschemas apply to the value itself, and not to a part of it."""
DEFINITIONS = frozenset({"$defs", "definitions"})
"""Keywords whose subschemas apply only where they are referenced."""
SCHEMA_KEYWORDS = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
"""Keywords whose value is a schema. `items` may also be a list of schemas."""
SCHEMA_LIST_KEYWORDS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
SCHEMA_MAP_KEYWORDS = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"}) | DEFINITIONS
"""Keywords whose value is an object that maps names to schemas."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """Reason for rejecting a schema: problem code, path in the schema, message and fix."""

    code: str
    path: Path
    message: str
    fix: str = "give a valid JSON schema (draft 2020-12)"

    @property
    def location(self) -> str:
        return format_schema_path(self.path)

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"


class SchemaRejected(Exception):
    """Exception that carries a `SchemaProblem` out of nested calls."""

    def __init__(self, problem: SchemaProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def format_schema_path(path: Path) -> str:
    """Format a path as `$.properties.path`, with long keys shortened."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{shorten(part, 60)}" for part in path)
    return shorten("$" + "".join(parts), 200)


def shorten(text: str, limit: int) -> str:
    """Return `text`. If it is longer than `limit`, its middle is replaced by dots."""
    return text if len(text) <= limit else f"{text[: limit - limit // 4 - 3]}...{text[-(limit // 4) :]}"


def check_schema_limits(schema: Any, *, grammar: bool) -> None:
    """Check the size, depth, references and numeric bounds of a schema.

    With `grammar`, limits that apply only to grammars are checked too.

    Raises:
        SchemaRejected: The schema has an error; the first one is reported.
    """
    _check_json(schema)
    nodes = _Nodes(schema)
    for path, node in nodes.found:
        _check_numbers(node, path, grammar)
    _check_patterns(collect_patterns(nodes))
    if (count := nodes.count_applied()) > MAX_SUBSCHEMAS:
        raise _too_large_error(
            (), f"has {_format_count(count)} subschemas after following references", MAX_SUBSCHEMAS, "shorten it"
        )
    nodes.check_cycles()


def find_patterns(schema: Any) -> list[tuple[Path, str]]:
    """Return the path and text of each regular expression in a schema that has passed `check_schema_limits`."""
    return collect_patterns(_Nodes(schema))


def collect_patterns(nodes: _Nodes) -> list[tuple[Path, str]]:
    """Return the path and text of each regular expression in `nodes`."""
    found: list[tuple[Path, str]] = []
    for path, node in nodes.found:
        if isinstance(pattern := node.get("pattern"), str):
            found.append(((*path, "pattern"), pattern))
        if isinstance(named := node.get("patternProperties"), dict):
            found += [((*path, "patternProperties", key), key) for key in named]
    return found


def count_subschemas(schema: Any) -> int:
    """Return the number of subschemas after following references; a recursive reference counts once."""
    return _Nodes(schema).count_applied()


def iter_subschemas(node: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield the path, relative to `node`, and the value of each direct subschema."""
    for key, value in node.items():
        if key in SCHEMA_KEYWORDS and isinstance(value, dict | bool):
            yield (key,), value
        elif key in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            yield from (((key, i), part) for i, part in enumerate(value))
        elif key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            yield from (((key, name), part) for name, part in value.items())


def resolve_reference(root: Any, reference: str) -> tuple[Path, Any] | None:
    """Return the path and value that a reference such as `#/$defs/name` points to; None if it does not resolve."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    value = root
    path: list[str | int] = []
    for raw in reference.split("/")[1:]:
        part = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and part in value:
            path.append(part)
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(value):
            path.append(int(part[:9]))
            value = value[int(part[:9])]
        else:
            return None
    return tuple(path), value


# -- the walk ----------------------------------------------------------------------------------------------------------


class _Nodes:
    """Graph of a schema and its subschemas. Boolean schemas are omitted.

    Raises:
        SchemaRejected: A reference does not resolve within the schema, or there are too many subschemas.
    """

    def __init__(self, root: Any) -> None:
        self.found: list[tuple[Path, dict[str, Any]]] = []
        self._root = root
        self._applied: dict[int, list[int]] = {}
        self._in_place: dict[int, list[int]] = {}
        references: list[tuple[Path, dict[str, Any], str]] = []
        anchors: dict[str, tuple[Path, Any]] = {}
        remaining: list[tuple[Path, Any]] = [((), root)]
        while remaining or references:
            if not remaining:  # a reference may lead to a place where no schema was expected
                path, node, key = references.pop()
                target = self._find_target(path, node, key, anchors)
                if isinstance(target[1], dict):
                    self._applied[id(node)].append(id(target[1]))
                    self._in_place[id(node)].append(id(target[1]))
                    remaining.append(target)
                continue
            path, node = remaining.pop()
            if not isinstance(node, dict) or id(node) in self._applied:
                continue
            self.found.append((path, node))
            if len(self.found) > MAX_SUBSCHEMAS:
                raise _too_large_error((), f"has over {MAX_SUBSCHEMAS:,} subschemas", MAX_SUBSCHEMAS, "shorten it")
            applied, in_place = self._applied.setdefault(id(node), []), self._in_place.setdefault(id(node), [])
            for place, part in iter_subschemas(node):
                remaining.append(((*path, *place), part))
                if isinstance(part, dict) and place[0] not in DEFINITIONS:
                    applied.append(id(part))
                    if place[0] in IN_PLACE_KEYWORDS:
                        in_place.append(id(part))
            names = [node[key] for key in ANCHORS if isinstance(node.get(key), str)]
            ids = [node[key] for key in ("$id", "id") if isinstance(node.get(key), str)]  # anchors until draft 7
            names += [name[1:] for name in ids if name.startswith("#")]
            anchors |= dict.fromkeys(names, (path, node))
            references += [(path, node, key) for key in REFERENCES if isinstance(node.get(key), str)]

    def _find_target(
        self, path: Path, node: dict[str, Any], key: str, anchors: Mapping[str, tuple[Path, Any]]
    ) -> tuple[Path, Any]:
        reference = node[key]
        shown = shorten(reference, 80)
        if not reference.startswith("#"):
            message = (
                f"the reference {shown!r} points outside the schema; only references that start with # are allowed"
            )
            fix = "copy the referenced schema into `$defs` of this schema, and refer to it as #/$defs/NAME"
            raise make_schema_error((*path, key), message, fix)
        found = anchors.get(unquote(reference[1:])) or resolve_reference(self._root, reference)
        if found is None or not isinstance(found[1], dict | bool):
            message = f"the reference {shown!r} cannot be resolved"
            fix = "correct the reference, or define the referenced schema in `$defs`"
            raise make_schema_error((*path, key), message, fix)
        return found

    def count_applied(self) -> int:
        """Return the number of subschemas after each reference is replaced by its target.

        A recursive reference counts as one subschema.
        """
        sizes: dict[int, int] = {}
        begun: set[int] = set()
        remaining = [(id(self._root), False)]
        while remaining:
            node, parts_done = remaining.pop()
            if parts_done:
                # A part that has begun but has no size is a recursive reference.
                sizes[node] = 1 + sum(sizes.get(part, 1) for part in self._applied.get(node, ()))
            elif node not in begun:
                begun.add(node)
                remaining.append((node, True))
                remaining += [(part, False) for part in self._applied.get(node, ())]
        return max(sizes[id(self._root)], len(self.found))

    def check_cycles(self) -> None:
        try:
            TopologicalSorter(self._in_place).prepare()
        except CycleError:
            message = "the references form a cycle: a value would be validated with the same schema forever"
            fix = "refer to the schema only from `properties` or `items`"
            raise make_schema_error((), message, fix) from None


# -- the checks --------------------------------------------------------------------------------------------------------


def _check_json(schema: Any) -> None:
    if not isinstance(schema, dict | bool):
        raise SchemaRejected(SchemaProblem("invalid_schema", (), "must be a JSON object"))
    depth, num_values = 0, 0
    level: list[Any] = [schema]
    while level := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        num_values += sum(map(len, level))
        if depth > MAX_DEPTH:
            what = f"is nested more than {MAX_DEPTH} levels deep"
            raise SchemaRejected(SchemaProblem("schema_too_large", (), what, "use fewer levels of objects and lists"))
        if num_values > MAX_BYTES:  # aliases in a YAML file may expand to more than its text
            raise _too_large_error((), f"has over {num_values - 1:,} values", MAX_BYTES, "shorten it")
        level = [part for value in level for part in (value.values() if isinstance(value, dict) else value)]
    try:
        size = len(json.dumps(schema, allow_nan=False, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise SchemaRejected(
            SchemaProblem("invalid_schema", (), "contains an unpaired surrogate", "write UTF-8 text")
        ) from None
    except (ValueError, TypeError, RecursionError):
        message = "contains a value that JSON does not support, such as infinity or a number with thousands of digits"
        raise SchemaRejected(SchemaProblem("invalid_schema", (), message, "use smaller numbers")) from None
    if size > MAX_BYTES:
        raise _too_large_error(
            (), f"has {size:,} bytes as JSON", MAX_BYTES, "shorten descriptions and enums, or split the tool"
        )


def _check_numbers(node: Mapping[str, Any], path: Path, grammar: bool) -> None:
    for keys, upper in ((MIN_KEYWORDS, MAX_LOWER_BOUND), (MAX_KEYWORDS, MAX_UPPER_BOUND)):
        for key in keys if grammar or keys is MIN_KEYWORDS else ():
            value = node.get(key)
            if isinstance(value, int | float) and value > upper:
                raise _too_large_error((*path, key), f"is {_format_count(value)}", upper, "lower it, or remove it")
    if isinstance(choices := node.get("enum"), list) and len(choices) > MAX_CHOICES:
        raise _too_large_error(
            (*path, "enum"), f"has {len(choices):,} values", MAX_CHOICES, "use a type instead of the enum"
        )
    if grammar:
        _check_bounds(node, path)


def _check_bounds(node: Mapping[str, Any], path: Path) -> None:
    """Reject bounds that a grammar cannot express: empty ranges, and fractional bounds of integers."""
    if node.get("enum") == []:
        raise make_schema_error((*path, "enum"), "is empty", "add values, or remove it")
    whole = node.get("type") == "integer"
    for key in NUMERIC if whole else ():
        if isinstance(value := node.get(key), float) and not value.is_integer():
            raise make_schema_error((*path, key), "must be a whole number, since it bounds an integer", "round it")
    for lower, upper in BOUNDS:
        low, high = _as_number(node.get(lower)), _as_number(node.get(upper))
        if low is not None and high is not None:
            strict = sum(key.startswith("exclusive") for key in (lower, upper))
            if low > high or (strict and low == high) or (whole and strict == 2 and int(high) == int(low) + 1):
                raise make_schema_error(
                    (*path, lower), f"leaves no values below {upper}", f"lower it, or raise {upper}"
                )


def _as_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def make_schema_error(path: Path, what: str, fix: str) -> SchemaRejected:
    """Return the error for an invalid part of a schema."""
    return SchemaRejected(SchemaProblem("invalid_schema", path, what, fix))


def _check_patterns(patterns: list[tuple[Path, str]]) -> None:
    if len(patterns) > MAX_PATTERNS:
        raise _too_large_error((), f"has {len(patterns):,} patterns", MAX_PATTERNS, "remove some")
    for path, pattern in patterns:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise _too_large_error(
                path, f"has {len(pattern):,} characters", MAX_PATTERN_CHARS, "write a shorter pattern"
            )


def _too_large_error(path: Path, what: str, upper: int, fix: str) -> SchemaRejected:
    return SchemaRejected(SchemaProblem("schema_too_large", path, f"{what}; at most {upper:,} are allowed", fix))


def _format_count(value: float) -> str:
    return f"{value:,}" if value < 10**15 else "more than 10^15"
