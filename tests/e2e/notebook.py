"""Runs a notebook's cells in order, a few at a time, as a user of Jupyter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


class Notebook:
    """A notebook in plain Python (no % or ! lines); `names` holds the variables that its cells have set so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells), "a notebook is committed without its outputs"
        self._cells = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        self._done = 0
        self.names: dict[str, Any] = {}

    def run(self, environment: Mapping[str, str], until: str | None = None) -> None:
        """Runs the remaining cells in the notebook's folder, or those up to the cell that sets the name `until`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._path.parent)
            for name, value in environment.items():
                patch.setenv(name, value)
            while self._done < len(self._cells) and until not in self.names:
                code = compile(self._cells[self._done], f"{self._path.name}[{self._done}]", "exec")
                exec(code, self.names)
                self._done += 1
