"""Functions that write the files of a project into a new or empty folder, either all files or none."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_rft.cli.reference.editor_schemas import editor_schema
from agent_rft.errors import UserError
from agent_rft.spec.operator.operator_file import DEFAULT_FILE

SCHEMAS = "schemas"
"""Folder of the project's JSON schemas. Each YAML file begins with the path of its schema, for editors."""


def check_new_or_empty(folder: Path) -> None:
    """Check that the folder is new or empty, so that nothing is overwritten.

    Raises:
        UserError: The folder is not empty, or cannot be read.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not empty: give a folder that does not exist yet")
    except OSError as error:
        raise UserError(f"{folder} cannot be read or written: {error.strerror}") from None


def write_files(folder: Path, contents: Mapping[Path, bytes]) -> None:
    """Write files into a new or empty folder. `contents` maps the path of each file in the folder to its content.

    If writing fails, the files that were already written are removed.

    Raises:
        UserError: The folder is not empty, or cannot be written.
    """
    check_new_or_empty(folder)
    written = list[Path]()
    try:
        for target, content in contents.items():
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            written.append(folder / target)
            (folder / target).write_bytes(content)
    except BaseException as error:
        for path in written:  # so that the same command can be run again
            path.unlink(missing_ok=True)
        for parent in {path.parent for path in written} - {folder}:
            parent.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"{error.filename or folder} cannot be read or written: {error.strerror}") from None
        raise


def make_config_files(ports: Sequence[int], with_operator_file: bool) -> dict[Path, bytes]:
    """Return the JSON schemas and the `agent-rft.yaml` of a project as {path: content}.

    Args:
        ports: Ports of the project's server.
        with_operator_file: Whether to include `agent-rft.yaml`. It allows jobs of `agent-rft serve` to call the
            project's server.
    """
    found = {
        Path(SCHEMAS, f"{file}.json"): editor_schema(file)
        for file in (("job", "operator") if with_operator_file else ("job",))
    }
    files = {path: (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode() for path, schema in found.items()}
    if with_operator_file:
        entries = json.dumps([f"127.0.0.1:{port}" for port in ports])
        files[Path(DEFAULT_FILE)] = (
            f"# yaml-language-server: $schema={SCHEMAS}/operator.json\n"
            "# The operator's configuration for `agent-rft serve`: its jobs may call the server of this project.\n"
            f"allowed_networks: {entries}\n"
        ).encode()
    return files


def get_program_command(name: str) -> str:
    """Return the shell command for this installation's program: `name` if it is on the PATH, else its quoted path."""
    path = str(Path(sys.executable).with_name(name))
    return name if shutil.which(name) == path else shlex.quote(path)
