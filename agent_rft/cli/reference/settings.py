"""All settings of the files that people write, as plain text, for the manual and for `agent-rft explain`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_rft.cli.reference.schemas import MODELS, Schema, model_schema, variants

ONCE = ("method.reinforcement.guards[].grader", "method.reinforcement.held_out_grader")
"""Paths of graders that have the settings of `method.reinforcement.grader`, which are not listed again."""
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "minProperties": "at least {}",
}
SECTION = "section"
"""The type of a setting that holds further settings."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        file: job, operator or nodes.
        path: As in the file: `a.b`; `a[].b` for items of a list; `a.NAME.b` for values by name; `a[kind].b` for a
            setting that `a` has if its type is kind.
        type: In words, such as `integer or auto`; SECTION for a part with settings of its own.
        default: As in the file; None: the setting is required.
        bounds: In words; None: there are none.
        description: What it does; Markdown on one line.
    """

    file: str
    path: str
    type: str
    default: str | None
    bounds: str | None
    description: str


@dataclass(frozen=True, slots=True)
class Section:
    """The settings directly below `path`, which is empty for those at the top of the file."""

    file: str
    path: str
    description: str
    settings: tuple[Setting, ...]


def all_settings() -> list[Setting]:
    """The settings of all files, sections included."""
    return [setting for file in MODELS for section in sections(file) for setting in section.settings]


def sections(file: str) -> list[Section]:
    """The sections of a file, in its order; a section comes before the sections in it."""
    schema = model_schema(file)
    return list(_Walk(file, schema.get("$defs", {})).section("", schema))


class _Walk:
    """Walks through the schema of a file, whose models are `models`."""

    def __init__(self, file: str, models: Schema) -> None:
        self._file = file
        self._models = models

    def section(self, path: str, model: Schema) -> Iterator[Section]:
        """The section of a model and all sections in it. Required settings come first, the type before all others."""
        required = model.get("required", ())
        names = sorted(model["properties"], key=lambda name: (name != "type", name not in required))
        fields = {f"{path}.{name}".lstrip("."): model["properties"][name] for name in names}
        settings = [self._setting(at, schema, at.rpartition(".")[2] in required) for at, schema in fields.items()]
        yield Section(self._file, path, model["description"], tuple(settings))
        for at, schema in fields.items():
            for inner_path, inner in self._inner(at, schema):
                yield from self.section(inner_path, inner)

    def _setting(self, path: str, schema: Schema, required: bool) -> Setting:
        options = schema.get("anyOf", [schema])
        bounds = [text.format(_bound(o[key])) for o in options for key, text in BOUNDS.items() if key in o]
        default = schema.get("default", {})
        if not {"description", "$ref"} & schema.keys():
            raise ValueError(f"{path} has no description: write one below the field")
        if "description" not in schema:  # Pydantic leaves it out if it is that of the model
            schema = self._model(schema["$ref"]) | schema
        return Setting(
            file=self._file,
            path=path,
            type=_either([kind for option in options for kind in _types_of(option)]),
            default=None if required else "{}" if isinstance(default, dict) else _plain(default),
            bounds=", ".join(bounds) or None,
            description=schema["description"],
        )

    def _inner(self, path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """(path, model) of each model directly in a field."""
        for option in schema.get("anyOf", [schema]):
            if "$ref" in option:
                yield path, self._model(option["$ref"])
            elif "discriminator" in option and path not in ONCE:
                for kind, ref in variants(option).items():
                    yield f"{path}[{kind}]", self._model(ref)
            elif "$ref" in (items := option.get("items", {})):
                yield f"{path}[]", self._model(items["$ref"])
            elif isinstance(values := option.get("additionalProperties"), dict) and "$ref" in values:
                yield f"{path}.NAME", self._model(values["$ref"])

    def _model(self, ref: str) -> Schema:
        model: Schema = self._models[ref.rpartition("/")[2]]
        return model


def _types_of(schema: Schema) -> list[str]:
    if "const" in schema or "enum" in schema:
        return [str(value) for value in schema.get("enum", [schema.get("const")])]
    if "$ref" in schema:
        return [SECTION]
    if "discriminator" in schema:
        return ["grader"]
    if schema["type"] == "array":
        return [f"list of {_many(schema.get('items') or schema['prefixItems'][0])}"]
    if schema["type"] == "object":
        values = schema.get("additionalProperties")
        return [f"{_many(values)} by name" if isinstance(values, dict) else "mapping"]
    return [schema["type"]]


def _many(schema: Schema) -> str:
    return _either([f"{kind}s" for option in schema.get("anyOf", [schema]) for kind in _types_of(option)[:1]])


def _either(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _plain(value: Any) -> str:
    """A value as in a file."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, float):
        return re.sub(r"e-0(\d)", r"e-\1", f"{value:g}")
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return json.dumps(value)


def _bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else _plain(value)
