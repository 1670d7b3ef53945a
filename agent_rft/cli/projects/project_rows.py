"""Rows of a project: created from examples or generated from the tools' schemas, then split into three files."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from agent_rft.cli.projects.csv_examples import REFERENCE_ANSWER, CsvExample, normalize_question
from agent_rft.cli.projects.project_tools import ProjectTool
from agent_rft.cluster.checks.schema_examples import make_example
from agent_rft.errors import UserError
from agent_rft.spec.schemas.json_schema import SchemaValidator

FILES = ("train", "validation", "test")
MIN_ROWS = len(FILES)
MAX_VALIDATION, MAX_TEST = 100, 300
"""Approximate maximum numbers of validation and test rows. Groups of rows are not split."""
GROUP = "group"
"""Name of the column that groups related rows, such as all rows about one customer or document.

Rows with the same value stay in one file, so that facts in training rows do not reveal answers of test rows.
"""
NUM_STARTER_ROWS = 30
PHRASES = (
    "Call the tool {name} with {arguments}, and answer with what it returns.",
    "What does {name} return for {arguments}? Answer with its result alone.",
    "Use {name} with {arguments}. Give its result and nothing else.",
    "Find out with {name} and {arguments} what the result is, and answer with it.",
    "Run {name} with {arguments} and repeat its result.",
)
WORDS = ("lamp", "blue chair", "Ada", "2026-03-02", "north", "1042", "summer", "a", "invoice", "Bo")


def make_rows(examples: Sequence[CsvExample], tools: Sequence[ProjectTool], system: str) -> list[dict[str, Any]]:
    """Return a row for each example, with the tools, and with the system message `system` if it is not empty."""
    return [
        _make_row(example.question, tools, system) | example.extra_fields | {REFERENCE_ANSWER: example.answer}
        for example in examples
    ]


def generate_rows(tools: Sequence[ProjectTool], system: str) -> list[dict[str, Any]]:
    """Generate rows, each of which asks the model for one tool call.

    Tools that may change data are used only if there are no other tools.
    """
    found: dict[str, dict[str, Any]] = {}
    harmless = [tool for tool in tools if not tool.may_change_data] or list(tools)
    for i in range(NUM_STARTER_ROWS * len(PHRASES)):
        tool, variant = harmless[i % len(harmless)], i // len(harmless)
        phrase, round_ = variant % len(PHRASES), variant // len(PHRASES)
        arguments = _make_arguments(tool, 2 * phrase + round_)  # combines each phrase with all values
        shown = ", ".join(f"{name} = {value}" for name, value in arguments.items()) or "no arguments"
        question = PHRASES[phrase].format(name=tool.name, arguments=shown)
        expected = {"name": tool.name, "arguments": arguments}
        found.setdefault(normalize_question(question), _make_row(question, tools, system) | {"expected_call": expected})
        if len(found) == NUM_STARTER_ROWS:
            break
    return list(found.values())


def split_rows(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Split rows into the files test (a fifth), validation (a tenth) and train (the rest). Return the rows by file.

    The same rows are always split in the same way.

    Raises:
        UserError: There are too few rows.
    """
    groups: dict[Any, list[dict[str, Any]]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.get(GROUP, i), []).append(row)
    if len(groups) < MIN_ROWS:
        what = f"different values of {GROUP!r}" if len(groups) < len(rows) else "different examples"
        fix = "give at least three, one each for training, validation and test; about thirty are a good start"
        raise UserError(f"there are only {len(groups)} {what}: {fix}")
    shuffled = list(groups.values())
    random.Random(0).shuffle(shuffled)
    shuffled.sort(key=len)  # so that no large group fills a small file
    sizes = {"test": min(MAX_TEST, len(rows) // 5), "validation": min(MAX_VALIDATION, len(rows) // 10)}
    files: dict[str, list[dict[str, Any]]] = {name: [] for name in FILES}
    for name, num in sizes.items():
        while not files[name] or (len(files[name]) < num and len(shuffled) > MIN_ROWS):
            files[name] += shuffled.pop(0)
    files["train"] = [row for group in shuffled for row in group]
    return files


def _make_row(question: str, tools: Sequence[ProjectTool], system: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    row: dict[str, Any] = {"messages": [*messages, {"role": "user", "content": question}]}
    return row | {"tools": [tool.to_chat_tool() for tool in tools]} if tools else row


def _make_arguments(tool: ProjectTool, variant: int) -> dict[str, Any]:
    """Return arguments that match the tool's schema. Each variant gets different arguments if the schema allows it."""
    example = make_example(tool.parameters)
    properties = tool.parameters.get("properties", {})
    names = tool.parameters.get("required") or list(properties)[:2]
    varied = {name: _vary_value(properties.get(name, {}), variant, i) for i, name in enumerate(names)}
    arguments = {name: example.get(name) if value is None else value for name, value in varied.items()}
    return arguments if SchemaValidator(tool.parameters).find_violation(arguments) is None else example


def _vary_value(schema: Any, variant: int, index: int) -> Any:
    """Return a value that depends on `variant` and `index`; None for objects, lists and constrained strings."""
    if not isinstance(schema, dict):
        return None
    if choices := [*_choices(schema)]:
        return choices[variant % len(choices)]
    match schema.get("type"):
        case "integer" | "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            return (low if isinstance(low, int) else 0) + 1 + variant * (index + 1) + index
        case "string" if not {"pattern", "format"} & schema.keys():
            return WORDS[(variant + index * 3) % len(WORDS)]
        case "boolean":
            return variant % 2 == 0
    return None


def _choices(schema: dict[str, Any]) -> Iterator[Any]:
    for key in ("enum", "examples"):
        if isinstance(values := schema.get(key), list):
            yield from (value for value in values if value is not None)
            return
