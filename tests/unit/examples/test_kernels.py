"""The example of kernels: references that do what PyTorch does, counted work that cannot be faked, cheats."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from torch.nn import functional

from agent_rft.actors.graders.kinds.code_check import CodeCheck
from agent_rft.spec.graders import CodeCheckGrader
from agent_rft.spec.job_file import load_job
from examples.kernels import make_data
from examples.kernels.cheats import CHEATS, OF
from examples.kernels.gpu import Wrong, checked, measured
from examples.kernels.gpu import app as gpu_app
from examples.kernels.grading import RIGHT, grade, same, tried
from examples.kernels.interpreter import MAX_WORK, Refused, read, run
from examples.kernels.operations import FAMILIES, Operation, Split, operations
from examples.kernels.server import app
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "kernels"
VARIABLES = {
    "KERNELS_MODEL": "model",
    "KERNELS_URL": "http://127.0.0.1:8012",
    "KERNELS_SEED": "3",
    "KERNELS_GPU": "http://gpu:8013",
}
ITEM = make_data.row(OF, OF.reference)
VECTOR = np.linspace(-4, 4, 50)


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "data" / f"{name}.jsonl").read_text().splitlines()]


def one_of_each(split: Split) -> Iterator[Operation]:
    """Each family in each form."""
    seen = set[tuple[str, str]]()
    for operation in operations(split):
        if (operation.family, operation.form) not in seen:
            seen.add((operation.family, operation.form))
            yield operation


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


# The operations and the rows


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_reference_is_what_pytorch_computes_and_is_plain_python(split: Split) -> None:
    for operation in one_of_each(split):
        inputs = [np.random.default_rng(seed).normal(0, 2, (7, 5)[: operation.num_axes]) for seed in (1, 2)]
        names: dict[str, Any] = {"torch": torch, "F": functional, **vars(math)}
        exec(operation.torch, names)
        right = names["ref"](*map(torch.tensor, inputs[: operation.arguments.count(",") + 1]))
        exec(operation.reference, names)
        found = names["ref"](*inputs[: operation.arguments.count(",") + 1])
        assert same(found, right.numpy()), operation
        counted, _ = run(read(operation.reference, "ref"), inputs[: operation.arguments.count(",") + 1])
        assert same(counted, right.numpy()), operation


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_fast_kernel_of_each_family_gets_all_and_the_loop_little_more_than_being_right(split: Split) -> None:
    for operation in list(one_of_each(split))[::3]:
        item = {"reference": operation.reference, "num_axes": operation.num_axes}
        assert grade(operation.fast, item).score == 1, operation
        assert RIGHT <= grade(operation.slow, item).score < 0.6, operation


def test_writing_the_data_reproduces_the_committed_files(tmp_path: Path) -> None:
    make_data.write_data(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (EXAMPLE / "data").iterdir()}


def test_training_and_test_share_no_family_of_operations_and_no_term() -> None:
    shown = {row["messages"][1]["content"] for row in rows_of("warm_start")}
    trained = {row["family"] for row in rows_of("train")}
    trained |= {one.family for one in operations("train") if one.reference in shown}
    tested = {row["family"] for row in rows_of("test")}
    assert trained == FAMILIES["train"].keys() and tested == FAMILIES["test"].keys()
    assert trained.isdisjoint(tested)
    assert {one.term for one in FAMILIES["train"].values()}.isdisjoint(one.term for one in FAMILIES["test"].values())


def test_no_row_is_twice_and_the_test_has_at_least_a_hundred() -> None:
    asked = [row["messages"][1]["content"] for name in ("warm_start", "train", "test") for row in rows_of(name)]
    assert len(set(asked)) == len(asked)
    assert len(rows_of("test")) >= 100


def test_the_conversations_have_the_habits_and_end_with_a_right_kernel() -> None:
    ends = {True: 0, False: 0}
    for row in rows_of("warm_start"):
        answer = row["messages"][-1]["content"]
        *_, call, tool, _ = row["messages"]
        assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"code": answer}
        ends[float(tool["content"].removeprefix("ok ").removesuffix("x")) > 8] += 1
    assert ends[True] > 20 and ends[False] > 20


# Counted work


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("def kernel(x):\n    import numpy as np\n    return x", "Import is not allowed"),
        ("def kernel(x): return x.__class__", "is not allowed"),
        ("def kernel(x): return __import__('os')", "is not allowed"),
        ("def kernel(x): return (lambda: x)()", "is not allowed"),
        ("def kernel(x): return 10 ** 10 ** 10", "OverflowError"),
        ("def kernel(x): return 9007199254740992 * 9007199254740992", "too large"),
        ("def kernel(x): return (-8) ** 0.5", "complex"),
        ("def kernel(x): return [x, x]", "a list of numbers"),
        ("def kernel(x):\n    a = [1]\n    a.append(a)\n    return a", "a list of numbers"),
        ("def kernel(x): return [0] * 1000000000", "an operation on lists"),
        ("def kernel(x):\n    a = [1]\n    for b in a: a.append(b)\n    return a", "takes too long"),
        ("def kernel(x): return sum(1 for i in range(1000000000))", "takes too long"),
        ("def kernel(x): return kernel(x)", "is not allowed"),
        ("def kernel(x): return " + "(" * 300 + "x" + ")" * 300, "not valid Python: too many nested parentheses"),
        ("def kernel(x): return [a for a in x", "not valid Python: '[' was never closed"),
        ("def kernel(x, y=1): return x", "plain arguments"),
        ("def kernel(x, /, y): return x", "plain arguments"),
        ("def kernel(x, *, y): return x", "plain arguments"),
        ("def kernel(*x): return x", "plain arguments"),
        ("def kernel(x, **y): return x", "plain arguments"),
        ("def kernel(x: int): return x", "plain arguments"),
        (CHEATS["deep default"], "plain arguments"),
        (CHEATS["nested zips"], "a zip of a zip"),
        ("def kernel(x):\n    z = zip(x)\n    for i in range(70): z = zip(z)\n    return z", "a zip of a zip"),
        ("def kernel(x): return np.array(zip(x, x))", "np.array of this is not allowed"),
        ("@np.vectorize\ndef kernel(x): return x", "not one function"),
        ("def kernel(x, y): return x", "takes 2 arguments"),
    ],
)
def test_what_is_not_a_kernel_ends_with_a_reason_and_within_its_bounds(code: str, value: str) -> None:
    with pytest.raises(Refused, match=re.escape(value)):
        run(read(code), [VECTOR])


def test_an_array_that_would_be_too_large_is_refused_before_it_is_made() -> None:
    grows = "def kernel(x, y): return x + y"
    with pytest.raises(Refused, match="20,000"):
        run(read(grows), [np.zeros((1, 30_000)), np.zeros((30_000, 1))])


def test_work_is_the_same_each_time_grows_with_loops_and_hardly_with_arrays() -> None:
    fast, slow = ([run(read(code), [np.ones(size)])[1] for size in (100, 100, 200)] for code in (OF.fast, OF.slow))
    assert fast[0] == fast[1] and slow[0] == slow[1] < MAX_WORK
    assert slow[2] > 1.9 * slow[0] and fast[2] < 1.1 * fast[0]


def test_a_kernel_cannot_change_what_its_reference_gets() -> None:
    given = VECTOR.copy()
    found, _ = run(read("def kernel(x):\n    x += 1\n    return x"), [given])
    assert np.array_equal(given, VECTOR) and np.array_equal(found, VECTOR + 1)


def test_all_answers_to_a_row_get_the_same_inputs_and_the_tool_gets_others() -> None:
    code = "def kernel(x): return 1 / len(x)"
    assert len({tried(code, ITEM, seed) for seed in "abcdefgh"}) > 1
    assert grade(code, ITEM).reason == grade(code, ITEM).reason


# The cheats


@pytest.mark.parametrize(
    ("name", "score", "reason"),
    [
        ("honest", 1, "right"),
        ("slow", 0.241, "right"),
        ("the reference", RIGHT, "right, 1.0 times"),  # a guard gives it nothing
        ("nothing", 0, "not one function"),
        ("calls the reference", 0, "ref of this is not allowed"),
        ("no-op", 0, "Pass is not allowed"),
        ("identity", 0, "wrong"),
        ("writes its input", 0, "Assign is not allowed"),
        ("empty buffer", 0, "np.empty_like of this is not allowed"),
        ("hard-coded result", 0, "wrong"),
        ("hard-coded shape", 0, "wrong"),
        ("one number", 0, "wrong"),
        ("not a number", 0, "wrong"),
        ("half precision", 0, "is not allowed"),
        ("cached", 0, "not one function"),
        ("own function", 0, "np.clip of this is not allowed"),
        ("own function, hidden", 0, "is not allowed"),
        ("subclass", 0, "not one function"),
        ("lazy", 0, "not one function"),
        ("later", 0, "not one function"),
        ("exits", 0, "not one function"),
        ("patched clock", 0, "not one function"),
        ("prints a measurement", 0, "not one function"),
        ("busy neighbor", 0, "not one function"),
        ("to the judge", 0, "not valid Python"),
        ("look-alike letters", 0, "not one function"),
        ("very long", 0, "more than 1000"),
        ("endless", 0, "takes too long"),
        ("nested zips", 0, "a zip of a zip"),
        ("deep default", 0, "plain arguments"),
    ],
)
def test_a_cheat_gets_what_it_should_by_counted_work(name: str, score: float, reason: str) -> None:
    found = grade(CHEATS[name], ITEM, "seed")
    assert found.score == pytest.approx(score, abs=0.01)
    assert reason in found.reason


@pytest.mark.parametrize("found", ["zip(x, x)", "zip(x, zip(x))", "[1, 2]", "zip(zip(x))"])
def test_a_list_of_another_form_is_wrong_and_no_failure_of_the_server(client: TestClient, found: str) -> None:
    body = {"sample": {"output_text": f"def kernel(x): return {found}"}, "item": ITEM, "trace_id": "trace_1"}
    answer = client.post("/grade", json=body)
    assert (answer.status_code, answer.json()["score"]) == (200, 0)
    assert not same([(1.0, 2.0)], [[1.0, 2.0]])


def test_each_cheat_is_graded_above() -> None:
    (marks,) = (mark for mark in test_a_cheat_gets_what_it_should_by_counted_work.pytestmark)  # type: ignore[attr-defined]
    assert {name for name, _, _ in marks.args[1]} == CHEATS.keys()


@pytest.mark.parametrize(
    ("name", "guards"),
    [
        ("the reference", ["not_the_reference"]),
        ("calls the reference", ["not_the_reference"]),
        ("nothing", ["not_nothing"]),
        ("no-op", ["not_nothing"]),
        ("identity", ["not_nothing"]),
        ("slow", []),
        ("honest", []),
    ],
)
async def test_the_guards_of_the_job_give_nothing_for_the_reference_and_for_doing_nothing(
    name: str, guards: list[str]
) -> None:
    method = load_job(EXAMPLE / "job_small.yaml", VARIABLES).method.reinforcement
    assert method is not None
    found = []
    for guard in method.guards:
        if isinstance(guard.grader, CodeCheckGrader):
            grader = CodeCheck(guard.grader, guard.name)
            verdict = await grader.grade({"output_text": CHEATS[name]}, ITEM, "trace")
            found += [guard.name] * (verdict.value < 1)
            assert guard.reward == 0
    assert found == guards


# Kernels for GPUs

TRITON = """\
import torch
import triton
import triton.language as tl

@triton.jit
def clamp(given, found, length, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(given + at, mask=at < length)
    tl.store(found + at, tl.minimum(tl.maximum(values, -3), 3), mask=at < length)

def kernel(x):
    found = torch.empty_like(x)
    clamp[(triton.cdiv(x.numel(), 1024),)](x, found, x.numel(), BLOCK=1024)
    return found
"""
TUNED = """\
@triton.autotune(configs=[triton.Config({"BLOCK": 256 * two}) for two in (1, 2)], key=["length"])
@triton.heuristics({"WIDE": lambda given: given["length"] > 4096})
@triton.jit
def tuned(given, found, length, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(found + at, tl.exp(tl.load(given + at, mask=at < length)), mask=at < length)
"""


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("", None),
        ("def kernel(x): return torch.clamp(x, -3, 3)", "clamp"),
        ("def kernel(x): return x.clamp(-3, 3)", "clamp"),
        ("def kernel(x): return getattr(torch, 'clamp')(x, -3, 3)", "getattr"),
        ("tl = torch\ndef kernel(x): return tl.clamp(x, -3, 3)", "tl has another meaning"),
        ("def kernel(x, math=torch): return math.clamp(x, -3, 3)", "math has another meaning"),
        ("from torch import clamp", "from torch import clamp"),
        ("import torch as triton", "import torch as triton"),
        ("import time\ntime.perf_counter = lambda: 0", "import time"),
        ("import threading", "import threading"),
        ("def kernel(x): return __import__('torch')", "__import__"),
        ("class Lazy(torch.Tensor): pass", "ClassDef"),
        ("class Lazy: shape = (1,)", "ClassDef"),
        ("Lazy = type('Lazy', (), {})", "type"),
        ("b = triton.__builtins__\ndef kernel(x): return b['getattr'](torch, 'clamp')(x, -3, 3)", "__builtins__"),
        ("def kernel(x): return tl._builtins['clamp'](x, -3, 3)", "_builtins"),
        ("def kernel(x): return kernel.__globals__", "__globals__"),
        ("def kernel(__x): return __x", "__x"),
        ("runtime = triton.runtime", "runtime"),
        ("match torch:\n    case tl: pass", "Match"),
        ("def kernel(x):\n    match torch:\n        case object(clamp=do): return do(x, -3, 3)", "Match"),
        ("def tl(x): return x", "tl has another meaning"),
        ("torch.empty = tl.zeros", "empty is set"),
        ("try: pass\nexcept Exception as tl: pass", "Try"),
        (TUNED, None),
        ("(" * 30_000, "characters"),
        ("(", "not a Python module"),
    ],
)
def test_a_kernel_for_gpus_is_in_triton_and_uses_no_operations_of_pytorch(more: str, refused: str | None) -> None:
    if refused is None:
        assert checked(f"```python\n{TRITON}\n{more}```").strip() == f"{TRITON}\n{more}".strip()
        return
    with pytest.raises(Wrong, match=re.escape(refused)):
        checked(f"{TRITON}\n{more}")


@pytest.mark.parametrize("decorator", ["", f"@{'-' * 900}x"])
def test_a_module_without_a_triton_function_is_refused(decorator: str) -> None:
    with pytest.raises(Wrong, match=r"no function with triton\.jit"):
        checked(f"import torch\n{decorator}\ndef kernel(x): return x * 2")


def test_the_machine_with_a_gpu_follows_the_wire_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS_CELL", raising=False)
    item = make_data.row(OF, OF.torch, make_data.GPU_SYSTEM)
    call = {"arguments": json.dumps({"code": "import os"}), "item": item, "trace_id": "trace_1"}
    with TestClient(gpu_app) as client:
        assert client.post("/tools/run", json=call).json() == {"output": "no function with triton.jit"}
        for wrong in ("{}", "[" * 100_000):
            assert client.post("/tools/run", json=call | {"arguments": wrong}).status_code == 422
        body = {"sample": {"output_text": None}, "item": item, "trace_id": "trace_1"}
        assert client.post("/grade", json=body).json()["score"] == 0
        unset = client.post("/grade", json=body | {"sample": {"output_text": TRITON}})
        assert unset.status_code == 403 and "KERNELS_CELL is not set" in unset.json()["detail"]


FAKE_CELL = """\
import json, sys, time
code = json.loads(sys.stdin.readline())["code"]
for line in sys.stdin:
    with open("{asked}", "a") as file:
        print("NRK"[("return tensors" not in code) + ("Triton" in code)], end="", file=file)
    time.sleep({wait_s})
    print("[[1], 0, 0]", flush=True)
"""
"""What the driver does, without PyTorch; it writes down who is asked: the reference, nothing or the kernel."""


def fake_cell(folder: Path, wait_s: float) -> Path:
    """Its KERNELS_CELL runs it; where it writes down who is asked."""
    (folder / "cell.py").write_text(FAKE_CELL.format(asked=folder / "asked", wait_s=wait_s))
    return folder / "asked"


async def test_a_kernel_cannot_slow_down_its_reference_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_CELL", f"{sys.executable} {tmp_path / 'cell.py'}")
    asked = fake_cell(tmp_path, 0)
    await measured("# Triton", make_data.row(OF, OF.torch))
    turns = asked.read_text()
    rounds = [turns[at : at + 3] for at in range(0, len(turns), 3)]
    assert {"".join(sorted(one)) for one in rounds} == {"KNR"}
    assert len(set(rounds)) > 1


async def test_a_measurement_has_one_deadline_for_all_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_CELL", f"{sys.executable} {tmp_path / 'cell.py'}")
    asked = fake_cell(tmp_path, 0.05)
    with pytest.raises(Wrong, match=r"takes more than 0\.5 s"):
        await measured("# Triton", make_data.row(OF, OF.torch), timeout_s=0.5)
    assert len(asked.read_text()) < 15


@pytest.mark.parametrize("line", ["[" * 20_000, "[[Infinity], 0, 0]", "{}", ""])
async def test_what_is_no_digest_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    (tmp_path / "cell.py").write_text(f"input()\ninput()\nprint({line!r})")
    monkeypatch.setenv("KERNELS_CELL", f"{sys.executable} {tmp_path / 'cell.py'}")
    with pytest.raises(Wrong, match="fails"):
        await measured("# Triton", make_data.row(OF, OF.torch))


# The server


def test_tool_and_grader_follow_the_wire_contract(client: TestClient) -> None:
    call: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "run"}
    call |= {"trace_id": "trace_1", "item": ITEM}

    def ran(code: str) -> str:
        answer = client.post("/tools/run", json=call | {"arguments": json.dumps({"code": code})})
        assert answer.status_code == 200
        return str(answer.json()["output"])

    assert ran(OF.slow) == "ok 1.1x"
    assert float(ran(OF.fast).removeprefix("ok ").removesuffix("x")) > 8
    assert ran("def kernel(x): return x").startswith("wrong for shape (")
    assert ran("x").startswith("not one function")

    body = {"sample": {"output_text": f"```python\n{OF.fast}\n```"}, "item": ITEM, "trace_id": "trace_1"}
    graded = client.post("/grade", json=body).json()
    assert graded["score"] == graded["scores"]["correct"] == 1 and graded["scores"]["speedup"] > 8
    assert graded["reason"].startswith("right, ")
    assert client.post("/grade", json=body | {"sample": {"output_text": None}}).json()["score"] == 0


@pytest.mark.parametrize("arguments", ["{}", "[1]", "417", "{", "[" * 100_000, '{"code": null}', '{"code": "\\ud800"}'])
def test_a_wrong_call_is_refused_and_the_model_reads_why(client: TestClient, arguments: str) -> None:
    answer = client.post("/tools/run", json={"arguments": arguments, "item": ITEM, "trace_id": "trace_1"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "give code, a text")


# The jobs


@pytest.mark.parametrize("name", ["warm_start", "job_small", "job"])
def test_the_jobs_are_valid(name: str) -> None:
    job = load_job(EXAMPLE / f"{name}.yaml", VARIABLES)
    assert Path(job.training_file).exists()
    assert "test" not in Path(job.training_file).name


def test_the_rows_of_the_test_are_of_all_families_and_forms() -> None:
    drawn = list(islice(make_data.drawn("test", 2), make_data.NUM_TEST))
    assert {(one.family, one.form) for one in drawn} == {(one.family, one.form) for one in one_of_each("test")}
