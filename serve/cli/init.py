"""`agent-rft init`: a folder with a job, its rows and its server, copied from an example, which is then the user's own.

The examples are files beside the packages, in a checkout as in an installation. They are read, never imported.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import serve
from serve.reference.schemas import schema_of
from trainer.errors import UserError

EXAMPLES = Path(serve.__file__).parents[1] / "examples"
SCHEMAS = "schemas"
"""The folder of the project's JSON schemas, which the first lines of its YAML files name for editors."""
LEDGER_MODULES = ("__init__", "app", "latency", "questions", "server", "tools", "vocabulary", "world")


@dataclass(frozen=True, slots=True)
class Example:
    """What a project is made of: `files` are paths in the example's folder by those in the project, folders included.

    In copied Python files, `package` becomes `renamed`. `server` is what Python is given to run the server; `first` are
    commands that are run before the job is checked, and `evaluated` is the file whose rows `agent-rft eval` grades.
    """

    server: str
    files: Mapping[str, str]
    package: str
    renamed: str
    first: tuple[tuple[str, str], ...] = ()
    evaluated: str = "test_file"


_LEDGER_FILES = {"project": "", "base": "base", "data": "data"}
PROJECTS = {
    "ledger": Example(
        "-m ledger.server --tools-port 8701 --grader-port 8702",
        _LEDGER_FILES | {f"{module}.py": f"ledger/{module}.py" for module in LEDGER_MODULES},
        "examples.ledger",
        "ledger",
    ),
    "endpoint": Example(
        "-m uvicorn server:app --port 8700",
        {"project": "", "server.py": "server.py", "rows.jsonl": "rows.jsonl"},
        "examples.endpoint.",
        "",
        (("hf", "download Qwen/Qwen3-0.6B"),),
        "training_file",  # its only one
    ),
}


def write_project(folder: Path, example: str) -> str:
    """Writes the project and returns the next steps, as lines that can be copied.

    Raises:
        UserError: the folder is not empty, or cannot be written.
    """
    project, written = PROJECTS[example], list[Path]()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not empty: give a folder that does not exist yet")
        for target, content in _contents(project, EXAMPLES / example).items():
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            written.append(folder / target)
            (folder / target).write_bytes(content)
    except BaseException as error:
        for path in written:  # so that the same command can be given again
            path.unlink(missing_ok=True)
        for parent in {path.parent for path in written} - {folder}:
            parent.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"{error.filename or folder} cannot be read or written: {error.strerror}") from None
        raise
    return _next_steps(folder, project)


def _contents(project: Example, root: Path) -> dict[Path, bytes]:
    """The content of each file by its path in the project."""
    found: dict[Path, bytes] = {}
    for source, target in _copies(project, root):
        content = source.read_bytes()
        if source.suffix == ".py":
            content = content.replace(project.package.encode(), project.renamed.encode())
        elif source.suffix == ".yaml":
            content = re.sub(rb"\$schema=\S+/", f"$schema={SCHEMAS}/".encode(), content)
        found[target] = content
    for file in ("job", "operator"):
        schema = json.dumps(schema_of(file), indent=2, ensure_ascii=False) + "\n"
        found[Path(SCHEMAS, f"{file}.json")] = schema.encode()
    return found


def _copies(project: Example, root: Path) -> Iterator[tuple[Path, Path]]:
    for name, target in project.files.items():
        source = root / name
        if not source.is_dir():
            yield source, Path(target)
            continue
        for path in sorted(source.iterdir()):
            yield path, Path(target, path.name)


def _next_steps(folder: Path, project: Example) -> str:
    enter, agent_rft = f"cd {shlex.quote(str(folder))}", _command("agent-rft")
    lines = [
        f"{folder} has a job, its rows and the server of its tools and grader; see README.md there. Start the server:",
        "",
        f"  {enter} && {_command('python')} {project.server}",
        "",
        "and in another terminal:",
        "",
        f"  {enter}",
        *(f"  {_command(name)} {arguments}" for name, arguments in project.first),
        f"  {agent_rft} check job.yaml",
        f"  {agent_rft} train job.yaml",
        f"  {agent_rft} eval job.yaml --file {project.evaluated}    # with --model CHECKPOINT: what was trained",
    ]
    return "\n".join(lines)


def _command(name: str) -> str:
    """A command of this installation as a shell finds it: by its name alone, or else by its path."""
    path = str(Path(sys.executable).with_name(name))
    return name if shutil.which(name) == path else shlex.quote(path)
