"""Templates of the wire contract, with placeholders such as `{{ item.x }}`.

A placeholder is a path like `sample.output_tools[0].function.name`; expressions are not supported. Inserted values are
not parsed as templates. Strings are inserted unchanged, all other values as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from agent_rft.errors import GraderFailed

SAMPLE_KEYS = ("choices", "output_text", "output_json", "output_tools")
INVALID_VARIABLE = "invalid_variable_error"
TOO_LONG = "text_too_long"
MAX_CHARS = 1_000_000
"""Maximum length of a rendered template, and maximum total length of a judge's messages; models cannot read more."""
MAX_PLACEHOLDERS = 1_000
"""Maximum number of placeholders in a template. A grader that needs more should be a python grader."""
MAX_PATH_CHARS = 2_000
"""Maximum length of a placeholder's path."""
MAX_PROBLEMS = 10

_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_PATH = re.compile(r"(item|sample)((?:\.(?!__)[\w-]+|\[\d+\])+)")
_STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]")


def template_problems(template: str) -> list[str]:
    """Return a template's problems that do not depend on the row: syntax errors, and unknown names or `sample` keys."""
    return list(islice(_find_problems(template), MAX_PROBLEMS))


def _find_problems(template: str) -> Iterator[str]:
    end = 0
    for match in _placeholders(template):
        path = match[1].strip()
        parsed = _PATH.fullmatch(path) if len(path) <= MAX_PATH_CHARS else None
        if parsed is None:
            example = "item.answer or sample.output_tools[0].function.name"
            yield f"{{{{ {path:.200} }}}} is not a path such as {example}"
        elif parsed[1] == "sample" and (problem := _sample_path_problem(_split_path(parsed[2]))):
            yield f"{{{{ {path:.200} }}}}: {problem}"
        end = match.end()
    if "{{" in template[end:]:
        yield "a {{ is not closed by }}"


def reads_sample(template: str) -> bool:
    """Return whether a template inserts values of the sample, so that its text depends on the model's output."""
    return any(match[1].strip().startswith("sample") for match in _placeholders(template))


def num_placeholders(template: str) -> int:
    return sum(1 for _ in _placeholders(template))


def render(
    template: str,
    where: str,
    *,
    item: dict[str, Any],
    sample: dict[str, Any],
    max_chars: int = MAX_CHARS,
    escape: Callable[[str], str] = str,
) -> str:
    """Return the template with its placeholders replaced by values of `item` and `sample`.

    `where` names the template in errors ("grader 'exact', input"). `escape` is applied to the values of `sample`,
    because a model wrote them.

    Raises:
        GraderFailed: The text would exceed `max_chars` (kind TOO_LONG), or a path does not exist. For a missing path,
            `details` contains code (invalid_variable_error) and path. The rollout is then discarded, unless the grader
            is part of a `multi` grader with an `invalid_grade`.
    """
    names = {"item": item, "sample": sample}
    parts: list[str] = []
    end = num_chars = 0

    def add(text: str) -> None:
        nonlocal num_chars
        num_chars += len(text)
        if num_chars > max_chars:
            problem = f"{where}: the grader's rendered templates have more than {MAX_CHARS:,} characters in total"
            raise GraderFailed(problem, kind=TOO_LONG)
        parts.append(text)

    for match in _placeholders(template):
        add(template[end : match.start()])
        path = match[1].strip()
        value = _resolve_path(names, path, where)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        add(escape(text) if path.startswith("sample") else text)
        end = match.end()
    add(template[end:])
    return "".join(parts)


def _placeholders(template: str) -> Iterator[re.Match[str]]:
    """Find the placeholders in linear time; the text after the last }} is not searched."""
    return _PLACEHOLDER.finditer(template, 0, template.rfind("}}") + 2)


def _resolve_path(names: dict[str, Any], path: str, where: str) -> Any:
    parsed = _PATH.fullmatch(path)
    if parsed is None:
        raise _make_path_error(where, path, "it is not a path")
    value: Any = names[parsed[1]]
    for step in _split_path(parsed[2]):
        if not _has_step(value, step):
            raise _make_path_error(where, path, f"there is no {step!r:.200} in {_describe_value(value)}")
        value = value[step]
    return value


def _sample_path_problem(steps: list[str | int]) -> str | None:
    """Return the reason why no sample can contain this path; None if a sample can contain it.

    Paths inside JSON answers and tool calls are always accepted, because answers and calls may have any keys.
    """
    match steps:
        case ["output_json", *_] | ["output_text"] | ["choices" | "output_tools"]:
            return None
        case ["choices" | "output_tools", int(), *_]:
            return None
        case ["choices" | "output_tools" as key, *_]:
            return f"{key} is a list; write {key}[0]"
        case ["output_text", *_]:
            return "output_text is a string and has no keys"
    return f"a sample has only the keys {', '.join(SAMPLE_KEYS)}"


def _split_path(path: str) -> list[str | int]:
    """Split a path into keys and indexes: `.a[0]` -> ["a", 0]."""
    return [key if key else int(index) for key, index in _STEP.findall(path)]


def _has_step(value: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(value, list) and step < len(value)
    return isinstance(value, dict) and step in value


def _describe_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with the keys {sorted(value)[:20]}"
    return f"a list of length {len(value)}" if isinstance(value, list) else f"a value of type {type(value).__name__}"


def _make_path_error(where: str, path: str, why: str) -> GraderFailed:
    return GraderFailed(
        f"{where}: {{{{ {path:.200} }}}} has no value, because {why} [{INVALID_VARIABLE}]",
        code=INVALID_VARIABLE,
        path=path,
    )
