"""Adds the missing hashes to the lists: run `make hashes` after you add or change a pin.

uv reads the files of a version from the configured package index, by default PyPI. Versions with a label, such as
`2.13.0+cpu`, are read from PyTorch's index. Existing hashes are never changed, so no index can replace them unnoticed.
Dependencies are not resolved, so a list may omit a required package (`lists.LEFT_OUT`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from requirements.lists import LISTS, Pin, read, write

PYTHONS = (11, 12, 13)
MACHINES = ("x86_64", "aarch64")
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"
COMPILE = "pip compile - --quiet --no-deps --universal --python-version 3.11.5 --no-python-downloads --output-file"
"""Command that resolves the pins for all platforms, and for Python versions from the oldest supported one."""

_ABIS = {
    (tag.interpreter, tag.abi)
    for minor in PYTHONS
    for tag in (
        *cpython_tags((3, minor), [f"cp3{minor}"], ["linux"]),
        *compatible_tags((3, minor), f"cp3{minor}", ["linux"]),
    )
}


class File(NamedTuple):
    """File of a package in an index."""

    name: str
    sha256: str


def may_be_installed(file_name: str) -> bool:
    """Return whether a file is an sdist, or a wheel for glibc Linux with a supported Python and CPU architecture."""
    if not file_name.endswith(".whl"):
        return True
    return any(
        (tag.interpreter, tag.abi) in _ABIS and (tag.platform == "any" or _is_ours(tag.platform))
        for tag in parse_wheel_filename(file_name)[3]
    )


def _is_ours(platform: str) -> bool:
    return platform.startswith(("linux_", "manylinux")) and platform.endswith(MACHINES)


def listed_files(pins: Iterable[Pin], *options: str) -> dict[str, list[File]]:
    """Return the files of each pin in uv's index, by package name. `options` are options of uv.

    Raises:
        SystemExit: The index cannot be reached or does not have a pin.
    """
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "pylock.toml")
        command = [str(uv), *COMPILE.split(), str(lock), *options]
        result = subprocess.run(command, input="\n".join(map(str, pins)), text=True, stderr=subprocess.PIPE)
        if result.returncode:
            raise SystemExit(result.stderr)
        packages = tomllib.loads(lock.read_text())["packages"]
    return {
        package["name"]: [
            File(unquote(urlsplit(file["url"]).path.rpartition("/")[2]), file["hashes"]["sha256"])
            for file in (*package.get("wheels", ()), *filter(None, [package.get("sdist")]))
        ]
        for package in packages
    }


def with_hashes(pins: Iterable[Pin], files: dict[str, list[File]]) -> Iterator[Pin]:
    """Yield all pins. Pins without hashes get the sorted hashes of their installable files.

    Raises:
        SystemExit: A pin has no installable file.
    """
    for pin in pins:
        hashes = pin.hashes or sorted({file.sha256 for file in files[pin.name] if may_be_installed(file.name)})
        if not hashes:
            raise SystemExit(f"{pin}: no file for Python 3.11 to 3.13 on Linux; choose another version")
        yield Pin(pin.name, pin.version, tuple(hashes))


def main() -> None:
    """Add the missing hashes to all lists."""
    for kind in LISTS:
        pins = read(kind)
        new = [pin for pin in pins if not pin.hashes]
        labeled = [pin for pin in new if "+" in pin.version]
        files: dict[str, list[File]] = {}
        if labeled:
            files |= listed_files(labeled, "--default-index", PYTORCH_INDEX)
        if others := [pin for pin in new if pin not in labeled]:
            files |= listed_files(others)
        write(kind, with_hashes(pins, files))
        print(f"requirements/{kind}.txt: hashes of {len(new)} packages added")


if __name__ == "__main__":
    main()
