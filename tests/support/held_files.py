"""A file system for checkpoint stores that lets a test hold the upload of a checkpoint before its manifest is written.

`plugin` makes `held:///path` a URL that processes with its environment can open, as any library of fsspec.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from tests.support.paths import ROOT

GATE_VARIABLE = "HELD_FILES_GATE"
POLL_S = 0.01


class HeldFiles(LocalFileSystem):
    """Files on this machine. A manifest of step N is written once `gate/step-N` does not exist."""

    protocol = ("held",)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("held://") if isinstance(path, str) else path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        gate = Path(os.environ[GATE_VARIABLE], Path(path).parent.name)
        if gate.exists():
            gate.with_name(f"{gate.name}.{os.getpid()}").touch()
        while gate.exists():
            time.sleep(POLL_S)
        super().pipe_file(path, value, mode, **options)


def plugin(folder: Path, gate: Path) -> dict[str, str]:
    """Write the files by which fsspec finds `held`, and return the variables that a process needs to use it.

    `gate` is the folder with a file for each step that is held. A process that is held adds `step-N.PID`.
    """
    package = folder / "held_files-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: held-files\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[fsspec.specs]\nheld = {__name__}:{HeldFiles.__name__}\n")
    gate.mkdir(exist_ok=True)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), GATE_VARIABLE: str(gate)}
