"""Templates of the wire contract: `{{ item.x }}` and `{{ sample.output_tools[0].function.name }}`, nothing else.

Substituted values are never parsed as templates again. Strings are inserted unchanged, all other values as JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trainer.errors import GraderFailed

SAMPLE_KEYS = ("choices", "output_text", "output_json", "output_tools")
INVALID_VARIABLE = "invalid_variable_error"

_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_PATH = re.compile(r"(item|sample)((?:\.(?!__)[\w-]+|\[\d+\])+)")
_STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]")


def template_problems(template: str) -> list[str]:
    """What is wrong with a template, as far as that can be seen without a row: syntax, names, the keys of `sample`."""
    problems = []
    for match in _PLACEHOLDER.finditer(template):
        path = match[1].strip()
        parsed = _PATH.fullmatch(path)
        if parsed is None:
            example = "item.answer or sample.output_tools[0].function.name"
            problems.append(f"{{{{ {path} }}}} is not a path such as {example}")
        elif parsed[1] == "sample" and (mistake := _sample_mistake(_steps(parsed[2]))):
            problems.append(f"{{{{ {path} }}}}: {mistake}")
    if "{{" in _PLACEHOLDER.sub("", template):
        problems.append("a {{ is not closed by }}")
    return problems


def render(template: str, where: str, *, item: dict[str, Any], sample: dict[str, Any]) -> str:
    """The template with its values. `where` names the template in errors ("grader 'exact', input").

    Raises:
        GraderFailed: a path does not exist; its details are code (invalid_variable_error) and path. This discards the
            rollout, unless the grader is part of a `multi` that has an `invalid_grade`.
    """
    names = {"item": item, "sample": sample}

    def value_of(match: re.Match[str]) -> str:
        path = match[1].strip()
        parsed = _PATH.fullmatch(path)
        if parsed is None:
            raise _unknown(where, path, "it is not a path")
        value: Any = names[parsed[1]]
        for step in _steps(parsed[2]):
            if not _holds(value, step):
                raise _unknown(where, path, f"there is no {step!r} in {_kind(value)}")
            value = value[step]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PLACEHOLDER.sub(value_of, template)


def _sample_mistake(steps: list[str | int]) -> str | None:
    """Why no sample can have such a path; None if one might, since an answer's JSON and a call may have any keys."""
    match steps:
        case ["output_json", *_] | ["output_text"] | ["choices" | "output_tools"]:
            return None
        case ["choices" | "output_tools", int(), *_]:
            return None
        case ["choices" | "output_tools" as key, *_]:
            return f"{key} is a list; write {key}[0]"
        case ["output_text", *_]:
            return "output_text is a string and has no keys"
    return f"a sample has only {', '.join(SAMPLE_KEYS)}"


def _steps(path: str) -> list[str | int]:
    """The keys and indexes of a path: `.a[0]` -> ["a", 0]."""
    return [key if key else int(index) for key, index in _STEP.findall(path)]


def _holds(value: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(value, list) and step < len(value)
    return isinstance(value, dict) and step in value


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with the keys {sorted(value)[:20]}"
    return f"a list of {len(value)}" if isinstance(value, list) else f"a value of type {type(value).__name__}"


def _unknown(where: str, path: str, why: str) -> GraderFailed:
    return GraderFailed(
        f"{where}: {{{{ {path} }}}} has no value: {why} [{INVALID_VARIABLE}]", code=INVALID_VARIABLE, path=path
    )
