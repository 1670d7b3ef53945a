"""Runs a notebook's cells in their order, a few at a time, as somebody at Jupyter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


class Notebook:
    """`names` is what the cells have made so far. Plain Python only: what begins with % or ! fails here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells), "a notebook is kept without its outputs"
        self._cells = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        self._done = 0
        self.names: dict[str, Any] = {}

    def run(self, environment: Mapping[str, str], until: str | None = None) -> None:
        """The next cells, in the notebook's folder: all, or up to the one that makes the name `until`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._path.parent)
            for name, value in environment.items():
                patch.setenv(name, value)
            while self._done < len(self._cells) and until not in self.names:
                code = compile(self._cells[self._done], f"{self._path.name}[{self._done}]", "exec")
                exec(code, self.names)
                self._done += 1
