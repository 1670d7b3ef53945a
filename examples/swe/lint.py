"""Small linter that runs in the sandbox, since parsing untrusted code may use too much memory.

It reads file names from standard input and prints one finding per line. It uses only the standard library, because
only this file is copied into the sandbox.
"""

import ast
import sys

MAX_LINE_CHARS = 100


def findings(source: str) -> list[tuple[int, str]]:
    """Return the findings in Python source code, as line numbers and messages."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [(getattr(error, "lineno", None) or 1, "this is not Python")]
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        if len(line) > MAX_LINE_CHARS:
            found.append((number, f"more than {MAX_LINE_CHARS} characters"))
        if line != line.rstrip():
            found.append((number, "spaces at the end of the line"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
            found += [(node.lineno, f"{name} is imported and not used") for name in names if name not in used]
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append((node.lineno, "except without an error's name"))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            if isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None:
                found.append((node.lineno, "compare with None by `is`"))
        elif isinstance(node, ast.FunctionDef):
            if any(isinstance(default, ast.List | ast.Dict | ast.Set) for default in node.args.defaults):
                found.append((node.lineno, "a default that all calls share"))
            if not node.name.startswith("_") and not ast.get_docstring(node):
                found.append((node.lineno, f"{node.name} has no docstring"))
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Constant | ast.Await | ast.Yield):
            found.append((node.lineno, "a value that is not used"))
    return sorted(found)


if __name__ == "__main__":
    for path in sys.stdin.read().split("\n"):
        with open(path, encoding="utf-8") as file:
            for number, message in findings(file.read()):
                print(f"{path}:{number}: {message}")
