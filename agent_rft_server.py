"""What your own server of tools and graders may import from us: `run_untrusted`, which runs code of the model.

It is the function of `agent_rft_grader`, for an ordinary process. See docs/endpoints.md, "Code of the model".
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.sandbox.alone import run_alone
from agent_rft_grader import NoSandbox, UntrustedRun, packed, unpacked

__all__ = ["NoSandbox", "UntrustedRun", "run_untrusted"]


def run_untrusted(
    code: str,
    stdin: str | bytes = "",
    files: Mapping[str, str | bytes] | None = None,
    limits: Mapping[str, float] | None = None,
) -> UntrustedRun:
    """Run Python `code` in a new sandbox of its own, which has nothing of this machine but Python; blocks.

    Threads may call it at the same time; each run takes a processor and its `memory_bytes`.

    Args:
        code: A program, run as `main.py` in an empty folder, with the standard library and numpy.
        stdin: Its standard input.
        files: Files of its folder by path. A `solution.py` can be imported by the code.
        limits: `wall_s` and `cpu_s` (10), `memory_bytes` (512 MiB) and `output_bytes` of each output (64 KiB).

    Raises:
        NoSandbox: this machine has none; the message says what it needs.
        ValueError: a file's name or a limit is invalid, or there is too much to run.
    """
    return unpacked(run_alone(packed(code, stdin, files, limits)))
