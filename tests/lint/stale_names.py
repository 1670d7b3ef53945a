"""Finds code names in docstrings that no longer exist: `python -m tests.lint.stale_names`, a part of `make lint`.

It checks constants such as MAX_BYTES, and names in backticks that have an underscore or several capitals: renames leave
such names behind. A name exists if code of the repository uses it, also within a string.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import PurePath

from tests.lint.plain_names import OTHER_FOLDERS
from tests.support.paths import ROOT

OTHERS = {
    *("SSL_CERT_FILE", "TRACES_KEY", "openai_harmony", "object_spilling_threshold", "raylet_start_wait_time_s"),
    *("stage3_max_live_parameters", "my_tracker", "my_package", "DelegateSubgroup", "get_full_finetune_lr_multiplier"),
    *(
        "SchedulerOutput",
        "DeepSpeedEngine",
        "_pin_memory_utils",
        "best_of_k",
        "n_embd",
        "agent_rft_tool_latency_seconds_mean",
    ),
    *("F_DUPFD", "DUPFD_CLOEXEC", "SETPIPE_SZ", "GETPIPE_SZ", "OFD_GETLK", "OFD_SETLK", "OFD_SETLKW"),
    *("PR_GET_DUMPABLE", "CAPBSET_READ", "SET_VMA", "GET_NO_NEW_PRIVS", "SET_NAME", "GET_NAME", "GET_SECCOMP"),
}
"""Names of the kernel and of libraries, and names that are made of parts, which only docstrings mention."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_CONSTANT = re.compile(r"\b[A-Z]+(?:_[A-Z0-9]+)+\b")
_QUOTED = re.compile(r"`([\w.]+)(?:\(\))?`")
_IS_CODE = re.compile(r"\w_\w|[a-z][A-Z]")


def main() -> None:
    known: set[str] = set()
    texts: list[tuple[str, int, str]] = []
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        known.update(*map(_WORD.findall, PurePath(name).parts))
        if name.endswith((".yaml", ".toml", ".ts", ".svelte", ".html", ".jinja", ".cpp")):
            known.update(_WORD.findall((ROOT / name).read_text()))
        elif name.endswith(".py") and not (ROOT / name).is_symlink():
            docstrings = add_names(ast.parse((ROOT / name).read_text()), known)
            if not name.startswith(OTHER_FOLDERS):
                texts += [(name, line, text) for line, text in docstrings]
    found = [f"{file}:{line}: {name} does not exist" for file, line, text in texts for name in names_in(text, known)]
    print("\n".join(found) or "no docstring has a stale name")
    sys.exit(bool(found))


def add_names(tree: ast.Module, known: set[str]) -> list[tuple[int, str]]:
    """Add the names that a module's code uses to `known`; return its docstrings with their lines."""
    docstrings = {
        id(node.value): (node.lineno, node.value.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            known.add(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name).lower())  # of an event
        if id(node) not in docstrings:
            for _, value in ast.iter_fields(node):
                if isinstance(value, str):  # identifiers, and strings
                    known.update(_WORD.findall(value))
    return list(docstrings.values())


def names_in(text: str, known: set[str]) -> list[str]:
    """Return the unknown code names of a docstring."""
    quoted = [word for dotted in _QUOTED.findall(text) for word in dotted.split(".") if _IS_CODE.search(word)]
    return sorted({*_CONSTANT.findall(text), *quoted} - known - OTHERS)


if __name__ == "__main__":
    main()
