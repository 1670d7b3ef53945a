"""The public functions of a Python file as tools.

The file's text says which there are and what they lack, with lines; nothing runs for that. Their JSON schemas follow
from their type hints, which exist only once the module is imported: once, in a process of its own, under a deadline
(`hints`).
"""

from __future__ import annotations

import ast
import json
import keyword
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.cli.projects import hints
from agent_rft.cli.projects.tools import NAME, NAME_RULE, Tool, chosen, described, refuse
from agent_rft.errors import Problem, UserError
from agent_rft.rows.bounded_file import read_bounded
from agent_rft.spec.schemas.inline import inlined
from agent_rft.spec.schemas.json_schema import schema_mistake

MAX_SOURCE_BYTES = 1 << 20
IMPORT_TIMEOUT_S = 60.0
MAX_PRINTED_CHARS = 1_000
CODE = "unfit_function"
TAKEN = {"server", "grader", "test_grader", "conftest"}
"""Names of the project's own modules."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """Functions of a file. `name` is the module's, below `root`, the folder from which it is imported."""

    root: Path
    name: str
    tools: tuple[Tool, ...]
    undocumented: tuple[str, ...]
    """The tools without a docstring, which is all that a model reads about a tool."""


def read_module(path: Path, wanted: Sequence[str] = ()) -> Module:
    """The file's public functions, or those that are wanted.

    Raises:
        UserError: The file cannot be read or imported, or has no functions.
        InvalidJob: Functions cannot be called by a model.
    """
    tree = _parsed(path)
    root, name = _place(path.resolve())
    found = {function.name: function for function in _public(tree)}
    if not found:
        remedy = "define the tools at the top level of the file, with names that do not begin with _"
        raise UserError(f"{path} has no public function: {remedy}")
    names = chosen(list(found), wanted, "function", str(path))
    everywhere = [node for node in tree.body if isinstance(node, Function) and node.name in names]
    refuse(f"{path} has functions that cannot be tools", list(_problems(everywhere, path)))
    schemas = _schemas(root, name, names, path)
    tools, problems = [], list[Problem]()
    for function, schema in zip(names, schemas, strict=True):
        line = found[function].lineno
        parameters, mistake = inlined(schema, schema) if isinstance(schema, dict) else (None, None)
        if parameters is None:
            why = mistake.message if mistake is not None else schema
            remedy = mistake.remedy if mistake is not None else "take types that JSON has, or pydantic can read from it"
            problems.append(Problem(CODE, function, f"its hints give no JSON schema: {why}", remedy, str(path), line))
        elif (bad := schema_mistake(parameters)) is not None:
            problems.append(Problem(CODE, f"{function}: {bad.at}", bad.message, bad.remedy, str(path), line))
        else:
            tools.append(Tool(function, described(ast.get_docstring(found[function]) or function), parameters))
    refuse(f"{path} has functions that cannot be tools", problems)
    undocumented = tuple(name for name in names if not ast.get_docstring(found[name]))
    return Module(root, name, tuple(tools), undocumented)


def _parsed(path: Path) -> ast.Module:
    source = read_bounded(path, MAX_SOURCE_BYTES, "give the file that defines the tools alone")
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno or 1} is not valid Python {_version()}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{path} is not valid Python: {error or 'it is nested too deeply'}") from None


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _place(path: Path) -> tuple[Path, str]:
    """The folder to import from, and the module's name there; a folder with `__init__.py` is a package.

    Raises:
        UserError: The name cannot be imported.
    """
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    if bad := next((part for part in parts if not part.isidentifier() or keyword.iskeyword(part)), None):
        raise UserError(
            f"{path.name}: Python cannot import the name {bad!r}; rename it to letters, digits and _, and to no keyword"
        )
    if parts[0] in TAKEN or parts[0] in sys.stdlib_module_names:
        whose = "the project has" if parts[0] in TAKEN else "Python itself has"
        raise UserError(f"{path.name}: {whose} a module {parts[0]!r}, too; rename the file, such as my_{parts[0]}.py")
    return folder, ".".join(parts)


def _public(tree: ast.Module) -> list[Function]:
    """The functions at the top level that others may use: those in `__all__` if there is one."""
    functions = [node for node in tree.body if isinstance(node, Function)]
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names = {constant.value for constant in ast.walk(node) if isinstance(constant, ast.Constant)}
            return [function for function in functions if function.name in names]
    return [function for function in functions if not function.name.startswith("_")]


def _problems(functions: Sequence[Function], path: Path) -> Iterator[Problem]:
    """What of the functions' headers a model could not call."""
    lines: dict[str, int] = {}
    for function in functions:
        name = function.name

        def problem(at: ast.AST, field: str, message: str, remedy: str) -> Problem:
            return Problem(CODE, field, message, remedy, str(path), getattr(at, "lineno", None))

        if not NAME.fullmatch(name):
            yield problem(function, name, f"{NAME_RULE}", "rename it, or leave it out with --tool")
        if (text := ast.get_docstring(function) or "") != text.encode(errors="replace").decode():
            message = "its docstring has half of a surrogate pair, such as \\ud800"
            yield problem(function, name, message, "write whole characters")
        if name in lines:
            message = f"is defined at line {lines[name]}, too"
            yield problem(function, name, message, "keep one of them, or rename the other to _" + name)
        lines[name] = function.lineno
        arguments = function.args
        for argument in (arguments.vararg, arguments.kwarg):
            if argument is not None:
                message = "a schema cannot describe arguments without names"
                yield problem(
                    argument, f"{name}(*{argument.arg})", message, "name each one: topic: str, limit: int = 10"
                )
        for argument in arguments.posonlyargs:
            message = "a model gives arguments by name, and this one has none"
            yield problem(argument, f"{name}({argument.arg})", message, "remove the / from the header")
        for argument in (*arguments.args, *arguments.kwonlyargs):
            if argument.annotation is None:
                message, remedy = "has no type hint", f"write {argument.arg}: str, or the type that it has"
                yield problem(argument, f"{name}({argument.arg})", message, remedy)


def _schemas(root: Path, module: str, names: Sequence[str], path: Path) -> list[dict[str, Any] | str]:
    """For each function its schema, or why it has none. What the module prints is shown only if the import fails."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "printed").open("w+b") as printed:
        out = Path(folder, "schemas.json")
        # -P: the script's own folder is not searched for modules.
        command = [sys.executable, "-P", hints.__file__, str(root), module, str(out), *names]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, timeout=IMPORT_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            remedy = "move what it does when it is imported below `if __name__ == '__main__':`"
            raise UserError(f"the import of {path} took longer than {IMPORT_TIMEOUT_S:g} s; {remedy}") from None
        if done.returncode != 0 or not out.exists():
            said = _end(printed.name)
            remedy = f"check it with: cd {root} && {Path(sys.executable).name} -c 'import {module}'"
            raise UserError(f"{path} cannot be imported: {said or f'exit code {done.returncode}'}; {remedy}")
        found: list[dict[str, Any] | str] = json.loads(out.read_bytes())
        return found


def _end(path: str) -> str:
    """The last line of what was printed, which is the error."""
    with Path(path).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 4 * MAX_PRINTED_CHARS))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return "".join(c for c in lines[-1] if c.isprintable())[:MAX_PRINTED_CHARS] if lines else ""
