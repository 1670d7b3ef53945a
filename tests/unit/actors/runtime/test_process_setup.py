"""Standard files of a process that started without them, and outputs that nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

OPENED = """
import os, sys
from agent_rft.actors.runtime.process_setup import drop_lost_output, open_standard_files
open_standard_files()
drop_lost_output("stdout")
print("nobody reads this")
with open(sys.argv[1], "w") as file:
    os.write(1, b"printed by a library")
    file.write(str(file.fileno() > 2))
"""


def test_a_file_does_not_get_the_number_of_a_closed_output_and_what_libraries_print(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", OPENED, str(tmp_path / "file")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: os.closerange(0, 3),
        check=True,
    )
    assert (tmp_path / "file").read_text() == "True"
