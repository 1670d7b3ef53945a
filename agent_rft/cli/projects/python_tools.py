"""Reader of a Python file whose public functions are tools.

Functions are found by parsing the file, so that problems have line numbers. To create JSON schemas from the type hints,
the module is imported once, in a separate process with a timeout (`function_schemas`).
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

from agent_rft.cli.projects import function_schemas
from agent_rft.cli.projects.project_tools import (
    NAME,
    NAME_RULE,
    ProjectTool,
    raise_problems,
    select_tools,
    trim_description,
)
from agent_rft.errors import Problem, UserError
from agent_rft.rows.bounded_file import read_bounded
from agent_rft.spec.schemas.json_schema import find_schema_problem
from agent_rft.spec.schemas.schema_inlining import inline_references

MAX_SOURCE_BYTES = 1 << 20
IMPORT_TIMEOUT_S = 60.0
MAX_PRINTED_CHARS = 1_000
CODE = "unsupported_function"
PROJECT_MODULES = {"server", "grader", "test_grader", "conftest"}
"""Names of modules in the project's own folder. The user's module must have a different name."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class ToolModule:
    """Python module whose functions are tools.

    `name` is the name in an import statement; `root` is the folder from which the module is imported.
    """

    root: Path
    name: str
    tools: tuple[ProjectTool, ...]
    undocumented: tuple[str, ...]
    """Names of the tools without a docstring. The model reads only the name and arguments of such a tool."""


def read_module(path: Path, requested: Sequence[str] = ()) -> ToolModule:
    """Read the public functions of a Python file.

    If `requested` is not empty, only the functions with these names are returned.

    Raises:
        UserError: The file cannot be read or imported, or has no public functions.
        InvalidJob: Some of the functions cannot be tools.
    """
    tree = _parse(path)
    root, name = _locate_module(path.resolve())
    found = {function.name: function for function in _public_functions(tree)}
    if not found:
        fix = "define the tools at the top level of the file, with names that do not begin with _"
        raise UserError(f"{path} has no public function: {fix}")
    names = select_tools(list(found), requested, "function", str(path))
    definitions = [node for node in tree.body if isinstance(node, Function) and node.name in names]
    raise_problems(f"{path} has functions that cannot be tools", list(_find_problems(definitions, path)))
    schemas = _read_schemas(root, name, names, path)
    tools, problems = [], list[Problem]()
    for function, schema in zip(names, schemas, strict=True):
        line = found[function].lineno
        parameters, schema_error = inline_references(schema, schema) if isinstance(schema, dict) else (None, None)
        if parameters is None:
            why = schema_error.message if schema_error is not None else schema
            fix = schema_error.fix if schema_error is not None else "use types that pydantic can read from JSON"
            problems.append(Problem(CODE, function, f"has no JSON schema: {why}", fix, str(path), line))
        elif (bad := find_schema_problem(parameters)) is not None:
            problems.append(Problem(CODE, f"{function}: {bad.location}", bad.message, bad.fix, str(path), line))
        else:
            tools.append(
                ProjectTool(function, trim_description(ast.get_docstring(found[function]) or function), parameters)
            )
    raise_problems(f"{path} has functions that cannot be tools", problems)
    undocumented = tuple(name for name in names if not ast.get_docstring(found[name]))
    return ToolModule(root, name, tuple(tools), undocumented)


def _parse(path: Path) -> ast.Module:
    source = read_bounded(path, MAX_SOURCE_BYTES, "give a file that contains only the tools")
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno or 1} is not valid Python {_python_version()}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{path} is not valid Python: {error or 'it is nested too deeply'}") from None


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _locate_module(path: Path) -> tuple[Path, str]:
    """Return (folder to import from, full name of the module), such as `pkg.tools` if `pkg` has an `__init__.py`.

    Raises:
        UserError: A module with this name cannot be imported.
    """
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    if bad := next((part for part in parts if not part.isidentifier() or keyword.iskeyword(part)), None):
        raise UserError(
            f"{path.name}: Python cannot import a module with the name {bad!r}; use letters, digits and _, and avoid "
            "keywords"
        )
    if parts[0] in PROJECT_MODULES or parts[0] in sys.stdlib_module_names:
        owner = "the project" if parts[0] in PROJECT_MODULES else "Python"
        raise UserError(f"{path.name}: {owner} already has a module {parts[0]!r}; rename the file to my_{parts[0]}.py")
    return folder, ".".join(parts)


def _public_functions(tree: ast.Module) -> list[Function]:
    """Return the top-level functions in `__all__` or, without `__all__`, those that do not begin with `_`."""
    functions = [node for node in tree.body if isinstance(node, Function)]
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names = {constant.value for constant in ast.walk(node) if isinstance(constant, ast.Constant)}
            return [function for function in functions if function.name in names]
    return [function for function in functions if not function.name.startswith("_")]


def _find_problems(functions: Sequence[Function], path: Path) -> Iterator[Problem]:
    """Yield the problems that prevent a model from calling the functions."""
    lines: dict[str, int] = {}
    for function in functions:
        name = function.name

        def problem(at: ast.AST, field: str, message: str, fix: str) -> Problem:
            return Problem(CODE, field, message, fix, str(path), getattr(at, "lineno", None))

        if not NAME.fullmatch(name):
            fix = "rename the function, or leave it out: give --tool once for each of the other functions"
            yield problem(function, name, f"{NAME_RULE}", fix)
        if (text := ast.get_docstring(function) or "") != text.encode(errors="replace").decode():
            message = "its docstring contains a lone surrogate, such as \\ud800"
            yield problem(function, name, message, "write complete characters")
        if name in lines:
            message = f"is already defined at line {lines[name]}"
            fix = f"remove one of the two definitions, or rename it to _{name}"
            yield problem(function, name, message, fix)
        lines[name] = function.lineno
        arguments = function.args
        for argument in (arguments.vararg, arguments.kwarg):
            if argument is not None:
                message = "the schema of a tool cannot describe *args or **kwargs"
                yield problem(argument, f"{name}(*{argument.arg})", message, "name each argument, such as topic: str")
        for argument in arguments.posonlyargs:
            message = "is positional-only, but a model passes arguments by name"
            yield problem(argument, f"{name}({argument.arg})", message, "remove the / from the definition")
        for argument in (*arguments.args, *arguments.kwonlyargs):
            if argument.annotation is None:
                message, fix = "has no type hint", f"write the type of the argument, for example {argument.arg}: str"
                yield problem(argument, f"{name}({argument.arg})", message, fix)


def _read_schemas(root: Path, module: str, names: Sequence[str], path: Path) -> list[dict[str, Any] | str]:
    """Return the JSON schema or an error message for each function. Output of the module is not shown.

    Raises:
        UserError: The module cannot be imported; the error contains the last line of its output.
    """
    with tempfile.TemporaryDirectory() as folder, Path(folder, "printed").open("w+b") as printed:
        out = Path(folder, "schemas.json")
        # -P: the script's own folder is not searched for modules.
        command = [sys.executable, "-P", function_schemas.__file__, str(root), module, str(out), *names]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, timeout=IMPORT_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            fix = "move code that runs on import below `if __name__ == '__main__':`"
            raise UserError(f"the import of {path} took longer than {IMPORT_TIMEOUT_S:g} s; {fix}") from None
        if done.returncode != 0 or not out.exists():
            last_line = _read_last_line(printed.name)
            fix = f"test the import with: cd {root} && {Path(sys.executable).name} -c 'import {module}'"
            raise UserError(f"{path} cannot be imported: {last_line or f'exit code {done.returncode}'}; {fix}")
        found: list[dict[str, Any] | str] = json.loads(out.read_bytes())
        return found


def _read_last_line(path: str) -> str:
    """Return the last line of the output in `path`, usually an error message; empty if there is no output."""
    with Path(path).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 4 * MAX_PRINTED_CHARS))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return "".join(c for c in lines[-1] if c.isprintable())[:MAX_PRINTED_CHARS] if lines else ""
