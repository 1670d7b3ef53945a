"""JSON schemas that users write. Validating by one retrieves nothing: every reference stays within its schema."""

from __future__ import annotations

from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def foreign_reference(schema: Any) -> str | None:
    """The first reference that leads out of the schema (a URL, a file, another schema's id); None where none does."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            for key in REFERENCES:
                if isinstance(target := value.get(key), str) and not target.startswith("#"):
                    return target
            left += value.values()
        elif isinstance(value, list):
            left += value
    return None


def reference_mistake(schema: Any) -> str | None:
    """A sentence about a reference that is refused; None where there is none."""
    target = foreign_reference(schema)
    if target is None:
        return None
    return f"the reference {target!r} leads out of the schema; only references that begin with # are followed"


def validator_of(schema: Any) -> Validator:
    """A validator in the dialect of `$schema` (default: draft 2020-12) whose registry is empty and cannot retrieve.

    Following a reference that leads nowhere raises `referencing.exceptions.Unresolvable`.
    """
    dialect = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return dialect(schema, registry=Registry())
