"""Tool and grader of job.yaml, on a host with a GPU: `uvicorn examples.kernels.gpu:app --port 8013 --host ADDRESS`.

KERNELS_CELL is the command that runs Python with PyTorch and Triton in a container without network, such as
`podman run --rm -i --timeout 60 --network none --device nvidia.com/gpu=all IMAGE python`. It needs `--timeout`, because
the container may outlive its client, which is ended here. The kernel, the reference and a function that does nothing
run in separate processes and are called in a random order, so that work which a kernel defers does not slow only the
reference. Time is measured here, from the request to a digest of the result. So inputs and all work count, and no
clock of the kernel's process is used. Kernels are measured one after another.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import json
import os
import random
import shlex
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from fastapi import FastAPI, HTTPException

from examples.common.arguments import text_argument
from examples.kernels.grading import nothing, of_speedup

Sizes = dict[int, tuple[int, int]]
SIZES: Final[Sizes] = {1: (1 << 21, 1 << 22), 2: (1 << 10, 1 << 11)}
NUM_SMALL, NUM_TIMED, FULL_SPEEDUP = 5, 10, 4.0
TOLERANCE, NOISE_S, MAX_CHARS = 1e-4, 2e-5, 20_000
TIMEOUT_S: Final = 60.0
"""Maximum duration of a measurement. Eight (4 calls, 4 grades) can wait in line within the 600 s of job.yaml."""
IMPORTS: Final = frozenset(["import torch", "import triton", "import triton.language as tl", "import math"])
LIBRARIES: Final = frozenset(["torch", "triton", "tl", "math"])
OF_TRITON: Final = frozenset(["jit", "cdiv", "next_power_of_2", "Config", "autotune", "heuristics"])
ATTRIBUTES: Final = frozenset(["empty", "empty_like", "float32", "shape", "numel", "size", "stride", "device", "dtype"])
"""Allowed attributes of PyTorch and tensors: memory and shape of a result, but no operations."""
BUILTINS: Final = frozenset(
    ["abs", "bool", "dict", "enumerate", "float", "int", "len", "list", "max", "min", "range", "sum", "tuple", "zip"]
)
STATEMENTS: Final = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr),
    *(ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass, ast.Assert),
)
"""Allowed statements. No classes, which could fake tensors, and no `match`, which reads attributes and binds names."""
NOTHING: Final = "def kernel(*tensors): return tensors[0]"
DRIVER: Final = """
import json, os, sys, tempfile
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import torch
given = json.loads(sys.stdin.readline())
folder = tempfile.mkdtemp()
with open(f"{folder}/solution.py", "w") as file:  # Triton reads the source again
    file.write(given["code"])
sys.path.insert(0, folder)
import solution
device = "cuda" if torch.cuda.is_available() else "cpu"
for line in sys.stdin:
    asked = json.loads(line)
    generator = torch.Generator(device).manual_seed(asked["seed"])
    inputs = [2 * torch.randn(asked["shape"], generator=generator, device=device) for _ in range(given["arity"])]
    found = solution.kernel(*inputs)
    if type(found) is not torch.Tensor:
        raise TypeError("not a tensor")
    weights = torch.randn(found.shape, generator=generator, device=device)
    terms = found.double() * weights
    digest = [terms.sum().item(), terms.abs().sum().item()]
    print(json.dumps([list(found.shape), *digest]), file=answers, flush=True)
"""


class Wrong(Exception):
    """The kernel is not allowed, wrong or too slow. The message is for the model."""


app = FastAPI()
alone = asyncio.Lock()


@dataclass(frozen=True, slots=True)
class Digest:
    """Shape of a result, its sum with random weights, and the sum of the absolute weighted values."""

    shape: tuple[int, ...]
    total: float
    absolute: float

    def __eq__(self, other: object) -> bool:
        """Return whether the digests are equal up to rounding. NaN equals nothing."""
        return (
            isinstance(other, Digest)
            and self.shape == other.shape
            and all(
                abs(ours - theirs) <= TOLERANCE * max(1.0, other.absolute)
                for ours, theirs in ((self.total, other.total), (self.absolute, other.absolute))
            )
        )


class Cell:
    """Process that runs one function on random inputs, generated from a seed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, seed: int, shape: list[int]) -> tuple[Digest, float]:
        """Return the digest of the result, and the seconds from the request to the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        began = time.perf_counter()
        try:
            self._process.stdin.write(json.dumps({"seed": seed, "shape": shape}).encode() + b"\n")
            line = await self._process.stdout.readline()
            spent_s = time.perf_counter() - began
            found, total, absolute = json.loads(line)
            return Digest(tuple(map(int, found)), float(total), float(absolute)), spent_s
        except (OSError, ValueError, TypeError, ArithmeticError, RecursionError):
            raise Wrong("fails") from None


@asynccontextmanager
async def cell(code: str, arity: int) -> AsyncIterator[Cell]:
    python = shlex.split(os.environ.get("KERNELS_CELL", ""))
    if not python:
        raise HTTPException(403, "KERNELS_CELL is not set: the command that runs Python in a container")  # ends the job
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *python, "-c", DRIVER, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"code": code, "arity": arity}).encode() + b"\n")
    try:
        yield Cell(process)
    finally:
        process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def checked(text: str) -> str:
    """Return the module in an answer, which may be in a code block.

    Raises:
        Wrong: The module has no Triton function, or uses something that is not allowed.
    """
    code = text.strip().removeprefix("```python").removeprefix("```").removesuffix("```")
    if len(code) > MAX_CHARS:
        raise Wrong(f"more than {MAX_CHARS:,} characters")
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Wrong("not a Python module") from None
    if not any(isinstance(node, ast.FunctionDef) and _is_triton(node) for node in nodes):
        raise Wrong("no function with triton.jit")
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom() if ast.unparse(node) not in IMPORTS:
                raise Wrong(f"{ast.unparse(node)[:60]} is not allowed")
            case ast.stmt() if not isinstance(node, STATEMENTS):
                raise Wrong(f"{type(node).__name__} is not allowed")
            case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                raise Wrong(f"{name[:40]} is set: attributes are only read")
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) if name.startswith("_"):
                raise Wrong(f"{name[:40]} is not allowed")
            case ast.Attribute(value=ast.Name(id="tl" | "math")):
                continue
            case ast.Attribute(value=ast.Name(id="triton"), attr=name) if name in OF_TRITON:
                continue
            case ast.Attribute(attr=name) if name not in ATTRIBUTES:
                raise Wrong(f"{name[:40]} is not allowed: write the kernel")
            case ast.Name(id=name) if name not in BUILTINS and hasattr(builtins, name):
                raise Wrong(f"{name[:40]} is not allowed")
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name) if (
                name in LIBRARIES
            ):
                raise Wrong(f"{name} has another meaning")
    return code


def _is_triton(function: ast.FunctionDef) -> bool:
    for decorator in function.decorator_list:
        match decorator:
            case ast.Attribute(value=ast.Name(id="triton"), attr="jit"):
                return True
    return False


async def measured(code: str, item: dict[str, Any], sizes: Sizes = SIZES, timeout_s: float = TIMEOUT_S) -> float:
    """Return the speedup of a right kernel over the reference, by the best of several times of each.

    Raises:
        Wrong: The kernel is wrong, fails or is too slow.
    """
    reference = f"import torch\nfrom torch.nn import functional as F\n{item['reference']}\nkernel = ref\n"
    arity, num_axes = item["reference"].partition(")")[0].count(",") + 1, item["num_axes"]
    async with alone, _deadline(timeout_s), AsyncExitStack() as stack:
        cells = [await stack.enter_async_context(cell(one, arity)) for one in (reference, NOTHING, code)]
        large = [random.randint(*sizes[num_axes]) for _ in range(num_axes)]
        small = [[random.randint(1, 100) for _ in range(num_axes)] for _ in range(NUM_SMALL)]
        times = list[list[float]]()
        for shape in [*small, *[large] * NUM_TIMED]:
            seed = random.getrandbits(63)
            answers = {at: await cells[at].ask(seed, shape) for at in random.sample(range(3), 3)}
            if answers[2][0] != answers[0][0]:
                raise Wrong(f"wrong for shape {tuple(shape)}")
            times.append([answers[at][1] for at in range(3)])
    wanted_s, nothing_s, spent_s = map(min, zip(*times[NUM_SMALL + 1 :], strict=True))  # the first one compiles
    return float(max(wanted_s - nothing_s, NOISE_S) / max(spent_s - nothing_s, NOISE_S))


@asynccontextmanager
async def _deadline(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise Wrong(f"takes more than {timeout_s:g} s with its reference") from None


@app.post("/tools/run")
async def run_kernel(call: dict[str, Any]) -> dict[str, str]:
    code = text_argument(call, "code")
    try:
        return {"output": f"ok {await measured(checked(code), call['item']):.1f}x"}
    except Wrong as error:
        return {"output": str(error)}


@app.post("/grade")
async def grade_kernel(body: dict[str, Any]) -> dict[str, Any]:
    try:
        speedup = await measured(checked(body["sample"]["output_text"] or ""), body["item"])
    except Wrong as error:
        return asdict(nothing(str(error)))
    return asdict(of_speedup(speedup, FULL_SPEEDUP, f"right, {speedup:.2f} times as fast"))
