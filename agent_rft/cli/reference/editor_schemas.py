"""JSON schemas (draft 2020-12) of job, operator and nodes files, for completion, help and checks in editors.

A schema checks keys, types and bounds; `agent-rft check` also checks rules that involve several settings. A schema is
stricter than agent-rft's own reader: the schema rejects "1" and "true" in quotes, and 1 in place of true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel

from agent_rft.spec.job import JobSpec
from agent_rft.spec.node_groups import NodesFile
from agent_rft.spec.operator.operator_config import OperatorConfig

Schema = dict[str, Any]

MODELS: dict[str, type[BaseModel]] = {"job": JobSpec, "operator": OperatorConfig, "nodes": NodesFile}
TITLES = {
    "job": "A job of agent-rft",
    "operator": "The operator's configuration of agent-rft",
    "nodes": "The nodes of a planned cluster, for agent-rft plan",
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
VARIABLE = r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"
"""Pattern of a reference to an environment variable. Any scalar may contain references."""
EXPONENT = r"^[-+]?[0-9.]+[eE][-+]?[0-9]+$"
"""Pattern of numbers such as 1e-6. YAML 1.1 reads such a number as a string; agent-rft converts the string to a number
when it loads the file."""
NON_STRING_TYPES = {"integer", "number", "boolean"}
ANNOTATIONS = ("description", "default")
OMITTED_KEYS = ("title", "format", "writeOnly")


def editor_schema(file: str) -> Schema:
    """Return the JSON schema with which editors check a job, operator or nodes file; `file` is the kind of file."""
    schema = model_schema(file)
    models = schema["$defs"]
    for model in _find_models(MODELS[file]):
        for name, field in model.model_fields.items():
            if isinstance(field.validation_alias, AliasChoices):
                properties = models[model.__name__]["properties"]
                about = {"description": f"Another name of `{name}`."}
                properties |= {
                    str(alias): properties[name] | about for alias in field.validation_alias.choices if alias != name
                }
    schema = _adapt_for_editors(schema, models)
    models = schema.pop("$defs")
    return {"$schema": DIALECT, "title": TITLES[file], **schema, "$defs": models}


def model_schema(file: str) -> Schema:
    """Return the schema that pydantic creates for a kind of file, with each description on one line."""
    schema: Schema = _join_lines(MODELS[file].model_json_schema())
    return schema


def union_variants(schema: Schema) -> dict[str, str]:
    """Return the models in a union, in declaration order: a mapping from each value of `type` to the model's `$ref`."""
    kinds = {ref: kind for kind, ref in schema["discriminator"]["mapping"].items()}
    return {kinds[model["$ref"]]: model["$ref"] for model in schema["oneOf"]}


def _find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield all models in a type annotation, and all models in their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _find_models(field.annotation)
    for inner in get_args(annotation):
        yield from _find_models(inner)


def _join_lines(value: Any) -> Any:
    if isinstance(value, list):
        return [_join_lines(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {key: _join_lines(inner) for key, inner in value.items()}
    if isinstance(found.get("description"), str):
        found["description"] = " ".join(found["description"].split())
    return found


# -- for editors -------------------------------------------------------------------------------------------------------


def _adapt_for_editors(schema: Schema, models: Schema, is_option: bool = False) -> Schema:
    """Return the schema without keys that editors ignore, and with `${NAME}` allowed unless `is_option` is true."""
    found = {key: value for key, value in schema.items() if key not in OMITTED_KEYS}
    if isinstance(found.get("default"), dict | list):
        del found["default"]  # an editor would insert all of it
    if "discriminator" in found:
        return _select_by_type(found, models)
    for key in found.keys() & {"properties", "$defs"}:
        found[key] = {name: _adapt_for_editors(inner, models) for name, inner in found[key].items()}
    if "anyOf" in found:
        found["anyOf"] = [_adapt_for_editors(inner, models, is_option=True) for inner in found["anyOf"]]
    if "prefixItems" in found:
        found["prefixItems"] = [_adapt_for_editors(inner, models) for inner in found["prefixItems"]]
    for key in found.keys() & {"items", "additionalProperties"}:
        if isinstance(found[key], dict):
            found[key] = _adapt_for_editors(found[key], models)
    return found if is_option else _allow_variables(found)


def _select_by_type(schema: Schema, models: Schema) -> Schema:
    """Return a schema that selects one model of a union by the value of `type`.

    Editors then report errors only for the selected model.
    """
    kinds = union_variants(schema)
    about = {kind: models[ref.rpartition("/")[2]]["properties"]["type"]["description"] for kind, ref in kinds.items()}
    chosen = {
        "description": " ".join(f"{kind}: {text}" for kind, text in about.items()),
        "anyOf": [{"enum": list(kinds)}, {"type": "string", "pattern": VARIABLE}],
    }
    when = [
        {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": {"$ref": ref}}
        for kind, ref in kinds.items()
    ]
    rest = {key: value for key, value in schema.items() if key not in ("discriminator", "oneOf")}
    return {**rest, "type": "object", "required": ["type"], "properties": {"type": chosen}, "allOf": when}


def _allow_variables(schema: Schema) -> Schema:
    """Return `schema`, extended to accept `${NAME}` if the schema is for a number, a boolean or an enum."""
    about = {key: schema[key] for key in ANNOTATIONS if key in schema}
    rest = {key: value for key, value in schema.items() if key not in about}
    options = rest.get("anyOf", [rest])
    types = {option.get("type") for option in options}
    pattern = f"{EXPONENT}|{VARIABLE}" if "number" in types else VARIABLE
    if any("const" in option or "enum" in option for option in options):
        return about | {"anyOf": [*options, {"type": "string", "pattern": pattern}]}
    if "string" in types or not types & NON_STRING_TYPES:
        return schema
    keywords = {key: value for option in options for key, value in option.items() if key != "type"}
    return about | {"type": [option["type"] for option in options] + ["string"], **keywords, "pattern": pattern}
