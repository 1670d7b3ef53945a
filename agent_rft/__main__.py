"""Entry point of the `agent-rft` command and of `python -m agent_rft`.

Until the working directory is removed from `sys.path`, this module imports only the standard library, because a file in
the working directory may have the same name as a dependency.
"""

from __future__ import annotations

import os
import sys


def remove_working_directory() -> None:
    """Remove the working directory from `sys.path` and PYTHONPATH, unless it contains this package.

    `python -m` and `ray job submit --working-dir` add it. Child processes inherit the changed PYTHONPATH.
    """
    here = os.path.realpath(os.curdir)
    if here == os.path.dirname(os.path.dirname(os.path.realpath(__file__))):
        return
    library = os.path.dirname(os.__file__)
    end = sys.path.index(library) if library in sys.path else len(sys.path)
    sys.path[:end] = [folder for folder in sys.path[:end] if os.path.realpath(folder) != here]
    if folders := os.environ.get("PYTHONPATH"):
        remaining = [folder for folder in folders.split(os.pathsep) if os.path.realpath(folder) != here]
        os.environ["PYTHONPATH"] = os.pathsep.join(remaining)


def main() -> None:
    """Run the `agent-rft` command with the arguments of this process."""
    remove_working_directory()
    from agent_rft.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
