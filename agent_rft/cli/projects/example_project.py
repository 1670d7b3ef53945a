"""Projects copied from an example: a job, its rows and its server, which the user can then change.

The example folders are in this package: links in a checkout, copies in a wheel. They are read, never imported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from agent_rft.cli.projects.project_folder import SCHEMAS, editor_and_operator_files, shell_command, write_files

EXAMPLES = Path(str(resources.files("agent_rft.cli.projects")))
LEDGER_MODULES = ("__init__", "app", "latency", "questions", "server", "tools", "vocabulary", "world")


@dataclass(frozen=True, slots=True)
class ExampleProject:
    """Content of a project that is copied from an example.

    Attributes:
        server: Python's arguments that start the server.
        ports: Ports on which the server listens.
        files: Files and folders in the example's folder, mapped to their paths in the project.
        package: Package name in the example's Python files, which `renamed` replaces.
        renamed: Package name in the project's Python files.
        first: Commands to run before the job is checked.
        evaluated: The job's file whose rows `agent-rft eval` grades.
    """

    server: str
    ports: tuple[int, ...]
    files: Mapping[str, str]
    package: str
    renamed: str
    first: tuple[tuple[str, str], ...] = ()
    evaluated: str = "test_file"


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
        "training_file",  # the example's only file of rows
    ),
}


def write_project(folder: Path, example: str, serves: bool = False) -> str:
    """Write the project and return the next steps, with commands to copy.

    With `serves`, jobs of `agent-rft serve` may call the project's server.

    Raises:
        UserError: The folder is not empty, or cannot be written.
    """
    project = PROJECTS[example]
    write_files(folder, _build_contents(project, EXAMPLES / example) | editor_and_operator_files(project.ports, serves))
    return _next_steps(folder, project)


def _build_contents(project: ExampleProject, root: Path) -> dict[Path, bytes]:
    """Return the content of each file by its path in the project."""
    found: dict[Path, bytes] = {}
    for source, target in _list_copies(project, root):
        content = source.read_bytes()
        if source.suffix == ".py":
            content = content.replace(project.package.encode(), project.renamed.encode())
        elif source.suffix == ".yaml":
            content = re.sub(rb"\$schema=\S+/", f"$schema={SCHEMAS}/".encode(), content)
        found[target] = content
    return found


def _list_copies(project: ExampleProject, root: Path) -> Iterator[tuple[Path, Path]]:
    for name, target in project.files.items():
        source = root / name
        if not source.is_dir():
            yield source, Path(target)
            continue
        for path in sorted(source.iterdir()):
            yield path, Path(target, path.name)


def _next_steps(folder: Path, project: ExampleProject) -> str:
    enter, agent_rft = f"cd {shlex.quote(str(folder))}", shell_command("agent-rft")
    lines = [
        f"{folder} contains a job, its rows and a server with its tools and grader; see README.md. Start the server:",
        "",
        f"  {enter} && {shell_command('python')} {project.server}",
        "",
        "and in another terminal:",
        "",
        f"  {enter}",
        *(f"  {shell_command(name)} {arguments}" for name, arguments in project.first),
        f"  {agent_rft} check job.yaml",
        f"  {agent_rft} train job.yaml",
        f"  {agent_rft} eval job.yaml --file {project.evaluated}    # add --model CHECKPOINT for the trained model",
    ]
    return "\n".join(lines)
