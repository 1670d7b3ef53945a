"""The image's Dockerfile: it passes the linter, and the files and packages it uses exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from requirements.lists import LISTS, read
from tests.contracts.manifests import K8S, ROOT

DOCKERFILE = K8S / "Dockerfile"
INSTRUCTIONS = DOCKERFILE.read_text().replace("\\\n", " ")


def test_the_linter_reports_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert not found.stdout


def test_bases_are_pinned_and_stages_exist() -> None:
    stages: set[str] = set()
    for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", INSTRUCTIONS, re.MULTILINE):
        assert base in stages or re.fullmatch(
            r"python:\d+\.\d+\.\d+-slim-\w+\$\{BASE_DIGEST:\+@\$BASE_DIGEST\}", base
        ), base
        stages.add(name)
    assert {"cpu", "gpu"} <= stages
    assert set(re.findall(r"(?:COPY --from=|mount=from=)([\w-]+)", INSTRUCTIONS)) <= stages
    assert len(re.findall(r"^FROM", INSTRUCTIONS, re.MULTILINE)) == len(stages)


def test_copied_paths_exist_and_are_sent_to_the_builder() -> None:
    allowed = set(re.findall(r"^!(\S+)$", (K8S / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", INSTRUCTIONS, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == allowed
    for source in copied:
        assert (ROOT / source).exists(), source
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert {re.split(r"[*.]", pattern)[0] for pattern in packages["include"]} <= copied


def test_the_image_does_not_run_as_root_and_has_a_health_check() -> None:
    for target in ("gpu", "cpu"):
        stage = INSTRUCTIONS.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        users = re.findall(r"^USER (\S+)$", stage, re.MULTILINE)
        assert users[-1:] in ([], ["10001:10001"])
    runtime = INSTRUCTIONS.split(" AS runtime\n")[1].split("\nFROM ")[0]
    assert "USER 10001:10001" in runtime
    check = re.search(r"^HEALTHCHECK .*CMD (\[.+\])$", runtime, re.MULTILINE)
    assert check is not None and {"/health", "/health/ready"} == set(re.findall(r':8000([^"]*)"', check[1]))


def test_the_image_installs_runtime_packages_and_no_test_packages() -> None:
    names = {kind: {pin.name for pin in read(kind)} for kind in LISTS}
    for kind in ("cpu", "gpu"):
        assert not names[kind] & names["dev"]
        assert {"ray", "s3fs", "psycopg-binary"} <= names[kind]
    for command in ("agent-rft", "ray", "hf"):
        assert shutil.which(command, path=str(Path(sys.executable).parent))


def test_flashinfer_finds_compilers() -> None:
    """Otherwise vLLM does without it, and only logs that: CUDA_HOME must have bin/nvcc, and the PATH ninja."""
    gpu = INSTRUCTIONS.split(" AS gpu\n")[1].split("\nFROM ")[0]
    assert re.search(r"apt-get install \S+ \S+ g\+\+ gcc libc6-dev ", gpu)
    versions = {pin.name: pin.version for pin in read("gpu")}
    python = re.findall(r"^FROM python:(\d+\.\d+)", INSTRUCTIONS, re.MULTILINE)[0]
    home = f".venv/lib/python{python}/site-packages/nvidia/cu{versions['nvidia-cuda-nvcc'].split('.')[0]}"
    assert f"CUDA_HOME=/opt/agent-rft/{home}" in gpu
    assert f"cuda={home}" in INSTRUCTIONS
    assert {"ninja", "flashinfer-python"} <= versions.keys()


# -- make image --------------------------------------------------------------------------------------------------------

DIGEST = f"sha256:{'a' * 64}"


def make_image(programs: dict[str, str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with these programs and no others of their kind; `docker build` notes its arguments."""
    for name in ("sed", "mkdir", "dirname", "tee"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, body in {"docker": f'[ "$1" = build ] && echo "$@" > {folder}/built', **programs}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    command = ["/bin/sh", "k8s/build_image", "cpu", "agent-rft:1-cpu", str(folder / "build" / "image-cpu.txt")]
    environment = {"PATH": str(folder), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("programs", "variables"),
    [
        ({"crane": f'[ "$*" = "digest python:3.11.14-slim-bookworm" ] && echo {DIGEST}'}, {}),
        ({"skopeo": f'[ "$4" = docker://docker.io/library/python:3.11.14-slim-bookworm ] && echo {DIGEST}'}, {}),
        ({}, {"BASE_DIGEST": DIGEST}),
    ],
    ids=["crane", "skopeo", "given"],
)
def test_an_image_is_built_on_a_base_that_is_recorded(
    tmp_path: Path, programs: dict[str, str], variables: dict[str, str]
) -> None:
    done = make_image(programs, tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert f"--target cpu --build-arg BASE_DIGEST={DIGEST} --tag agent-rft:1-cpu" in (tmp_path / "built").read_text()
    record = (tmp_path / "build/image-cpu.txt").read_text()
    assert record == f"agent-rft:1-cpu python:3.11.14-slim-bookworm@{DIGEST}\n"


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ({}, "install docker's buildx, skopeo or crane"),
        ({"crane": "echo unknown"}, "not a digest: unknown"),
        ({"crane": "exit 1"}, ""),
    ],
)
def test_no_image_is_built_on_an_unknown_base(tmp_path: Path, programs: dict[str, str], message: str) -> None:
    done = make_image(programs, tmp_path)
    assert done.returncode == 1 and message in done.stderr
    assert not (tmp_path / "built").exists()
