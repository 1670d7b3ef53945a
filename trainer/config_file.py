"""YAML and JSON files -> models, with every mistake named by its field and line.

Values that come from the environment (`${NAME}`) are secrets: no message shows one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trainer.errors import Problem

M = TypeVar("M", bound=BaseModel)
Place = tuple[str | int, ...]
"""Where something stands in a file: keys and indices from its root."""
Special = Callable[[Place], tuple[str, str, str] | None]
"""Code, message and remedy of a mistake at a place of which more is known than that it is none of the model's."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRETS = {"headers", "api_key"}
_REMEDIES = {
    "missing": "add the key",
    "extra_forbidden": "remove the key or mend its spelling",
    "union_tag_not_found": "add `type`",
    "union_tag_invalid": "use one of the grader types that the message names",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file. `root` is what messages call it as a whole: job, config."""

    root: str
    raw: Any
    lines: Lines
    file: str | None = None

    def problem(self, code: str, place: Place, message: str, remedy: str) -> Problem:
        return Problem(code, field_name(place) or self.root, message, remedy, self.file, self.lines.of(place))

    def duplicates(self) -> list[Problem]:
        return [
            Problem("duplicate_key", field_name(place), "stands twice", "keep one of the two", self.file, line)
            for place, line in self.lines.duplicates()
        ]


def read_source(path: Path, root: str) -> Source | Problem:
    """A file's content, or why there is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        remedy = "give the path of a readable YAML or JSON file"
        return Problem(f"unreadable_{root}", root, f"cannot be read: {why}", remedy, str(path))
    try:
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        return Source(root, raw, Lines(yaml.compose(text, yaml.SafeLoader)), str(path))
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        # Not str(error) of YAML's: it quotes the line, which may hold a secret.
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
        why = getattr(error, "problem", None) or getattr(error, "msg", None) or "it is no YAML"
        return Problem(f"{root}_syntax", root, f"cannot be parsed: {why}", "mend the syntax", str(path), line)


def fill_in(source: Source, environment: Mapping[str, str]) -> tuple[Any, Variables, list[Problem]]:
    """What the source holds with its variables filled in, and those that the environment lacks."""
    variables = Variables(environment)
    raw = variables.fill_in(source.raw, ())
    problems = []
    for place, name in variables.missing:
        message, remedy = f"${{{name}}} is not set in the environment", f"export {name}=... before the command"
        problems.append(source.problem("missing_variable", place, message, remedy))
    return raw, variables, problems


def validate(
    model: type[M], raw: Any, source: Source, variables: Variables, special: Special = lambda place: None
) -> tuple[M | None, list[tuple[Place, Problem]]]:
    """The model, or each place that is wrong in `raw` with its problem."""
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        found: dict[Place, list[Any]] = {}
        for item in error.errors(include_url=False, include_context=False):
            place = place_of(item["loc"], raw, missing=item["type"] == "missing")
            found.setdefault(place, []).append(item)
        return None, [(place, _problem(items, place, source, variables, special)) for place, items in found.items()]


def _problem(errors: list[Any], place: Place, source: Source, variables: Variables, special: Special) -> Problem:
    """`errors` has one entry for each way in which the value could have been right."""
    known = special(place)
    if known is not None:
        code, message, remedy = known
        return source.problem(code, place, message, remedy)
    kind = errors[0]["type"]
    first, *others = [error["msg"].removeprefix("Value error, ") for error in errors]
    message = ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    given = errors[0].get("input")
    shown = isinstance(given, str | int | float) and not isinstance(given, bool) and _SECRETS.isdisjoint(place)
    if shown and kind != "extra_forbidden":  # an unknown key may be a secret that was put in the wrong place
        message += f" (given: {given!r})"
    remedy = _REMEDIES.get(kind, "give a value that fits the message")
    return source.problem(f"invalid_{kind}", place, variables.hide(message), remedy)


def place_of(loc: Sequence[str | int], raw: Any, *, missing: bool) -> Place:
    """Pydantic's location without the names of union members, which are no keys of the job."""
    place: list[str | int] = []
    for part in loc:
        if part in (raw if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else ()):
            place.append(part)
            raw = raw[part]
    return (*place, loc[-1]) if missing else tuple(place)


def field_name(place: Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


class Variables:
    """Fills in `${NAME}`, remembers what was filled in and what is missing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._used: dict[str, str] = {}
        self.missing: list[tuple[Place, str]] = []

    def fill_in(self, value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            return {key: self.fill_in(inner, (*place, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.fill_in(inner, (*place, i)) for i, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        return _VARIABLE.sub(lambda match: self._look_up(match[1], place), value)

    def _look_up(self, name: str, place: Place) -> str:
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

    def of(self, place: Place) -> int | None:
        """The line of the deepest part of `place` that the document holds."""
        node, line = self._root, None
        for part in place:
            found = next((pair for pair in _children(node) if pair[0] == part), None)
            if found is None:
                break
            _, line, node = found
        return line

    def duplicates(self) -> list[tuple[Place, int]]:
        """Keys that stand twice in one mapping, of which YAML would silently take the last."""
        found: list[tuple[Place, int]] = []

        def visit(node: yaml.Node | None, place: Place) -> None:
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
