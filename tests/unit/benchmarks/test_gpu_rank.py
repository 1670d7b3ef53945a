"""What the benchmark of the learner rank decides without a GPU: packages, wheels, figures, and the plan's memory."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from agent_rft.spec.model_options import LoraSpec
from benchmarks.gpu.figures import Figure, Results
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.supervisor import FINISHED, RESTART, STOPPED
from benchmarks.gpu.worker import run
from benchmarks.gpu_rank.__main__ import BENCHMARK
from benchmarks.gpu_rank.download import pins
from benchmarks.gpu_rank.packages import WHEELS, MissingPackages, check_installed, missing_modules, unpack
from benchmarks.gpu_rank.trial_rank import Layout, digest_of
from benchmarks.gpu_rank.worker import PARTS

PYTHON = f"cp3{sys.version_info.minor}"


def wheel(folder: Path, name: str, module: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}.whl", "w") as file:
        file.writestr(f"{module}/__init__.py", text)


def test_parent_and_worker_have_the_same_parts() -> None:
    assert tuple(PARTS) == BENCHMARK.parts


def test_each_figure_has_a_name_of_its_own_and_a_limit(tmp_path: Path) -> None:
    machine = Machine(torch.device("cpu"), torch.float32, False, Results(tmp_path))
    figures = [figure for part in PARTS.values() for figure in part(machine)]
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        assert figure.limit_s is not None and 2 * figure.takes_s < figure.limit_s < BENCHMARK.seconds


# -- packages ----------------------------------------------------------------------------------------------------------


def test_each_package_of_the_wheels_is_pinned_with_hashes() -> None:
    found = pins(WHEELS.values())
    assert {pin.name for pin in found} == set(WHEELS.values()) and all(pin.hashes for pin in found)


def test_a_missing_and_an_old_package_are_named_with_the_versions_that_are_needed() -> None:
    def version_of(name: str) -> str:
        if name == "transformers":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.9.1+cu130"

    with pytest.raises(MissingPackages) as error:
        check_installed(version_of)
    assert str(error.value).startswith("torch 2.9.1+cu130 is too old; transformers is missing in ")
    assert str(error.value).endswith("Use a Python that has torch 2.11 or later, transformers 5.17 or later.")


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cu130", "2.13.0a0+git1234", "3.0.0"])
def test_a_later_version_of_torch_is_accepted(version: str) -> None:
    check_installed(lambda name: version if name == "torch" else "5.19.0")


def test_only_what_is_missing_is_unpacked_and_only_for_this_python(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "hjson-3.1.0-py3-none-any", "hjson", "")
    wheel(wheels, "einops-0.8.2-py3-none-any", "einops", "")
    wheel(wheels, "msgpack-1.2.4-cp39-cp39-manylinux2014_x86_64", "msgpack", "other")
    wheel(wheels, f"msgpack-1.2.4-{PYTHON}-{PYTHON}-linux_x86_64.linux_aarch64", "msgpack", "own")
    missing = missing_modules(lambda module: module not in ("hjson", "msgpack"))
    assert missing == ["hjson", "msgpack"]
    unpack(missing, wheels, tmp_path / "site")
    assert {path.name for path in (tmp_path / "site").iterdir()} == {"hjson", "msgpack"}
    assert (tmp_path / "site" / "msgpack" / "__init__.py").read_text() == "own"


def test_pydantic_and_its_core_come_together() -> None:
    assert missing_modules(lambda module: module != "pydantic") == ["pydantic", "pydantic_core"]


def test_packages_without_a_wheel_are_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "hjson-3.1.0-py3-none-any", "hjson", "")
    with pytest.raises(MissingPackages, match=r"^deepspeed, py-cpuinfo: not installed here.*make gpu-rank-wheels"):
        unpack(["cpuinfo", "deepspeed", "hjson"], tmp_path / "wheels", tmp_path / "site")
    assert not (tmp_path / "site").exists()


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_process_that_measures_one_figure_asks_for_another_until_none_is_left(tmp_path: Path) -> None:
    machine = Machine(torch.device("cpu"), torch.float32, True, Results(tmp_path))
    figures = [Figure(name, "s", lambda: {"value": 1.0}, 0) for name in ("a", "b")]
    codes = [run(machine, ["own"], float("inf"), {"own": lambda _: figures}, one_per_process=True) for _ in range(3)]
    assert codes == [RESTART, FINISHED, FINISHED]
    assert list(machine.results.lines) == ["a", "b"]


def test_figures_that_are_left_out_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(torch.device("cpu"), torch.float32, True, Results(tmp_path))
    figures = [Figure(name, "s", lambda: {"value": 1.0}, takes_s=20) for name in ("a", "b")]
    assert run(machine, ["own"], 0.0, {"own": lambda _: figures}) == STOPPED
    assert capsys.readouterr().out.endswith("start again to measure what was left out: 'a', 'b'\n")


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(), "ZeRO 1"),
        (Layout(zero_stage=0, dtype="float32"), "ZeRO 0, float32"),
        (Layout(zero_stage=2, offload="optimizer"), "ZeRO 2, offload optimizer"),
        (Layout(lora=LoraSpec(rank=8)), "ZeRO 1, LoRA 8"),
    ],
)
def test_a_layout_is_named_by_its_stage_and_what_is_not_the_default(layout: Layout, text: str) -> None:
    assert str(layout) == text


def test_the_digest_of_a_folder_depends_on_names_and_contents(tmp_path: Path) -> None:
    digests = set()
    for index, (name, text) in enumerate([("a", "1"), ("b", "1"), ("a", "2")]):
        file = tmp_path / str(index) / "deep" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        digests.add(digest_of(tmp_path / str(index)))
    again = tmp_path / "again" / "deep" / "a"
    again.parent.mkdir(parents=True)
    again.write_text("1")
    assert len(digests) == 3 and digest_of(tmp_path / "again") in digests
