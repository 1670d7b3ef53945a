"""Projects built from the user's sources.

The tools come from a Python file of functions, from an API or from a published list. The rows come from a CSV file, or
are generated from the tools' schemas.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from agent_rft.cli.projects import PORT
from agent_rft.cli.projects.csv_examples import CsvExamples, read_examples
from agent_rft.cli.projects.example_project import EXAMPLES
from agent_rft.cli.projects.openapi_document import read_document
from agent_rft.cli.projects.openapi_tools import ToolApi, read_api
from agent_rft.cli.projects.project_folder import (
    check_new_or_empty,
    get_program_command,
    make_config_files,
    write_files,
)
from agent_rft.cli.projects.project_rows import FILES, GROUP, generate_rows, make_rows, split_rows
from agent_rft.cli.projects.project_tools import ProjectTool
from agent_rft.cli.projects.published_tools import (
    ToolList,
    has_json_lines,
    is_tool_list,
    read_tool_document,
    read_tool_lines,
)
from agent_rft.cli.projects.python_tools import ToolModule, read_module
from agent_rft.errors import UserError

TOY = EXAMPLES / "ledger" / "base"
TOY_TOKENS, TOKENS = 512, 2_048
SOURCES = (
    "a Python file (tools.py), an OpenAPI document or a list of tools (.json, .yaml, .jsonl, http...), or a CSV file "
    "of examples (.csv, .tsv)"
)
TOOL_SOURCES = {"module", "api", "tool_list"}
_TEMPLATES = Environment(
    loader=PackageLoader("agent_rft.cli.projects"),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)


@dataclass(frozen=True, slots=True)
class ProjectRequest:
    """Content that the user requested for a project.

    `sources` are the values of `--from`. If `tools` is not empty, the project has only the tools with these names. If
    `model` is None, the project contains a toy model.
    """

    sources: tuple[str, ...]
    tools: tuple[str, ...] = ()
    system_message: str = ""
    model: str | None = None
    port: int = PORT
    with_operator_file: bool = False
    """Whether to write an `agent-rft.yaml` that allows jobs of `agent-rft serve` to call the project's server."""


@dataclass(frozen=True, slots=True)
class ProjectSources:
    """Parsed sources of a project: at most one source of tools, and at most one file of examples."""

    module: ToolModule | None = None
    api: ToolApi | None = None
    tool_list: ToolList | None = None
    examples: CsvExamples | None = None

    @property
    def kind(self) -> str:
        """Kind of the source of tools, which decides what the project's server does with a call."""
        kinds = {"functions": self.module, "api": self.api, "list": self.tool_list}
        return next((kind for kind, source in kinds.items() if source is not None), "none")

    @property
    def tools(self) -> list[ProjectTool]:
        if self.module is not None:
            return list(self.module.tools)
        if self.tool_list is not None:
            return list(self.tool_list.tools)
        return [operation.tool for operation in self.api.operations] if self.api is not None else []


def write_own_project(folder: Path, request: ProjectRequest) -> str:
    """Write the requested project. Return notes on the project's content, and the next steps with commands to copy.

    Raises:
        UserError: A source cannot be read, or the folder cannot be written.
        InvalidJob: A source has problems; the error lists all of them.
    """
    check_new_or_empty(folder)
    sources = _read_sources(request)
    rows = _make_rows(sources, request.system_message)
    notes = list(_notes(sources, request))
    counts = ", ".join(f"{len(rows[name])} {name}" for name in FILES)
    notes.append(f"rows: {counts}; no question is in two files")
    write_files(folder, _build_contents(folder, request, sources, rows, notes))
    return _next_steps(folder, request, notes)


def _read_sources(request: ProjectRequest) -> ProjectSources:
    found: dict[str, Any] = {}
    for source in request.sources:
        kind = _source_kind(source)
        if kind in found or (kind != "examples" and found.keys() & TOOL_SOURCES):
            raise UserError(f"--from {source}: give at most one source of tools and one CSV file")
        if kind == "module":
            found[kind] = read_module(Path(source), request.tools)
        elif kind == "examples":
            found[kind] = read_examples(Path(source))
        elif kind == "tool_list" or has_json_lines(Path(source)):
            found["tool_list"] = read_tool_lines(Path(source), request.tools)
        elif is_tool_list(document := read_document(source)):
            found["tool_list"] = read_tool_document(document, request.tools)
        else:
            found[kind] = read_api(document, request.tools)
    if request.tools and not found.keys() & TOOL_SOURCES:
        fix = "give a Python file, an OpenAPI document or a list of tools with --from"
        raise UserError(f"--tool requires a source of tools: {fix}")
    return ProjectSources(**found)


def _source_kind(source: str) -> str:
    """Return the kind of a source, based on its name. A source of the kind `api` may also be a list of tools."""
    if source.startswith(("http://", "https://")):
        return "api"
    kinds = {
        "module": (".py",),
        "api": (".json", ".yaml", ".yml"),
        "tool_list": (".jsonl",),
        "examples": (".csv", ".tsv"),
    }
    for kind, endings in kinds.items():
        if Path(source).suffix.lower() in endings:
            return kind
    raise UserError(f"--from {source}: give {SOURCES}")


def _make_rows(sources: ProjectSources, system: str) -> dict[str, list[dict[str, Any]]]:
    if sources.examples is not None:
        return split_rows(make_rows(sources.examples.rows, sources.tools, system))
    return split_rows(generate_rows(sources.tools, system))


def _notes(sources: ProjectSources, request: ProjectRequest) -> Iterator[str]:
    """Yield notes on the sources and on the content of the project."""
    if (module := sources.module) is not None:
        yield (
            f"tools: {', '.join(tool.name for tool in module.tools)} from {module.name} in {module.root}; the module "
            "was imported once in a separate process to read its type hints, and no function was called"
        )
        if module.undocumented:
            names = ", ".join(module.undocumented)
            yield f"tools without a docstring, of which the model sees only the name and the arguments: {names}"
    if (api := sources.api) is not None:
        yield f"tools: {', '.join(tool.name for tool in sources.tools)} from {api.url}; the API was not called"
        if changing := [tool.name for tool in sources.tools if tool.may_change_data]:
            yield f"tools that may change data; the server calls them only with API_CHANGES=1: {', '.join(changing)}"
    if (listed := sources.tool_list) is not None:
        names = ", ".join(tool.name for tool in listed.tools)
        fix = "implement `run_tool` in server.py, because this function only returns a placeholder"
        yield f"tools: {names} from {listed.where}; the list has no code for the tools, so {fix}"
        yield from (f"warning: {note}" for note in listed.notes)
    if (examples := sources.examples) is not None:
        own = f"; extra fields of the rows: {', '.join(examples.extra_columns)}" if examples.extra_columns else ""
        yield f"question: column {examples.question_column!r}; reference_answer: column {examples.answer_column!r}{own}"
        if GROUP in examples.extra_columns:
            yield f"rows with the same value of {GROUP!r} are in the same file"
        if examples.num_repeated:
            yield f"omitted duplicate lines (same question and answer): {examples.num_repeated}"
    else:
        yield "the rows are generated from the tools' schemas; give your own questions and answers as --from FILE.csv"
    if request.model is None:
        yield "model: a toy model to test the setup, which can solve only the ledger example; set `model` in job.yaml"


def _build_contents(
    folder: Path,
    request: ProjectRequest,
    sources: ProjectSources,
    rows: dict[str, list[dict[str, Any]]],
    notes: Sequence[str],
) -> dict[Path, bytes]:
    module, api = sources.module, sources.api
    toy = request.model is None
    values = {
        "kind": sources.kind,
        "tools": [tool.name for tool in sources.tools],
        "module": module.name if module is not None else "",
        "root": _literal(str(module.root)) if module is not None else "",
        "names": _literal([tool.name for tool in sources.tools]),
        "api": _literal(api.url) if api is not None else "",
        "starter": sources.examples is None,
        "toy": toy,
        "model": _literal(_model_setting(request.model)) if request.model is not None else "base",
        "tokens": TOY_TOKENS if toy else TOKENS,
        "port": request.port,
        "serves": request.with_operator_file,
        "suffix": re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-")[:40] or "agent",
        "files": _literal(FILES),
        "counts": ", ".join(f"{len(rows[name])} {name}" for name in FILES),
        "notes": notes,
    }
    found: dict[Path, bytes] = {}
    for name in ("README.md", "job.yaml", "server.py", "grader.py", "test_grader.py"):
        found[Path(name)] = _TEMPLATES.get_template(f"{name}.jinja").render(values).encode()
    for name, part in rows.items():
        found[Path("rows", f"{name}.jsonl")] = "".join(
            json.dumps(row, ensure_ascii=False) + "\n" for row in part
        ).encode()
    if api is not None:
        operations = {
            one.tool.name: {
                "method": one.method,
                "path": one.path,
                "places": one.argument_places,
                "changes": one.tool.may_change_data,
            }
            for one in api.operations
        }
        found[Path("operations.json")] = (json.dumps(operations, indent=2, ensure_ascii=False) + "\n").encode()
    if toy:
        found |= {Path("base", path.name): path.read_bytes() for path in sorted(TOY.iterdir())}
    return found | make_config_files([request.port], request.with_operator_file)


def _literal(value: str | Sequence[str]) -> str:
    """Return the value as a literal that both Python and YAML can read."""
    return json.dumps(value, ensure_ascii=False)


def _model_setting(model: str) -> str:
    """Return a folder as an absolute path, or a model name unchanged."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _next_steps(folder: Path, request: ProjectRequest, notes: Sequence[str]) -> str:
    enter, python, agent_rft = (
        f"cd {shlex.quote(str(folder))}",
        get_program_command("python"),
        get_program_command("agent-rft"),
    )
    lines = [
        f"{folder} contains a job, its rows, its server and a grader with tests; see README.md.",
        *(f"  - {note}" for note in notes),
        "Start the server:",
        "",
        f"  {enter} && {python} -m uvicorn server:app --port {request.port}",
        "",
        "and in another terminal:",
        "",
        f"  {enter}",
    ]
    if request.model is not None and not Path(request.model).is_dir():
        lines.append(f"  {get_program_command('hf')} download {shlex.quote(request.model)}")
    lines += [
        f"  {python} -m unittest test_grader",
        f"  {agent_rft} check job.yaml",
        f"  {agent_rft} ready job.yaml",
        f"  {agent_rft} train job.yaml --run-folder runs/first",
        f"  {agent_rft} compare runs/first:test-before runs/first:test-after",
    ]
    return "\n".join(lines)
