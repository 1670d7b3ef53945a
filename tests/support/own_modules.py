"""A user's folder with files that are named like our packages and like our dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

OURS = ("trainer", "actors", "cluster", "serve")
DEPENDENCIES = (
    "alembic", "datasets", "deepspeed", "fastapi", "httpx", "ijson", "jinja2", "jsonschema_rs", "numba", "openai",
    "peft", "rich", "safetensors", "sqlalchemy", "tokenizers", "torch", "transformers", "typer", "uvicorn", "vllm",
)  # fmt: skip
"""None that Ray's own workers import, before any code of ours runs."""


def write_own_modules(folder: Path, names: Sequence[str] = (*OURS, *DEPENDENCIES)) -> None:
    """Write modules and packages that end the process which imports one of them."""
    for name in names:
        file = folder / name / "__init__.py" if name in OURS[2:] else folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"raise SystemExit('the user\\'s {name} was imported')\n")
