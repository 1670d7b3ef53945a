"""The packages that the learner rank needs: which are missing here, and the wheels that bring them. Without torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

FOLDER = Path("build/gpu-rank-wheels")
"""The wheels of `make gpu-rank-wheels`."""
INSTALLED = {"torch": "2.11", "transformers": "5.17"}
"""The packages that the machine must have, which bring numpy, packaging and safetensors, and their oldest versions."""
WHEELS = {
    "accelerate": "accelerate",
    "annotated_types": "annotated-types",
    "cpuinfo": "py-cpuinfo",
    "deepspeed": "deepspeed",
    "einops": "einops",
    "hjson": "hjson",
    "msgpack": "msgpack",
    "peft": "peft",
    "prometheus_client": "prometheus-client",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "typing_extensions": "typing-extensions",
    "typing_inspection": "typing-inspection",
}
"""Module -> the package that a wheel brings if the machine does not have it."""


class MissingPackages(Exception):
    """This machine lacks packages, and there are no wheels for them; names the packages and the fix."""


def check_installed(version_of: Callable[[str], str] = importlib.metadata.version) -> None:
    """Raise MissingPackages if torch or transformers is missing or too old."""
    problems = []
    for name, oldest in INSTALLED.items():
        try:
            version = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name} is missing")
            continue
        if _release(version) < _release(oldest):
            problems.append(f"{name} {version} is too old")
    if problems:
        needed = ", ".join(f"{name} {oldest} or later" for name, oldest in INSTALLED.items())
        raise MissingPackages(f"{'; '.join(problems)} in {sys.executable}. Use a Python that has {needed}.")


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers: `packaging` may be missing here."""
    return tuple(int(number) for number in version.split("+")[0].split(".")[:2])


def _is_importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def missing_modules(is_importable: Callable[[str], bool] = _is_importable) -> list[str]:
    """Return the modules of WHEELS that cannot be imported here.

    pydantic works with one version of pydantic_core only, so both come from the wheels or none.
    """
    missing = {name for name in WHEELS if not is_importable(name)}
    if missing & {"pydantic", "pydantic_core"}:
        missing |= {"pydantic", "pydantic_core"}
    return sorted(missing)


def unpack(modules: Collection[str], wheels: Path, target: Path) -> None:
    """Unpack the wheels of these modules for this Python into `target`, a folder for `sys.path`.

    Raises:
        MissingPackages: A wheel is missing.
    """
    found = {module: _find_wheel(WHEELS[module], wheels) for module in modules}
    if lacking := sorted(WHEELS[module] for module, wheel in found.items() if wheel is None):
        here = f"Python {platform.python_version()} on {platform.machine()}"
        raise MissingPackages(
            f"{', '.join(lacking)}: not installed here, and {wheels} has no wheel for {here}. Run `make "
            f"gpu-rank-wheels` where packages can be downloaded, and pass its folder with --wheels."
        )
    for wheel in filter(None, found.values()):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(target)


def _find_wheel(package: str, wheels: Path) -> Path | None:
    return next(iter(supported_wheels(package, wheels.glob("*.whl"))), None)


def supported_wheels(package: str, files: Iterable[Path]) -> list[Path]:
    """Return the wheels of a package that this Python can use."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    tags = frozenset(sys_tags())
    parsed = [(file, parse_wheel_filename(file.name)) for file in sorted(files)]
    return [file for file, (name, _, _, own) in parsed if name == package and tags & own]
