"""Projects that are copied from an example: a job, its rows, and a server for its tools and grader.

Users then change these files for their own task.

This package contains the folders of the examples: symbolic links in a checkout, and copies in a wheel. The files in
these folders are read and never imported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from agent_rft.cli.projects.project_folder import SCHEMAS, get_program_command, make_config_files, write_files

EXAMPLES = Path(str(resources.files("agent_rft.cli.projects")))
LEDGER_MODULES = ("__init__", "app", "latency", "questions", "server", "tools", "vocabulary", "world")


@dataclass(frozen=True, slots=True)
class ExampleProject:
    """Content of a project that is copied from an example.

    Attributes:
        server_arguments: Arguments with which `python` starts the project's server.
        ports: Ports on which the server listens.
        files: Files and folders in the example's folder, mapped to their paths in the project.
        example_package: Package name in the example's Python files, which is replaced by `project_package`.
        project_package: Package name in the project's Python files.
        setup_commands: Commands to run before the job is checked, as (name, arguments).
        has_test: Whether the job has a test file, which is graded before and after training.
    """

    server_arguments: str
    ports: tuple[int, ...]
    files: Mapping[str, str]
    example_package: str
    project_package: str
    setup_commands: tuple[tuple[str, str], ...] = ()
    has_test: bool = True


_LEDGER_FILES = {"project": "", "base": "base", "data": "data"}
PROJECTS = {
    "ledger": ExampleProject(
        "-m ledger.server --tools-port 8701 --grader-port 8702",
        (8701, 8702),
        _LEDGER_FILES | {f"{module}.py": f"ledger/{module}.py" for module in LEDGER_MODULES},
        "examples.ledger",
        "ledger",
    ),
    "endpoint": ExampleProject(
        "-m uvicorn server:app --port 8700",
        (8700,),
        {"project": "", "server.py": "server.py", "rows.jsonl": "rows.jsonl"},
        "examples.endpoint.",
        "",
        (("hf", "download Qwen/Qwen3-0.6B"),),
        has_test=False,
    ),
}


def write_project(folder: Path, example: str, with_operator_file: bool = False) -> str:
    """Write a project that is copied from `example`, and return the next steps, with commands to copy.

    If `with_operator_file` is true, the project contains an `agent-rft.yaml` that allows jobs of `agent-rft serve` to
    call the project's server.

    Raises:
        UserError: The folder is not empty, or cannot be written.
    """
    project = PROJECTS[example]
    write_files(
        folder,
        _build_contents(project, EXAMPLES / example) | make_config_files(project.ports, with_operator_file),
    )
    return _next_steps(folder, project)


def _build_contents(project: ExampleProject, root: Path) -> dict[Path, bytes]:
    """Return the content of each file by its path in the project."""
    found: dict[Path, bytes] = {}
    for source, target in _iter_files_to_copy(project, root):
        content = source.read_bytes()
        if source.suffix == ".py":
            content = content.replace(project.example_package.encode(), project.project_package.encode())
        elif source.suffix == ".yaml":
            content = re.sub(rb"\$schema=\S+/", f"$schema={SCHEMAS}/".encode(), content)
        found[target] = content
    return found


def _iter_files_to_copy(project: ExampleProject, root: Path) -> Iterator[tuple[Path, Path]]:
    for name, target in project.files.items():
        source = root / name
        if not source.is_dir():
            yield source, Path(target)
            continue
        for path in sorted(source.iterdir()):
            yield path, Path(target, path.name)


def _next_steps(folder: Path, project: ExampleProject) -> str:
    enter, agent_rft = f"cd {shlex.quote(str(folder))}", get_program_command("agent-rft")
    lines = [
        f"{folder} contains a job, its rows and a server with its tools and grader; see README.md. Start the server:",
        "",
        f"  {enter} && {get_program_command('python')} {project.server_arguments}",
        "",
        "and in another terminal:",
        "",
        f"  {enter}",
        *(f"  {get_program_command(name)} {arguments}" for name, arguments in project.setup_commands),
        f"  {agent_rft} check job.yaml",
        f"  {agent_rft} ready job.yaml",
        f"  {agent_rft} train job.yaml --run-folder runs/first",
    ]
    if project.has_test:
        lines.append(f"  {agent_rft} compare runs/first:test-before runs/first:test-after")
    return "\n".join(lines)
