"""Everything that can be wrong with a job, found before anything starts, in one list: code, field, line, remedy."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jsonschema

from actors.dispatcher import Dispatcher
from actors.endpoint import endpoint_mistake
from actors.grader_pool import GraderPool
from actors.graders.factory import grader_problems
from actors.parsing import tool_parser_names
from cluster.placement import Placement, plan_placement
from trainer.chat import Renderer
from trainer.data import read_tasks
from trainer.errors import InvalidJob, Problem, RftError
from trainer.spec import JobSpec, Plan, Reinforcement, ToolSpec, resolve
from trainer.types import Task, ToolCall, ToolSchema

MAX_AUTO_CONTEXT = 16_384
DRY_RUN_TIMEOUT_S = 20.0
MIN_ANSWER_TOKENS = 16
"""A prompt must leave at least so many tokens of the context to the answer."""
SHOWN_PER_KIND = 20
REASONING_SWITCHES = ("reasoning_effort", "enable_thinking")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that passed, with all that was read and resolved on the way."""

    job: JobSpec
    plan: Plan
    placement: Placement
    context_length: int
    renderer: Renderer
    tasks: list[Task]
    validation: list[Task] = field(default_factory=list)
    test: list[Task] = field(default_factory=list)


async def prepare(job: JobSpec, resources: Mapping[str, float], runs: Path, dry_run: bool = True) -> Prepared:
    """Check a job against its files, its model, its endpoints and the cluster's total `resources`.

    Raises:
        InvalidJob: with everything that was found.
    """
    problems: list[Problem] = []
    supervised = job.method.type == "supervised"
    files: dict[str, list[Task]] = {}
    for name in ("training_file", "validation_file", "test_file"):
        path = getattr(job, name)
        files[name], found = read_tasks(Path(path), name, conversations=supervised) if path else ([], [])
        problems += found
    rows = [(name, task) for name, tasks in files.items() for task in tasks]
    placement, found = plan_placement(job.cluster, resources)
    problems += found
    if not supervised:
        problems += _tool_problems(job.reinforcement, rows)
        problems += grader_problems(job.reinforcement.grader)
        problems += _parser_problems(job)
    renderer, model_context, found = _load_renderer(job)
    problems += found
    context_length = _context_length(job, model_context)
    if renderer is not None:
        problems += _length_problems(rows, renderer, context_length, supervised)
    problems += _space_problems(job, runs)
    if (
        not supervised
        and dry_run
        and not any(p.field.startswith("method.") for p in problems)
        and files["training_file"]
    ):
        problems += await dry_run_problems(job.reinforcement, files["training_file"])
    if problems or renderer is None:
        raise InvalidJob(f"the job has {len(problems)} problem{'s' * (len(problems) != 1)}", _shortened(problems))
    return Prepared(
        job=job,
        plan=resolve(job, len(files["training_file"])),
        placement=placement,
        context_length=context_length,
        renderer=renderer,
        tasks=files["training_file"],
        validation=files["validation_file"],
        test=files["test_file"],
    )


# -- tools, rows -------------------------------------------------------------------------------------------------------


def _tool_problems(reinforcement: Reinforcement, rows: Sequence[tuple[str, Task]]) -> list[Problem]:
    """Tools that no entry of the job serves, entries that no row uses, schemas that are none."""
    problems = []
    served = {tool.name for tool in reinforcement.tools}
    used: set[str] = set()
    checked: dict[str, str | None] = {}
    for name, task in rows:
        for i, tool in enumerate(task.tools):
            function = tool["function"]
            used.add(function["name"])
            where = f"{name}.tools[{i}]"
            if function["name"] not in served:
                message = f"the row's tool {function['name']!r} has no server"
                remedy = "add an entry with this name and its server_url to method.reinforcement.tools"
                problems.append(Problem("tool_without_server", where, message, remedy, *_place(task)))
            key = json.dumps(function.get("parameters"), sort_keys=True)
            if key not in checked:
                checked[key] = _schema_mistake(function.get("parameters"))
            if checked[key] is not None:
                remedy = "give a valid JSON schema (draft 2020-12) of type object"
                problems.append(
                    Problem("invalid_schema", f"{where}.function.parameters", str(checked[key]), remedy, *_place(task))
                )
    for i, entry in enumerate(reinforcement.tools):
        where = f"method.reinforcement.tools[{i}]"
        mistake = endpoint_mistake(entry.server_url, entry.headers)
        if mistake:
            problems.append(Problem("invalid_endpoint", f"{where}.server_url", mistake, "mend server_url or headers"))
        if rows and entry.name not in used:
            remedy = "add its schema to the rows' `tools`, or remove the entry"
            problems.append(Problem("unused_tool", f"{where}.name", f"no row offers the tool {entry.name!r}", remedy))
    if reinforcement.response_format is not None:
        mistake = _schema_mistake(reinforcement.response_format)
        if mistake:
            problems.append(
                Problem("invalid_schema", "method.reinforcement.response_format", mistake, "mend the schema")
            )
    return problems


def _schema_mistake(schema: Any) -> str | None:
    if schema is None:
        return None
    try:
        jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"{error.json_path}: {error.message}"
    return None


def _place(task: Task) -> tuple[str | None, int]:
    """File unknown here (the field names it), line from the row's id."""
    return None, int(task.row_id.split("-")[0])


def _parser_problems(job: JobSpec) -> list[Problem]:
    names = tool_parser_names()
    if job.cluster.tool_parser in names:
        return []
    message = f"there is no parser {job.cluster.tool_parser!r}"
    return [Problem("unknown_parser", "cluster.tool_parser", message, f"use one of {', '.join(names)}")]


# -- the model ---------------------------------------------------------------------------------------------------------


def _load_renderer(job: JobSpec) -> tuple[Renderer | None, int, list[Problem]]:
    """The chat template at work and the model's longest context; problems where either is missing."""
    from transformers import AutoConfig, AutoTokenizer

    def failed(code: str, message: str, remedy: str) -> tuple[None, int, list[Problem]]:
        return None, 0, [Problem(code, "model", message, remedy)]

    folder = Path(job.model)
    if not folder.is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", job.model):
        return failed("missing_model", f"there is no folder {job.model}", "give a model folder or a Hugging Face name")
    if folder.is_dir() and not (folder / "config.json").exists():
        return failed("not_a_model", f"{folder} holds no config.json", "give a folder in Hugging Face form")
    if folder.is_dir() and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        return failed("not_a_model", f"{folder} holds no weights", "add the safetensors files")
    try:
        config = AutoConfig.from_pretrained(job.model)
        tokenizer = AutoTokenizer.from_pretrained(job.model)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return failed("unreadable_model", " ".join(str(error).split())[:400], "give a complete model folder")
    text_config = config.get_text_config()
    context = int(getattr(text_config, "max_position_embeddings", MAX_AUTO_CONTEXT))
    if not getattr(tokenizer, "chat_template", None) or not hasattr(tokenizer, "backend_tokenizer"):
        return failed("no_chat_template", "its tokenizer has no chat template", "use an instruction-tuned model")
    renderer = Renderer(tokenizer, **_template_arguments(job, tokenizer.chat_template))
    mistake = renderer.rewrites_history()
    if mistake is not None:
        remedy = "use a template that keeps earlier turns word by word: what is trained must be what was sampled"
        return failed("template_rewrites_history", f"its chat template cannot be trained on: {mistake}", remedy)
    return renderer, context, []


def _template_arguments(job: JobSpec, template: str) -> dict[str, Any]:
    """The template's own switches for reasoning_effort, where it has them."""
    if job.method.type == "supervised":
        return {}
    effort = job.reinforcement.hyperparameters.reasoning_effort
    if effort == "default":
        return {}
    values = {"reasoning_effort": effort, "enable_thinking": True}
    return {name: values[name] for name in REASONING_SWITCHES if name in template}


def _context_length(job: JobSpec, model_context: int) -> int:
    wanted = job.cluster.context_length
    return min(model_context, MAX_AUTO_CONTEXT) if wanted == "auto" else wanted


def _length_problems(
    rows: Sequence[tuple[str, Task]], renderer: Renderer, context_length: int, supervised: bool
) -> list[Problem]:
    """Rows whose prompt (or conversation) does not fit, or that the template cannot render."""
    problems = []
    for name, task in rows:
        try:
            if supervised:
                length = len(renderer.conversation(task.messages, task.tools)[0])
            else:
                length = len(renderer.prompt(task.messages, task.tools)) + MIN_ANSWER_TOKENS
        except Exception as error:  # noqa: BLE001 - a template is a program from outside: it may raise anything
            message = f"the chat template cannot render the row: {type(error).__name__}: {error}"
            problems.append(Problem("unrenderable_row", f"{name}.messages", message, "mend the row", *_place(task)))
            continue
        if length > context_length:
            message = f"the row takes {length} tokens, the context holds {context_length}"
            remedy = "shorten the row or raise cluster.context_length"
            problems.append(Problem("row_too_long", f"{name}.messages", message, remedy, *_place(task)))
    return problems


# -- the outside -------------------------------------------------------------------------------------------------------


def _space_problems(job: JobSpec, runs: Path) -> list[Problem]:
    """Free disk for two checkpoints (each about five times the weights), shared memory for one copy of the weights."""
    weights = (
        sum(path.stat().st_size for path in Path(job.model).glob("*.safetensors")) if Path(job.model).is_dir() else 0
    )
    problems = []
    existing = next(folder for folder in (runs, *runs.resolve().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < 10 * weights + 2**26:
        message = (
            f"{free / 2**30:.1f} GiB are free on the disk of {runs}, two checkpoints want {10 * weights / 2**30:.1f}"
        )
        problems.append(Problem("disk_full", "runs", message, "free some space or choose another folder with --runs"))
    shm = Path("/dev/shm")
    if not shm.is_dir() or shutil.disk_usage(shm).free < 2 * weights + 2**24:
        message = "there is too little shared memory in /dev/shm for one copy of the weights"
        problems.append(
            Problem("no_shared_memory", "cluster", message, "enlarge /dev/shm (in a container: --shm-size)")
        )
    return problems


async def dry_run_problems(reinforcement: Reinforcement, tasks: Sequence[Task]) -> list[Problem]:
    """Call each tool and the grader once."""
    schemas: dict[str, tuple[ToolSchema, Task]] = {}
    for task in tasks:
        for tool in task.tools:
            schemas.setdefault(tool["function"]["name"], (tool, task))
    tools = [
        tool.model_copy(update={"timeout_s": min(tool.timeout_s, DRY_RUN_TIMEOUT_S)}) for tool in reinforcement.tools
    ]
    results = await asyncio.gather(
        *(_try_tool(i, tool, *schemas[tool.name]) for i, tool in enumerate(tools) if tool.name in schemas),
        _try_grader(reinforcement, tasks[0]),
    )
    return [problem for result in results for problem in result]


async def _try_tool(index: int, tool: ToolSpec, schema: ToolSchema, task: Task) -> list[Problem]:
    field = f"method.reinforcement.tools[{index}].server_url"
    dispatcher = Dispatcher([tool])
    arguments = json.dumps(example_of(schema["function"].get("parameters") or {}))
    call = ToolCall("call_dry_run", tool.name, arguments)
    try:
        (result,) = await dispatcher.call_turn("trace_dry_run", task.item, [call])
    except RftError as error:
        code = "endpoint_refused" if error.details.get("kind") == "refused" else "tool_failed"
        return [Problem(code, field, error.message, "start the tool server, mend its URL or its headers")]
    finally:
        await dispatcher.close()
    if result.error is not None and await _is_wrong_path(tool):
        message = f"{tool.server_url} answers as it does to a path that does not exist"
        return [Problem("wrong_path", field, message, "mend the path of the URL")]
    return []


async def _is_wrong_path(tool: ToolSpec) -> bool:
    """Whether the server answers 404 at this path just as at one that certainly does not exist."""
    url = urlsplit(tool.server_url)
    nowhere = url._replace(path=url.path.rstrip("/") + "/agent-rft-no-such-path").geturl()
    headers = {name: value.get_secret_value() for name, value in tool.headers.items()}
    timeout = aiohttp.ClientTimeout(total=DRY_RUN_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            answers = []
            for place in (tool.server_url, nowhere):
                async with session.post(place, json={}, allow_redirects=False) as response:
                    answers.append((response.status, await response.content.read(4096)))
    except (aiohttp.ClientError, TimeoutError):
        return False
    return answers[0] == answers[1] and answers[0][0] == 404


async def _try_grader(reinforcement: Reinforcement, task: Task) -> list[Problem]:
    pool = GraderPool(reinforcement.grader, deadline_s=DRY_RUN_TIMEOUT_S)
    try:
        outcome = await pool.dry_run(task.item)
    finally:
        await pool.close()
    if not isinstance(outcome, RftError):
        return []
    code = "endpoint_refused" if outcome.details.get("kind") == "refused" else "grader_failed"
    return [
        Problem(code, "method.reinforcement.grader", outcome.message, 'make it answer {"score": number} to any try')
    ]


def example_of(schema: Mapping[str, Any]) -> Any:
    """A small value that fits a JSON schema, for a first call: defaults and enums where given, else empty values."""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("examples"):
        return schema["examples"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: example_of(properties.get(name, {})) for name in schema.get("required", [])}
    if kind == "array":
        return [example_of(schema.get("items", {}))] * int(schema.get("minItems", 0))
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    return {"boolean": False, "null": None}.get(kind, "x" * int(schema.get("minLength", 0)))


def _shortened(problems: list[Problem]) -> list[Problem]:
    """At most SHOWN_PER_KIND of one code and field, and a last one that counts the rest."""
    shown: list[Problem] = []
    counts: dict[tuple[str, str], int] = {}
    for problem in problems:
        key = (problem.code, re.sub(r"\d+", "", problem.field))
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= SHOWN_PER_KIND:
            shown.append(problem)
    for (code, where), count in counts.items():
        if count > SHOWN_PER_KIND:
            shown.append(Problem(code, where, f"and {count - SHOWN_PER_KIND} more of this kind", "mend them likewise"))
    return shown
