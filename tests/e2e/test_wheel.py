"""The wheel, in an environment that has never seen the checkout: a project is written, served, checked and trained."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.own_modules import OURS, write_own_modules
from tests.support.paths import ROOT

FOLDERS, EXAMPLES = ("actors", "cluster", "serve", "trainer"), ("ledger", "endpoint")
LINKS = (*FOLDERS, *(f"cli/projects/{example}" for example in EXAMPLES))
NOT_SHIPPED = {"__pycache__", "build", "runs", "node_modules"}
CONSOLE_SOURCE = ROOT / "agent_rft" / "serve" / "console" / "app"  # its bundle is shipped
READY = "Ctrl-C stops them"


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel, as a shell with its bin/ first in PATH sees it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "LEDGER_TOKEN", "AGENT_RFT_CONFIG")
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        return kept | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def run(self, line: str, folder: Path) -> str:
        """Runs a shell's line, which must succeed, and returns what it printed."""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    @contextmanager
    def serving(self, line: str, folder: Path) -> Iterator[None]:
        """Runs a shell's line that starts servers, from when they are ready to the end of the block."""
        with subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as server:
            try:
                assert server.stdout is not None and READY in server.stdout.readline()
                yield
            finally:
                os.killpg(server.pid, signal.SIGTERM)


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    subprocess.run(command, check=True, env=_without_checkout(os.environ))


def _without_checkout(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools would leave files in the checkout, and take such files from there."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "agent_rft", source / "agent_rft", symlinks=True)
    for package in (*FOLDERS, *(f"examples/{example}" for example in EXAMPLES)):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns(*NOT_SHIPPED))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("agent_rft-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A new environment with the wheel, and this one's packages as its dependencies."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
    # A path in such a file is searched, but the .pth files there, which name the checkout, are not read.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    write_own_modules(Path(site), OURS)  # other distributions install packages of these names
    return Installed(folder)


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    files = {
        str(path.relative_to(ROOT))
        for package in ("agent_rft", *(f"agent_rft/{link}" for link in LINKS))
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not NOT_SHIPPED.intersection(path.parts) and CONSOLE_SOURCE not in path.parents
    }
    assert {"agent_rft/cluster/views/report/page.html", "agent_rft/cli/projects/ledger/base/model.safetensors"} < files
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == files


def test_nothing_comes_from_the_checkout(installed: Installed, tmp_path: Path) -> None:
    names = ["agent_rft." + link.replace("/", ".") for link in LINKS]
    script = f"import {', '.join(names)}; print(*[m.__file__ for m in ({', '.join(names)})], sep='\\n')"
    for file in installed.run(f'python -c "{script}"', tmp_path).split():
        assert Path(file).is_relative_to(installed.folder)


def test_the_installed_version_is_that_of_the_project(wheel: Path, installed: Installed, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert wheel.name == f"agent_rft-{version}-py3-none-any.whl"
    assert installed.run("agent-rft --version", tmp_path).splitlines()[0] == f"agent-rft {version}"


def next_steps(installed: Installed, folder: Path) -> tuple[str, list[str]]:
    """Writes the ledger's project in `folder` as shop; returns the line that starts its server, and those after it."""
    printed = installed.run("agent-rft init shop --example ledger", folder)
    server, *steps = [line.strip() for line in printed.splitlines() if line.startswith("  ")]
    return server, steps


def test_the_lines_that_init_prints_work(installed: Installed, tmp_path: Path) -> None:
    server, steps = next_steps(installed, tmp_path)
    assert server == "cd shop && python -m ledger.server --tools-port 8701 --grader-port 8702"
    assert steps[:3] == ["cd shop", "agent-rft check job.yaml", "agent-rft ready job.yaml"]
    with installed.serving(server, tmp_path):
        checked = installed.run("cd shop && agent-rft check job.yaml", tmp_path)
    assert "the job is ready to train" in checked
    assert "Triton" not in checked, "libraries' warnings would hide the job's"


GRADER = """
from agent_rft import run_untrusted

def grade(sample, item):
    return float(run_untrusted("print(6 * 7)").stdout == "42\\n")
"""


def test_a_python_grader_and_the_server_work(installed: Installed, tmp_path: Path) -> None:
    """Both start programs of the package by their paths: a sandbox, and the processes of Ray."""
    server, _ = next_steps(installed, tmp_path)
    job = yaml.safe_load((tmp_path / "shop" / "job.yaml").read_text())
    job["method"]["reinforcement"]["grader"] = {"type": "python", "source": GRADER, "range": [0, 1]}
    (tmp_path / "shop" / "python.yaml").write_text(yaml.safe_dump(job))
    with installed.serving(server, tmp_path):
        checked = installed.run("cd shop && agent-rft check python.yaml", tmp_path)
    assert "the job is ready to train" in checked
    log = tmp_path / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["agent-rft", "serve", "--port", "0"], executable=installed.folder / "bin" / "agent-rft", cwd=tmp_path,
            env=installed.environment, stdout=file, stderr=file,
        )  # fmt: skip
        try:
            while "serving at" not in log.read_text():
                assert process.poll() is None, log.read_text()
                time.sleep(0.5)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, log.read_text()


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # downloads all packages
def test_a_new_environment_with_the_released_list_trains(wheel: Path, tmp_path: Path) -> None:
    new = Installed(tmp_path / "venv")
    subprocess.run([sys.executable, "-m", "venv", str(new.folder)], check=True)
    pins, install = ROOT / "requirements" / "cpu.txt", "python -m pip install --quiet --no-deps"
    # As in the quickstart: if the configured index has no CPU build of PyTorch, PyTorch's own has.
    torch = (
        rf"sed -n '/^torch==/,/[^\\]$/p' {pins} > torch.txt; "
        f"{install} -r torch.txt --index-url https://download.pytorch.org/whl/cpu"
    )
    new.run(f"{install} -r {pins} || {{ {torch} && {install} -r {pins}; }}; {install} {wheel}", tmp_path)
    server, _ = next_steps(new, tmp_path)
    with new.serving(server, tmp_path):
        assert "0.9" in new.run("cd shop && agent-rft check job.yaml && agent-rft train job.yaml", tmp_path)
    assert list((tmp_path / "shop" / "runs").glob("*/checkpoints/step-000015"))
