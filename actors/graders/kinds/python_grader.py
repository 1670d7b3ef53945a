"""Grader of kind `python`: runs the user's `grade(sample, item)` in a sandbox. If a run fails, only its grade fails.

Each grade runs in a fork of a warm worker process in a sandbox (`agent_rft.actors.sandbox`). A worker runs one grade at
a time. The body of the grader's module runs once per worker, before the first sample. A worker that dies or exceeds
its time or memory limit is killed with all its descendants, and another worker starts immediately.
"""

from __future__ import annotations

import ast
import asyncio
import math
import secrets
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agent_rft import untrusted
from agent_rft.actors.endpoints.request_body import encode_json
from agent_rft.actors.graders.grader_protocol import range_problem
from agent_rft.actors.runtime.cpu_cores import count_usable_cores
from agent_rft.actors.sandbox.sandbox_config import (
    GRADER_PACKAGES,
    SandboxLimits,
    SandboxMethod,
    find_importable_modules,
)
from agent_rft.actors.sandbox.sandbox_start import (
    START_S,
    Sandbox,
    SandboxFailed,
    choose_sandbox_method,
    sandbox_report,
    start_sandbox,
)
from agent_rft.actors.sandbox.untrusted_runner import MEMORY_EXIT
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Grade

MAX_PARSED_CHARS = 50_000
"""Longer sources are not parsed here, because parsing takes up to 600 times as much memory as the source."""
PYTHON_RUNTIME_ERROR = "python_grader_runtime_error"
OUTPUT_JSON = "sample.output_json"
"""Path that an error reports if the grader reads `sample["output_json"]` but the sample has no JSON."""
FORMER_MODULES = frozenset({"agent_rft_grader", "agent_rft_server"})
"""Modules that contained `run_untrusted` before version 0.2.0."""
OWN_MODULES = frozenset({"agent_rft", "grader"})
"""Modules of the sandbox: the one with `run_untrusted`, and the grader itself."""


class PythonRunner:
    """A grader of kind `python`, by default with one worker per core. `label` names the grader in messages."""

    def __init__(
        self,
        spec: PythonGrader,
        label: str,
        operator: OperatorConfig,
        *,
        sandbox_method: SandboxMethod | None = None,
        limits: SandboxLimits | None = None,
        num_workers: int | None = None,
        start_s: float = START_S,
        start_ahead: bool = True,
    ) -> None:
        """Create a grader. With `start_ahead`, it starts workers before they are needed and replaces killed workers."""
        self._what = f"grader {label!r}"
        self._spec = spec
        self._unsandboxed = operator.unsandboxed_python
        self._sandbox_method = sandbox_method
        self._limits = limits or SandboxLimits()
        self._start_s = start_s
        self.starts_ahead = start_ahead
        self._idle = [_Slot(self) for _ in range(num_workers or count_usable_cores())]
        self._slots = tuple(self._idle)
        self._free = asyncio.Semaphore(len(self._idle))
        self._closed = False

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """Return the grade of one sample. `timeout_s` limits the run, not the wait for a free worker.

        Raises:
            GraderFailed: The grader failed. `details` contains the error's code and one more field. For the code
                python_grader_runtime_error, the field is python_grader_runtime_error_details. For the code
                python_grader_server_error, it is python_grader_server_error_type.
            UserError: This machine cannot create a sandbox.
        """
        request = encode_json({"sample": sample, "item": item})
        async with self._free:
            with self._take_slot() as slot:
                worker = await slot.worker()
                started = time.monotonic()
                answer = await self._ask(slot, worker, request)
        value = self._get_value(answer)
        return Grade(value, latency_s=time.monotonic() - started, train=answer.get("train", True) is True)

    @property
    def num_workers(self) -> int:
        """Number of workers that are idle or are computing a grade."""
        return sum(slot.is_ready for slot in self._slots)

    async def close(self) -> None:
        """Kill all workers; running grades fail."""
        self._closed = True
        await asyncio.gather(*(slot.clear() for slot in self._slots))

    @contextmanager
    def _take_slot(self) -> Iterator[_Slot]:
        """Context manager that takes the most recently used free slot.

        It also starts missing workers in the next free slot and in all free slots that were used before.
        """
        slot = self._idle.pop()
        for number, other in enumerate(reversed(self._idle)):
            if number == 0 or other.was_used:
                other.start()
        try:
            yield slot
        finally:
            self._idle.append(slot)

    async def start_worker(self) -> _Worker:
        """Start a worker and load the grader's module in it.

        Raises:
            GraderFailed: The module did not load in time, or it ended the process.
            UserError: This machine cannot create a sandbox.
        """
        if self._closed:
            raise self._make_server_error("closed", "the grader was closed")
        cpu_s = math.ceil(self._spec.timeout_s * self._limits.num_cores) + 1  # so that the deadline expires first
        try:
            method = self._sandbox_method or choose_sandbox_method(
                await asyncio.to_thread(sandbox_report), self._unsandboxed
            )
            sandbox = await asyncio.to_thread(
                start_sandbox, self._spec.source, method, self._limits, timeout_s=self._start_s, cpu_s=cpu_s
            )
        except SandboxFailed as error:
            raise self._make_server_error("timeout" if error.is_late else "no_worker", error.message) from None
        return await _Worker.connect(sandbox)

    async def _ask(self, slot: _Slot, worker: _Worker, request: bytes) -> dict[str, Any]:
        """Return the worker's answer to a request; replace the worker on errors and cancellation."""
        timeout_s = self._spec.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await worker.ask(request)
        except TimeoutError:
            slot.replace()
            raise self._make_server_error(
                "timeout", f"no grade within {timeout_s:g} s; the grader was killed"
            ) from None
        except (OSError, EOFError, ValueError):
            slot.replace()
            if await worker.end() == MEMORY_EXIT:
                raise self._make_runtime_error(
                    f"used more than {self._limits.memory_bytes >> 20} MiB of memory"
                ) from None
            raise self._make_server_error("worker_lost", "the grader's worker process ended unexpectedly") from None
        except asyncio.CancelledError:
            slot.replace()
            raise
        if "last" in answer:  # the worker could not clean up after this grade
            slot.replace()
        return answer

    def _get_value(self, answer: dict[str, Any]) -> float:
        """Return the grade in a worker's answer. The grade is checked again here, because the worker is not trusted."""
        value = answer.get("value")
        if isinstance(value, float) and math.isfinite(value):
            if problem := range_problem(value, self._spec.range):
                raise self._make_runtime_error(f"grade returned a number that {problem}")
            return value
        why = untrusted.clean_error(answer.get("error")) or "the grader returned no grade and no error"
        if "lost" in answer:
            raise self._make_server_error("no_sandbox" if answer["lost"] == "no_sandbox" else "killed", why)
        raise self._make_runtime_error(why, **({"path": OUTPUT_JSON} if answer.get("missing") is True else {}))

    def _make_runtime_error(self, why: str, **details: str) -> GraderFailed:
        last = why.strip().rsplit("\n", 1)[-1]
        return GraderFailed(
            f"{self._what} failed: {last[:500]}",
            code=PYTHON_RUNTIME_ERROR,
            python_grader_runtime_error_details=why,
            **details,
        )

    def _make_server_error(self, kind: str, why: str) -> GraderFailed:
        return GraderFailed(
            f"{self._what} failed: {why}", code="python_grader_server_error", python_grader_server_error_type=kind
        )


class _Slot:
    """A slot for one worker: empty, starting or ready."""

    def __init__(self, owner: PythonRunner) -> None:
        self._owner = owner
        self._task: asyncio.Task[_Worker] | None = None
        self._ending: set[asyncio.Task[int]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether the worker has started and its connection is open."""
        worker = self._started_worker()
        return worker is not None and not worker.is_lost

    @property
    def was_used(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Start a worker unless one is starting or ready. If the start fails, `worker` raises the error."""
        if self._task is None or (self._task.done() and not self.is_ready):
            self._discard_worker()
            self._task = asyncio.create_task(self._owner.start_worker())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def worker(self) -> _Worker:
        """Wait until the worker has started, then return the worker. Cancelling this call does not cancel the start."""
        self.start()
        assert self._task is not None
        return await asyncio.shield(self._task)

    def replace(self) -> None:
        """Kill the worker. If the grader starts workers ahead of time, start another one."""
        self._discard_worker()
        if self._owner.starts_ahead:
            self.start()

    async def clear(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])  # the start runs in a thread, which cannot be cancelled
        self._discard_worker()
        await asyncio.gather(*self._ending)

    def _discard_worker(self) -> None:
        worker = self._started_worker()
        self._task = None
        if worker is not None:
            ending = asyncio.create_task(worker.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _started_worker(self) -> _Worker | None:
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()


class _Worker:
    """A sandbox's worker, which answers one request at a time."""

    def __init__(self, sandbox: Sandbox, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sandbox = sandbox
        self._reader = reader
        self._writer = writer
        self._ended: asyncio.Future[int] | None = None

    @classmethod
    async def connect(cls, sandbox: Sandbox) -> _Worker:
        return cls(sandbox, *await asyncio.open_connection(sock=sandbox.channel))

    @property
    def is_lost(self) -> bool:
        return self._ended is not None or self._reader.at_eof()

    async def ask(self, request: bytes) -> dict[str, Any]:
        """Send a request to the worker and return its answer.

        Raises:
            OSError: The connection to the worker failed.
            EOFError: The worker closed the connection.
            ValueError: The answer is invalid.
        """
        nonce = secrets.token_hex(8).encode()
        for message in (nonce, request):
            self._writer.write(len(message).to_bytes(4, "big") + message)
        await self._writer.drain()
        length = untrusted.parse_length(await self._reader.readexactly(4))
        answer = untrusted.decode(await self._reader.readexactly(length))
        if answer.pop("nonce", None) != nonce.decode():
            raise ValueError("the answer belongs to another request")
        return answer

    async def end(self) -> int:
        """Kill the worker and all its descendants; return the exit status of the launcher. May be called repeatedly."""
        if self._ended is None:
            self._writer.transport.abort()
            self._ended = asyncio.ensure_future(asyncio.to_thread(self._sandbox.end))
        return await asyncio.shield(self._ended)


def ignores_sample(source: str) -> bool:
    """Return whether the function `grade` in a valid `source` never reads its first parameter, the sample."""
    if len(source) > MAX_PARSED_CHARS:
        return False
    match [node for node in _parse_module(source).body if _defines_grade(node)]:
        case [ast.FunctionDef(args=ast.arguments(posonlyargs=only, args=others), decorator_list=[]) as function]:
            first = [parameter.arg for parameter in (*only, *others)][:1]
            read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            return bool(first) and read.isdisjoint((*first, "locals"))
    return False


def _parse_module(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example about escape sequences in the source
        return ast.parse(source)


def python_source_problems(source: str) -> list[str]:
    """Return the problems of a grader's source that can be found without running it.

    Sources longer than MAX_PARSED_CHARS are not checked here; their errors appear when the sandbox loads them.
    """
    if len(source) > MAX_PARSED_CHARS:
        return []
    try:
        module = _parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError) and error.lineno:
            return [f"line {error.lineno}: {error.msg}"]
        return [f"the source cannot be parsed: {str(error) or 'nested too deeply'}"]
    if former := sorted(FORMER_MODULES & set[str]().union(*map(_imported_by, ast.walk(module)))):
        return [
            f"the source imports {name}, which was removed in 0.2.0. Write `from agent_rft import run_untrusted`"
            for name in former
        ]
    if not any(_defines_grade(node) for node in ast.walk(module)):
        return ["the source does not define a function grade(sample, item)"]
    functions = [node for node in module.body if _is_function(node) and _defines_grade(node)]
    return _parameter_problems(functions[-1]) if functions else []


def find_missing_imports(source: str) -> list[tuple[str, str]]:
    """Find imports of packages that the sandbox does not contain. Return (problem, fix) for each import.

    Imports in a `try` or `if` are not checked, because the source may work without them.
    """
    try:
        module = _parse_module(source) if len(source) <= MAX_PARSED_CHARS else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    installed = find_importable_modules()
    importable = sorted(name for name, top in GRADER_PACKAGES.items() if top in installed)
    by_module = {top: name for name, top in GRADER_PACKAGES.items()}
    found = []
    for name in sorted(_needed_packages(module) - installed - sys.stdlib_module_names - OWN_MODULES - FORMER_MODULES):
        problem = f"the source imports {name}, which the sandbox does not contain"
        if name in by_module:
            fix = f"install the package {by_module[name]} on all machines that run graders, or remove the import"
        else:
            fix = f"import only the standard library and {', '.join(importable)}; or use an endpoint grader"
        found.append((problem, fix))
    return found


def _needed_packages(module: ast.Module) -> set[str]:
    """Return the top-level packages that a module imports outside of `try` and `if`."""
    names, left = set[str](), list[ast.AST]([module])
    while left:
        node = left.pop()
        names |= _imported_by(node)
        left += [] if isinstance(node, (ast.If, ast.Try, ast.TryStar)) else ast.iter_child_nodes(node)
    return names


def _imported_by(node: ast.AST) -> set[str]:
    """Return the top-level packages that a statement imports, without those of nested statements."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.partition(".")[0]}
    return set()


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _defines_grade(node: ast.AST) -> bool:
    """Return whether the node may define the name `grade`, for example as a function, a variable or an import."""
    match node:
        case ast.FunctionDef(name="grade") | ast.AsyncFunctionDef(name="grade") | ast.ClassDef(name="grade"):
            return True
        case ast.Name(id="grade", ctx=ast.Store()) | ast.alias(asname="grade") | ast.alias(name="grade" | "*"):
            return True
    return False


def _parameter_problems(node: ast.AST) -> list[str]:
    if isinstance(node, ast.AsyncFunctionDef):
        return [f"line {node.lineno}: grade must be a plain function, not async"]
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return []
    arguments = node.args
    max_args = len(arguments.posonlyargs) + len(arguments.args)
    min_args = max_args - len(arguments.defaults)
    needs_names = any(default is None for default in arguments.kw_defaults)
    if min_args <= 2 and (max_args >= 2 or arguments.vararg) and not needs_names:
        return []
    return [f"line {node.lineno}: grade is called with two arguments, grade(sample, item), but does not accept them"]
