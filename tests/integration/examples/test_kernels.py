"""The example of kernels: what cheats get where time is measured, in the sandbox and by the machine with a GPU."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import OperatorConfig
from examples.kernels import gpu, make_data
from examples.kernels.cheats import CHEATS, OF
from tests.support.paths import ROOT

VARIABLES = {"KERNELS_MODEL": "model", "KERNELS_URL": "http://127.0.0.1:8012", "KERNELS_SEED": "3"}
ITEM = make_data.row(OF, OF.reference)
AS_FAST_AS_IT_IS = ("slow", "the reference", "lazy", "patched clock", "busy neighbor")
"""They hide what they take, or slow their neighbors down, and are right: they get what a right kernel gets."""


@pytest.fixture
async def held_out() -> AsyncIterator[PythonRunner]:
    method = load_job(ROOT / "examples" / "kernels" / "job_small.yaml", VARIABLES).method.reinforcement
    assert method is not None and isinstance(method.held_out_grader, PythonGrader)
    grader = PythonRunner(
        method.held_out_grader, "held_out", OperatorConfig(), sandbox_method="namespaces", num_workers=1
    )
    yield grader
    await grader.close()


ONE_OF_EACH = ("honest", "slow", "the reference", "no-op", "cached", "very long")
"""A kernel for each way in which the held-out grader grades one."""


@pytest.mark.parametrize("names", [ONE_OF_EACH, pytest.param(tuple(CHEATS), marks=pytest.mark.nightly, id="all")])
async def test_a_cheat_gets_nothing_or_what_its_time_deserves(held_out: PythonRunner, names: tuple[str, ...]) -> None:
    for name in names:
        value = (await held_out.grade({"output_text": CHEATS[name]}, ITEM, "trace")).value
        if name == "honest":
            assert value > 0.7, name
        elif name in AS_FAST_AS_IT_IS:
            assert 0 < value < 0.5, name
        elif name == "very long":  # it is right: the guard `brief` refuses it
            assert value > 0, name
        else:
            assert value == 0, name


# The measure of gpu.py, here with PyTorch on the processor, in a process without a container

START = "import os, torch\ndef kernel(x):\n    "
TANH = "for _ in range(20): x = torch.tanh(x)\n    return x"
FALSE_TENSOR = TANH.replace("return x", "return torch.nn.Parameter(x)")
"""Right, but of a class that could compute later."""
ITEM_OF_TANH = {"reference": f"def ref(x):\n    {TANH}", "num_axes": 1}
SIZES = {1: (200_000, 300_000)}


async def test_a_kernel_that_is_right_is_measured_and_a_wrong_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_CELL", sys.executable)
    assert await gpu.measured(f"{START}{TANH}", ITEM_OF_TANH, SIZES, timeout_s=250) > 0
    with pytest.raises(gpu.Wrong, match="wrong for shape"):
        await gpu.measured(f"{START}return x", ITEM_OF_TANH, SIZES, timeout_s=250)


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_time_is_measured_outside_and_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_CELL", sys.executable)
    same = await gpu.measured(f"{START}print('[[1], 0, 0]')\n    {TANH}", ITEM_OF_TANH, SIZES)
    patched = f"import time\ntime.perf_counter = lambda: 0.0\n{START}time.sleep(0.3)\n    {TANH}"
    late = await gpu.measured(patched, ITEM_OF_TANH, SIZES)
    assert late < 0.5 and late < same
    for wrong in ("return x", "return x * float('nan')", "os._exit(0)", FALSE_TENSOR):
        with pytest.raises(gpu.Wrong):
            await gpu.measured(f"{START}{wrong}", ITEM_OF_TANH, SIZES)
