"""YAML and JSON files -> models, with every mistake named by its field and line.

Values that come from the environment (`${NAME}`) are secrets: no message shows one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trainer.errors import Problem

M = TypeVar("M", bound=BaseModel)
KeyPath = tuple[str | int, ...]
"""Where something stands in a file: keys and indices from its root."""
Special = Callable[[KeyPath], tuple[str, str, str] | None]
"""Code, message and remedy of a mistake at a place of which more is known than that it is none of the model's."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ANY = "*"
"""Any index of a list."""
_ALIKE = 0.75
"""From this ratio of difflib on, a key counts as another one misspelt."""
_SECRETS = {"headers", "api_key"}
_WORDS = {"missing": "is missing", "extra_forbidden": "is no known key"}
_REMEDIES = {
    "union_tag_not_found": "add `type`",
    "union_tag_invalid": "use one of the grader types that the message names",
}


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A parsed file. `root` is what messages call it as a whole: job, config."""

    root: str
    raw: Any
    lines: Lines
    file: str | None = None

    def problem(self, code: str, place: KeyPath, message: str, remedy: str) -> Problem:
        return Problem(code, field_name(place) or self.root, message, remedy, self.file, self.lines.of(place))

    def duplicates(self) -> list[Problem]:
        return [
            Problem("duplicate_key", field_name(place), "stands twice", "keep one of the two", self.file, line)
            for place, line in self.lines.duplicates()
        ]


def read_source(path: Path, root: str) -> ParsedFile | Problem:
    """A file's content, or why there is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        remedy = "give the path of a readable YAML or JSON file"
        return Problem(f"unreadable_{root}", root, f"cannot be read: {why}", remedy, str(path))
    try:
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        return ParsedFile(root, raw, Lines(yaml.compose(text, yaml.SafeLoader)), str(path))
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        # Not str(error) of YAML's: it quotes the line, which may hold a secret.
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
        why = getattr(error, "problem", None) or getattr(error, "msg", None) or "it is no YAML"
        return Problem(f"{root}_syntax", root, f"cannot be parsed: {why}", "mend the syntax", str(path), line)


def fill_in(source: ParsedFile, environment: Mapping[str, str]) -> tuple[Any, Variables, list[Problem]]:
    """What the source holds with its variables filled in, and those that the environment lacks."""
    variables = Variables(environment)
    raw = variables.fill_in(source.raw, ())
    problems = []
    for place, name in variables.missing:
        message, remedy = f"${{{name}}} is not set in the environment", f"export {name}=... before the command"
        problems.append(source.problem("missing_variable", place, message, remedy))
    return raw, variables, problems


def validate(
    model: type[M], raw: Any, source: ParsedFile, variables: Variables, special: Special = lambda place: None
) -> tuple[M | None, list[tuple[KeyPath, Problem]]]:
    """The model, or each place that is wrong in `raw` with its problem."""
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        found: dict[KeyPath, list[Any]] = {}
        for item in error.errors(include_url=False, include_context=False):
            place = place_of(item["loc"], raw, missing=item["type"] == "missing")
            found.setdefault(place, []).append(item)
        for place in [place for place, items in found.items() if items[0]["type"] == "too_short"]:
            if any(other[: len(place)] == place for other in found if other != place):
                del found[place]  # its items are there, only wrong
        keys = _keys(model)
        return None, [(at, _problem(items, at, source, variables, special, keys)) for at, items in found.items()]


@functools.cache
def _keys(model: type[BaseModel]) -> Keys:
    return Keys(model)


def _problem(
    errors: list[Any], place: KeyPath, source: ParsedFile, variables: Variables, special: Special, keys: Keys
) -> Problem:
    """`errors` has one entry for each way in which the value could have been right."""
    known = special(place)
    if known is not None:
        code, message, remedy = known
        return source.problem(code, place, message, remedy)
    kind = errors[0]["type"]
    first, *others = [error["msg"].removeprefix("Value error, ").removeprefix("Input should be ") for error in errors]
    must = "must be " if errors[0]["msg"].startswith("Input should be ") else ""
    message = _WORDS.get(kind, must + ", or ".join([first, *others]))
    given = errors[0].get("input")
    shown = isinstance(given, str | int | float) and not isinstance(given, bool) and _SECRETS.isdisjoint(place)
    if shown and kind != "extra_forbidden":  # an unknown key may be a secret that was put in the wrong place
        message += f" (given: {given!r})"
    remedy = _REMEDIES.get(kind, "give a value that fits the message")
    if kind == "extra_forbidden":
        remedy = keys.instead_of(place)
    elif kind == "missing":
        remedy = keys.missing(place, errors[0].get("input"))
    return source.problem(f"invalid_{kind}", place, variables.hide(message), remedy)


def place_of(loc: Sequence[str | int], raw: Any, *, missing: bool) -> KeyPath:
    """Pydantic's location without the names of union members, which are no keys of the job."""
    place: list[str | int] = []
    for part in loc:
        if part in (raw if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else ()):
            place.append(part)
            raw = raw[part]
    return (*place, loc[-1]) if missing else tuple(place)


class Keys:
    """The keys that a model knows, by where they may stand: for somebody who wrote another one."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._schema = model.model_json_schema()
        self._known: dict[KeyPath, set[str]] = {}
        self._visit(self._schema, (), ())

    def instead_of(self, place: KeyPath) -> str:
        """What to do about an unknown key."""
        (*parent, key), parents = _pattern(place), _pattern(place[:-1])
        near = get_close_matches(str(key), self._known.get(tuple(parent), ()), 1, _ALIKE)
        if near:
            return f"did you mean {near[0]!r}?"
        homes = [home for home, keys in self._known.items() if key in keys]
        homes = [home for home in homes if home[: len(parents)] == parents] or homes
        if 0 < len(homes) <= 2:
            return "move it: its place is below " + " or ".join(field_name(home) or "the top" for home in homes)
        return "remove the key or mend its spelling"

    def missing(self, place: KeyPath, beside: Any) -> str:
        """What to do about a key that is missing from the mapping `beside`."""
        strange = set(beside) - self._known.get(_pattern(place[:-1]), set()) if isinstance(beside, dict) else ()
        near = get_close_matches(str(place[-1]), [key for key in strange if isinstance(key, str)], 1, _ALIKE)
        return f"mend the spelling of {near[0]!r}" if near else "add the key"

    def _visit(self, schema: Any, place: KeyPath, above: tuple[str, ...]) -> None:
        if not isinstance(schema, dict):
            return
        name = schema.get("$ref")
        if name is not None and name not in above:  # graders hold graders: once is enough
            self._visit(self._schema["$defs"][name.rpartition("/")[2]], place, (*above, name))
        for key, value in schema.get("properties", {}).items():
            self._known.setdefault(place, set()).add(key)
            self._visit(value, (*place, key), above)
        for inner in ("anyOf", "oneOf", "allOf"):
            for value in schema.get(inner, ()):
                self._visit(value, place, above)
        for value in [schema.get("items"), *schema.get("prefixItems", ())]:
            self._visit(value, (*place, _ANY), above)


def _pattern(place: KeyPath) -> KeyPath:
    return tuple(_ANY if isinstance(part, int) else part for part in place)


def field_name(place: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


class Variables:
    """Fills in `${NAME}`, remembers what was filled in and what is missing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._used: dict[str, str] = {}
        self.missing: list[tuple[KeyPath, str]] = []

    def fill_in(self, value: Any, place: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: self.fill_in(inner, (*place, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.fill_in(inner, (*place, i)) for i, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        return _VARIABLE.sub(lambda match: self._look_up(match[1], place), value)

    def _look_up(self, name: str, place: KeyPath) -> str:
        if name not in self._environment:
            self.missing.append((place, name))
            return ""
        self._used[name] = self._environment[name]
        return self._used[name]

    def hide(self, text: str) -> str:
        """`text` with the names of variables in place of their values."""
        for name, value in self._used.items():
            text = text.replace(value, f"${{{name}}}") if value else text
        return text


class Lines:
    """The lines of a parsed YAML document (JSON is YAML)."""

    def __init__(self, root: yaml.Node | None) -> None:
        self._root = root

    def of(self, place: KeyPath) -> int | None:
        """The line of the deepest part of `place` that the document holds."""
        node, line = self._root, None
        for part in place:
            found = next((pair for pair in _children(node) if pair[0] == part), None)
            if found is None:
                break
            _, line, node = found
        return line

    def duplicates(self) -> list[tuple[KeyPath, int]]:
        """Keys that stand twice in one mapping, of which YAML would silently take the last."""
        found: list[tuple[KeyPath, int]] = []

        def visit(node: yaml.Node | None, place: KeyPath) -> None:
            seen = set()
            for key, line, child in _children(node):
                if key in seen:
                    found.append(((*place, key), line))
                seen.add(key)
                visit(child, (*place, key))

        visit(self._root, ())
        return found


def _children(node: yaml.Node | None) -> Iterator[tuple[str | int, int, yaml.Node]]:
    """(key or index, line, value) of each child."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield i, value.start_mark.line + 1, value
