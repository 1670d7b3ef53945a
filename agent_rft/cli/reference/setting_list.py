"""All settings of job, operator and nodes files as plain text, for the manual and `agent-rft explain`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_rft.cli.reference.editor_schemas import MODELS, Schema, model_schema, union_variants

SHARED_GRADER_PATHS = ("method.reinforcement.guards[].grader", "method.reinforcement.held_out_grader")
"""Paths of graders whose settings are not listed, because `method.reinforcement.grader` has the same settings."""
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
"""Type of a setting that contains other settings."""


@dataclass(frozen=True, slots=True)
class DocumentedSetting:
    """Setting of a file, described as plain text for the manual.

    Attributes:
        file: Kind of file: job, operator or nodes.
        path: Path in the file, such as `a.b`. The path `a[].b` is the setting `b` of each item in the list `a`,
            `a.NAME.b` is the setting `b` of each value in the mapping `a`, and `a[kind].b` is the setting `b` of `a`
            if the type of `a` is `kind`.
        type: Human-readable type, such as `integer or auto`; SECTION for a setting that contains other settings.
        default: Default as written in the file; None: the setting is required.
        bounds: Human-readable bounds; None: no bounds.
        description: Effect of the setting; Markdown on one line.
    """

    file: str
    path: str
    type: str
    default: str | None
    bounds: str | None
    description: str


@dataclass(frozen=True, slots=True)
class SettingSection:
    """Settings of one section of a file. `path` is empty for the top-level section."""

    file: str
    path: str
    description: str
    settings: tuple[DocumentedSetting, ...]


def list_settings() -> list[DocumentedSetting]:
    """Return the settings of all files, including settings of the type SECTION."""
    return [setting for file in MODELS for section in list_sections(file) for setting in section.settings]


def list_sections(file: str) -> list[SettingSection]:
    """Return all sections that this kind of file can have. Each section comes before the sections that it contains."""
    schema = model_schema(file)
    return list(_SettingsWalker(file, schema.get("$defs", {})).walk_sections("", schema))


class _SettingsWalker:
    """Walker over the schema of a settings file; `walk_sections` yields the file's sections.

    `models` are the schema's definitions by name.
    """

    def __init__(self, file: str, models: Schema) -> None:
        self._file = file
        self._models = models

    def walk_sections(self, path: str, model: Schema) -> Iterator[SettingSection]:
        """Yield the section with the settings of `model`, then all sections below it.

        In a section, the setting `type` comes first, then the required settings, then all others.
        """
        required = model.get("required", ())
        names = sorted(model["properties"], key=lambda name: (name != "type", name not in required))
        fields = {f"{path}.{name}".lstrip("."): model["properties"][name] for name in names}
        settings = [self._setting(at, schema, at.rpartition(".")[2] in required) for at, schema in fields.items()]
        yield SettingSection(self._file, path, model["description"], tuple(settings))
        for at, schema in fields.items():
            for inner_path, inner in self._inner(at, schema):
                yield from self.walk_sections(inner_path, inner)

    def _setting(self, path: str, schema: Schema, required: bool) -> DocumentedSetting:
        options = schema.get("anyOf", [schema])
        bounds = [text.format(_format_bound(o[key])) for o in options for key, text in BOUNDS.items() if key in o]
        default = schema.get("default", {})
        if not {"description", "$ref"} & schema.keys():
            raise ValueError(f"{path} has no description: write one below the field")
        if "description" not in schema:  # pydantic omits a description that equals the model's
            schema = self._model(schema["$ref"]) | schema
        return DocumentedSetting(
            file=self._file,
            path=path,
            type=_join_with_or([kind for option in options for kind in _type_names(option)]),
            default=None if required else "{}" if isinstance(default, dict) else _format_value(default),
            bounds=", ".join(bounds) or None,
            description=schema["description"],
        )

    def _inner(self, path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """Yield (path, model) for each model that the setting at `path` accepts as its value or as an item."""
        for option in schema.get("anyOf", [schema]):
            if "$ref" in option:
                yield path, self._model(option["$ref"])
            elif "discriminator" in option and path not in SHARED_GRADER_PATHS:
                for kind, ref in union_variants(option).items():
                    yield f"{path}[{kind}]", self._model(ref)
            elif "$ref" in (items := option.get("items", {})):
                yield f"{path}[]", self._model(items["$ref"])
            elif isinstance(values := option.get("additionalProperties"), dict) and "$ref" in values:
                yield f"{path}.NAME", self._model(values["$ref"])

    def _model(self, ref: str) -> Schema:
        model: Schema = self._models[ref.rpartition("/")[2]]
        return model


def _type_names(schema: Schema) -> list[str]:
    if "const" in schema or "enum" in schema:
        return [str(value) for value in schema.get("enum", [schema.get("const")])]
    if "$ref" in schema:
        return [SECTION]
    if "discriminator" in schema:
        return ["tracker" if "wandb" in schema["discriminator"]["mapping"] else "grader"]
    if schema["type"] == "array":
        return [f"list of {_plural_types(schema.get('items') or schema['prefixItems'][0])}"]
    if schema["type"] == "object":
        values = schema.get("additionalProperties")
        return [f"{_plural_types(values)} by name" if isinstance(values, dict) else "mapping"]
    return [schema["type"]]


def _plural_types(schema: Schema) -> str:
    return _join_with_or([f"{kind}s" for option in schema.get("anyOf", [schema]) for kind in _type_names(option)[:1]])


def _join_with_or(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _format_value(value: Any) -> str:
    """Return a value as written in a file."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, float):
        return re.sub(r"e-0(\d)", r"e-\1", f"{value:g}")
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    return json.dumps(value)


def _format_bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else _format_value(value)
