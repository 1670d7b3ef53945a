"""The image's Dockerfile: it passes the linter, and the files and packages it uses exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

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
        assert base in stages or re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base), base
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
    assert check is not None and ":8000/health" in check[1]


def test_the_image_installs_runtime_packages_and_no_test_packages() -> None:
    def names(file: str) -> set[str]:
        return set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / file).read_text(), re.MULTILINE))

    for kind in ("cpu", "gpu"):
        assert not names(f"{kind}.txt") & names("dev.txt")
        assert {"ray", "s3fs", "psycopg-binary"} <= names(f"{kind}.txt")
    for command in ("agent-rft", "ray", "hf"):
        assert shutil.which(command, path=str(Path(sys.executable).parent))
