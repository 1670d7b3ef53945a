"""Builds the folder of wheels: `make gpu-rank-wheels`, on a machine that can download packages.

    python -m benchmarks.gpu_rank.download [FOLDER]

The versions and the hashes are the pins of requirements/gpu.txt. DeepSpeed has no wheel, so it is built, without any of
its compiled operations: the rank uses none.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from benchmarks.gpu_rank.packages import FOLDER, WHEELS
from requirements.lists import Pin, read, text_of

PYTHONS = ("3.11", "3.12")
PLATFORMS = [f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_17", "2014", "_2_12", "2010")]
"""pip compares these literally."""
BUILT = "deepspeed"
MAX_BYTES = 40_000_000
"""A lent machine takes 64 MiB with the repository."""


def pins(packages: Collection[str]) -> list[Pin]:
    return [pin for pin in read("gpu") if pin.name in packages]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    folder: Path = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    others = set(WHEELS.values()) - {BUILT}
    platforms = [argument for name in PLATFORMS for argument in ("--platform", name)]
    for python in PYTHONS:
        target = ["--implementation", "cp", "--python-version", python, *platforms]
        _pip("download", others, "--only-binary=:all:", *target, "--dest", str(folder))
    _pip("wheel", {BUILT}, "--no-build-isolation", "--wheel-dir", str(folder))
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {len(list(folder.iterdir()))} wheels, {size / 1e6:.1f} MB")
    if size > MAX_BYTES:
        print(f"the wheels are larger than {MAX_BYTES / 1e6:.0f} MB, too large to send along", file=sys.stderr)
        return 1
    return 0


def _pip(command: str, packages: Collection[str], *options: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text_of(pins(packages)))
        file.flush()
        pip = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "-r", file.name, *options], check=True)


if __name__ == "__main__":
    raise SystemExit(main())
