"""Templates of the wire contract: `{{ item.x }}` and `{{ sample.output_tools[0].function.name }}`, nothing else.

What is put in is text, never a template again. Strings go in as they are, all other values as JSON.
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
    """What is wrong with a template, as far as it shows without a row: forms, names, and the keys of `sample`."""
    problems = []
    for match in _PLACEHOLDER.finditer(template):
        path = match[1].strip()
        parsed = _PATH.fullmatch(path)
        if parsed is None:
            problems.append(f"{{{{ {path} }}}} is no path such as item.answer or sample.output_tools[0].function.name")
        elif parsed[1] == "sample" and (mistake := _sample_mistake(_steps(parsed[2]))):
            problems.append(f"{{{{ {path} }}}}: {mistake}")
    if "{{" in _PLACEHOLDER.sub("", template):
        problems.append("a {{ is not closed by }}")
    return problems


def render(template: str, where: str, *, item: dict[str, Any], sample: dict[str, Any]) -> str:
    """The template with its values. `where` names the template in errors ("grader 'exact', input").

    Raises:
        GraderFailed: a path leads nowhere; details are code (invalid_variable_error) and path. For a grader that
            stands alone this discards the rollout; `multi` may say a grade for it (`invalid_grade`).
    """
    names = {"item": item, "sample": sample}

    def value_of(match: re.Match[str]) -> str:
        path = match[1].strip()
        parsed = _PATH.fullmatch(path)
        if parsed is None:
            raise _unknown(where, path, "it is no path")
        value: Any = names[parsed[1]]
        for step in _steps(parsed[2]):
            if not _holds(value, step):
                raise _unknown(where, path, f"there is no {step!r} in {_kind(value)}")
            value = value[step]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PLACEHOLDER.sub(value_of, template)


def _sample_mistake(steps: list[str | int]) -> str | None:
    """Why no sample has such a path, as far as that is sure: an answer's JSON and a call's keys may be any."""
    match steps:
        case ["output_json", *_] | ["output_text"] | ["choices" | "output_tools"]:
            return None
        case ["choices" | "output_tools", int(), *_]:
            return None
        case ["choices" | "output_tools" as key, *_]:
            return f"{key} is a list; write {key}[0]"
        case ["output_text", *_]:
            return "output_text is a text and holds nothing below it"
    return f"a sample has only {', '.join(SAMPLE_KEYS)}"


def _steps(path: str) -> list[str | int]:
    """`.a[0]` -> ["a", 0]"""
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
