"""The command `agent-rft`, also as `python -m agent_rft`.

Only the standard library is imported before the working directory is off the path: a file there may be named like one
of our dependencies.
"""

from __future__ import annotations

import os
import sys


def leave_out_working_directory() -> None:
    """Find no module in the working directory, unless our own package is there.

    `python -m` and `ray job submit --working-dir` put it first on the path, the latter on that of each worker too.
    Folders after the standard library stay: they are installed. Child processes inherit the shorter PYTHONPATH.
    """
    here = os.path.realpath(os.curdir)
    if here == os.path.dirname(os.path.dirname(os.path.realpath(__file__))):
        return
    library = os.path.dirname(os.__file__)
    end = sys.path.index(library) if library in sys.path else len(sys.path)
    sys.path[:end] = [folder for folder in sys.path[:end] if os.path.realpath(folder) != here]
    if folders := os.environ.get("PYTHONPATH"):
        kept = [folder for folder in folders.split(os.pathsep) if os.path.realpath(folder) != here]
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def main() -> None:
    """Run the command line."""
    leave_out_working_directory()
    from agent_rft.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
