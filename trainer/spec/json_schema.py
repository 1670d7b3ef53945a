"""Validation by JSON schemas that users write. Nothing is ever retrieved: a reference must stay within its schema."""

from __future__ import annotations

from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def foreign_reference(schema: Any) -> str | None:
    """The first reference to something outside the schema (a URL, a file, another schema's id), or None."""
    remaining = [schema]
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict):
            for key in REFERENCES:
                if isinstance(target := value.get(key), str) and not target.startswith("#"):
                    return target
            remaining += value.values()
        elif isinstance(value, list):
            remaining += value
    return None


def reference_mistake(schema: Any) -> str | None:
    """Why one of the schema's references is not allowed, or None."""
    target = foreign_reference(schema)
    if target is None:
        return None
    return f"the reference {target!r} points outside the schema; only references that start with # are allowed"


def validator_of(schema: Any) -> Validator:
    """A validator in the dialect of `$schema` (default: draft 2020-12) that cannot retrieve other schemas.

    Validation raises `referencing.exceptions.Unresolvable` if it follows a reference that does not exist.
    """
    dialect = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return dialect(schema, registry=Registry())
