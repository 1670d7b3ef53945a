"""The lists of pinned packages: `make setup` refuses files that they do not know, and the SBOM lists them all."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from requirements import sbom
from requirements.hashes import File, may_be_installed, with_hashes
from requirements.lists import FOLDER, LEFT_OUT, LISTS, Pin, read
from tests.support.paths import ROOT


@pytest.mark.parametrize("kind", LISTS)
def test_each_pin_has_hashes_and_no_list_names_an_index(kind: str) -> None:
    entry = r"[a-z0-9-]+==[\w.+]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"(?:{entry})+", (FOLDER / f"{kind}.txt").read_text())
    names = [pin.name for pin in read(kind)]
    assert len(set(names)) == len(names)


def test_cudas_compiler_headers_and_runtime_have_one_version() -> None:
    """FlashInfer compiles kernels with this nvcc against these headers, in processes that have torch's runtime."""
    versions = {pin.name: pin.version for pin in read("gpu")}
    minor = versions["cuda-toolkit"].rsplit(".", 2)[0]  # the release that torch requires
    for name in ("cccl", "crt", "cupti", "nvcc", "nvrtc", "runtime"):
        assert versions[f"nvidia-cuda-{name}"].startswith(f"{minor}."), name
    for name in ("nvidia-nvvm", "nvidia-nvtx"):
        assert versions[name].startswith(f"{minor}."), name


def test_no_two_packages_for_gpus_have_the_same_files_of_cuda() -> None:
    """Before 13, cuda-python has the files of cuda-bindings itself, in another version."""
    versions = {pin.name: pin.version for pin in read("gpu")}
    majors = {name: int(versions[name].partition(".")[0]) for name in ("cuda-python", "cuda-bindings")}
    assert majors["cuda-python"] >= 13 and majors["cuda-bindings"] >= 13
    release = {versions[name].rpartition(".")[0] for name in majors}
    assert len(release) == 1, "cuda-python requires cuda-bindings of its own release"


def test_an_environment_lacks_only_what_is_left_out() -> None:
    """`pip check` names all else that is missing, or has another version than a package requires."""
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True).stdout
    known = {
        f"{package} requires {missing}, which is not installed."
        for missing, packages in LEFT_OUT.items()
        for package in packages
    }
    lines = {re.sub(r"^(\S+) \S+ requires", r"\1 requires", line) for line in checked.splitlines()}
    assert lines - {"No broken requirements found."} <= known


def test_the_lists_for_cpus_have_none_of_what_is_left_out() -> None:
    assert not LEFT_OUT.keys() & {pin.name for kind in ("cpu", "dev") for pin in read(kind)}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("a-1.tar.gz", True),
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp313-cp313-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", True),
        ("a-1-cp39-abi3-manylinux_2_17_x86_64.whl", True),
        ("a-1-py3-none-linux_x86_64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp314-cp314-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_28_s390x.whl", False),
        ("a-1-cp311-cp311-macosx_14_0_arm64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
    ],
)
def test_hashes_are_of_the_files_that_our_machines_install(file: str, expected: bool) -> None:
    assert may_be_installed(file) == expected


def test_only_a_pin_without_hashes_gets_those_of_the_index() -> None:
    files = {
        "new": [
            File("new-1.tar.gz", "b"),
            File("new-1-py3-none-any.whl", "a"),
            File("new-1-cp311-cp311-win32.whl", "c"),
        ]
    }
    found = list(with_hashes([Pin("old", "1", ("kept",)), Pin("new", "1")], files))
    assert found == [Pin("old", "1", ("kept",)), Pin("new", "1", ("a", "b"))]
    with pytest.raises(SystemExit, match="new==1: no file"):
        list(with_hashes([Pin("new", "1")], {"new": files["new"][2:]}))


# -- make setup --------------------------------------------------------------------------------------------------------


def make_wheel(folder: Path, name: str, version: str, text: str = "") -> Path:
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{name}.py", text)
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return wheel


def listed(*wheels: Path) -> str:
    """A list with these wheels."""
    entries = []
    for wheel in wheels:
        name, version, *_ = wheel.name.split("-")
        entries.append(f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return "".join(entries)


class Checkout:
    """A folder with our Makefile, and two indexes: the configured one and one in place of PyTorch's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "index"
        self.pytorch = folder / "pytorch" / "torch"
        self.linked = [folder / "agent_rft" / name for name in ("actors", "cluster", "serve", "trainer")]
        for new in (self.index, self.pytorch, folder / "requirements", *self.linked):
            new.mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", folder)
        self.write("pyproject.toml", "")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)

    def setup(self) -> str:
        """What `make setup` says; it fails at the latest where it installs our own package, which is not there."""
        index = self.pytorch.parent.as_uri()
        command = ["make", "setup", f"PYTHON={sys.executable}", f"PYTORCH_INDEX={index}"]
        environment = {
            "PATH": "/usr/bin:/bin",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": (self.folder / "no").as_uri(),
            "PIP_FIND_LINKS": str(self.index),
        }
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode != 0
        return done.stderr

    def installed(self) -> set[str]:
        return {
            found.name.split("-")[0] for found in self.folder.glob(".venv/lib/python*/site-packages/*.dist-info")
        } - {"pip"}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_download_that_has_text_files_in_place_of_links_is_refused(checkout: Checkout) -> None:
    checkout.linked[0].rmdir()
    checkout.write("agent_rft/actors", "../actors")
    assert "agent_rft/actors is not a link to ../actors" in checkout.setup()
    assert not (checkout.folder / ".venv").exists()


def test_a_file_that_differs_from_the_list_is_not_installed(checkout: Checkout) -> None:
    setuptools, torch = (make_wheel(checkout.index, name, "99") for name in ("setuptools", "torch"))
    checkout.write("requirements/cpu.txt", listed(setuptools, torch))
    checkout.write("requirements/dev.txt", listed(make_wheel(checkout.index, "other", "1")))
    make_wheel(checkout.index, "other", "1", "print('attack')")
    said = checkout.setup()
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in said and "other==1" in said
    assert "other" not in checkout.installed()


def test_pytorchs_own_index_is_asked_for_torch_alone(checkout: Checkout) -> None:
    """So nobody can offer another package there."""
    torch, stray = make_wheel(checkout.pytorch, "torch", "99+cpu"), make_wheel(checkout.pytorch, "stray", "1")
    for wheel in (torch, stray):
        checkout.write(
            f"pytorch/{wheel.name.split('-')[0]}/index.html", f'<a href="../torch/{wheel.name}">{wheel.name}</a>'
        )
    checkout.write("requirements/cpu.txt", listed(make_wheel(checkout.index, "setuptools", "99"), torch))
    checkout.write("requirements/dev.txt", listed(stray))
    said = checkout.setup()
    assert checkout.installed() == {"setuptools", "torch"}, said
    assert "No matching distribution found for stray==1" in said


# -- the SBOM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LISTS)
def test_the_sbom_is_valid_and_lists_each_pin(kind: str) -> None:
    text = sbom.sbom(kind)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = json.loads(text)["components"]
    listed = {
        (part["name"], part["version"], tuple(sorted(digest["content"] for digest in part["hashes"])))
        for part in components
    }
    assert listed == {(pin.name, pin.version, pin.hashes) for pin in read(kind)}
    assert all(part["purl"].startswith(f"pkg:pypi/{part['name']}@") and part["licenses"] for part in components)
