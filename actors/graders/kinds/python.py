"""The user's own `grade(sample, item)`, run where it can do no harm. What it does costs only its own grade.

Each grade runs in a fork of a warm worker process in a sandbox (`actors.sandbox`); a worker runs one at a time. The
module's body runs once a worker, before it sees any sample. A worker that is late, dies or uses up its memory is taken
down with all that it started, and another one is started in its place at once.
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actors.sandbox.start import (
    MEMORY_EXIT,
    START_S,
    Sandbox,
    SandboxFailed,
    SandboxLimits,
    Way,
    choose_way,
    sandbox_report,
    start,
)
from trainer.errors import GraderFailed
from trainer.spec.graders import PythonGrader
from trainer.spec.operator import Operator
from trainer.types import Grade

MAX_ANSWER_BYTES = 1 << 20
"""Far more than a worker sends."""


class PythonGrade:
    """A grader of kind `python`. `label` names it in messages. How it is sandboxed, its limits and how many workers it
    has (one a core) may be handed in.
    """

    def __init__(
        self,
        spec: PythonGrader,
        label: str,
        operator: Operator,
        *,
        way: Way | None = None,
        limits: SandboxLimits | None = None,
        num_workers: int | None = None,
        start_s: float = START_S,
    ) -> None:
        self._what = f"grader {label!r}"
        self._spec = spec
        self._unsandboxed = operator.unsandboxed_python
        self._way = way
        self._limits = limits or SandboxLimits()
        self._start_s = start_s
        self._idle = [_Slot(self) for _ in range(num_workers or len(os.sched_getaffinity(0)))]
        self._slots = tuple(self._idle)
        self._free = asyncio.Semaphore(len(self._idle))
        self._closed = False

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """Waits for a worker as long as those before it take; `timeout_s` begins with its own run.

        Raises:
            GraderFailed: its details hold code (python_grader_runtime_error or python_grader_server_error) and
                python_grader_runtime_error_details or python_grader_server_error_type.
            UserError: no sandbox can be made here.
        """
        request = json.dumps({"sample": sample, "item": item}).encode()
        async with self._free:
            with self._slot() as slot:
                worker = await slot.worker()
                begun = time.monotonic()
                answer = await self._ask(slot, worker, request)
        return Grade(self._value(answer), latency_s=time.monotonic() - begun)

    @property
    def num_workers(self) -> int:
        """Workers that are ready for a grade or run one."""
        return sum(slot.is_ready for slot in self._slots)

    async def close(self) -> None:
        """Take all workers down; grades that still run fail."""
        self._closed = True
        await asyncio.gather(*(slot.clear() for slot in self._slots))

    @contextmanager
    def _slot(self) -> Iterator[_Slot]:
        """The slot used last, whose worker is the warmest. The next one's worker is started ahead, and those that were
        lost since.
        """
        slot = self._idle.pop()
        for number, other in enumerate(reversed(self._idle)):
            if number == 0 or other.was_used:
                other.begin()
        try:
            yield slot
        finally:
            self._idle.append(slot)

    async def start_worker(self) -> _Worker:
        """Raises:
        GraderFailed: its module was not loaded in time, or ended it.
        UserError: no sandbox can be made here.
        """
        if self._closed:
            raise self._server_error("closed", "it was closed")
        way = self._way or choose_way(await asyncio.to_thread(sandbox_report), self._unsandboxed)
        cpu_s = math.ceil(self._spec.timeout_s * self._limits.num_cores) + 1  # after the deadline
        try:
            sandbox = await asyncio.to_thread(
                start, self._spec.source, way, self._limits, timeout_s=self._start_s, cpu_s=cpu_s
            )
        except SandboxFailed as error:
            raise self._server_error("timeout" if error.late else "no_worker", error.message) from None
        return await _Worker.connect(sandbox)

    async def _ask(self, slot: _Slot, worker: _Worker, request: bytes) -> dict[str, Any]:
        """What the worker said; however else this ends, another worker takes its place."""
        timeout_s = self._spec.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await worker.ask(request)
        except TimeoutError:
            slot.replace()
            raise self._server_error("timeout", f"no grade within {timeout_s:g} s; its processes were killed") from None
        except (OSError, EOFError, ValueError):
            slot.replace()
            if await worker.end() == MEMORY_EXIT:
                raise self._runtime_error(f"used more than {self._limits.memory_bytes >> 20} MiB of memory") from None
            raise self._server_error("worker_lost", "its worker process was lost") from None
        except asyncio.CancelledError:
            slot.replace()
            raise
        if "last" in answer:  # it could not clear up after this one
            slot.replace()
        return answer

    def _value(self, answer: dict[str, Any]) -> float:
        """The grade in what a worker said; it has looked at it before, but is not to be trusted."""
        value = answer.get("value")
        if isinstance(value, float) and math.isfinite(value):
            return value
        why = str(answer.get("error", "it said nothing"))
        raise self._server_error("killed", why) if "lost" in answer else self._runtime_error(why)

    def _runtime_error(self, why: str) -> GraderFailed:
        last = why.strip().rsplit("\n", 1)[-1]
        return GraderFailed(
            f"{self._what} failed: {last[:500]}",
            code="python_grader_runtime_error",
            python_grader_runtime_error_details=why,
        )

    def _server_error(self, kind: str, why: str) -> GraderFailed:
        return GraderFailed(
            f"{self._what} failed: {why}", code="python_grader_server_error", python_grader_server_error_type=kind
        )


class _Slot:
    """A place for one worker: empty, or with one that is being started, or with one that is ready."""

    def __init__(self, owner: PythonGrade) -> None:
        self._owner = owner
        self._task: asyncio.Task[_Worker] | None = None
        self._ending: set[asyncio.Task[int]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether its worker is there, as far as one can see without asking."""
        worker = self._result()
        return worker is not None and not worker.is_lost

    @property
    def was_used(self) -> bool:
        return self._task is not None

    def begin(self) -> None:
        """Start a worker, where none is there. What goes wrong is said to whoever needs it and starts it anew."""
        if self._task is None or (self._task.done() and not self.is_ready):
            self._drop()
            self._task = asyncio.create_task(self._owner.start_worker())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def worker(self) -> _Worker:
        """Its worker. Cancelled, it leaves the start under way to the next one."""
        self.begin()
        assert self._task is not None
        return await asyncio.shield(self._task)

    def replace(self) -> None:
        """Take the worker down and start another one."""
        self._drop()
        self.begin()

    async def clear(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])  # a thread starts it, which cannot be stopped
        self._drop()
        await asyncio.gather(*self._ending)

    def _drop(self) -> None:
        worker = self._result()
        self._task = None
        if worker is not None:
            ending = asyncio.create_task(worker.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _result(self) -> _Worker | None:
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()


class _Worker:
    """A sandbox that answers one request after another."""

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
        """Raises:
        OSError, EOFError: the worker is lost.
        ValueError: it answered nonsense.
        """
        word = secrets.token_hex(8).encode()
        for message in (word, request):
            self._writer.write(len(message).to_bytes(4, "big") + message)
        await self._writer.drain()
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        if length > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        answer = json.loads(await self._reader.readexactly(length))
        if not isinstance(answer, dict) or answer.pop("word", None) != word.decode():
            raise ValueError("an answer to something else")
        return answer

    async def end(self) -> int:
        """Take it down with all that it started, once; the exit status of its launcher."""
        if self._ended is None:
            self._writer.transport.abort()
            self._ended = asyncio.ensure_future(asyncio.to_thread(self._sandbox.end))
        return await asyncio.shield(self._ended)


def python_source_problems(source: str) -> list[str]:
    """What is wrong with a grader's source as far as it shows without running it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its escape sequences, say
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError) and error.lineno:
            return [f"line {error.lineno}: {error.msg}"]
        return [f"it cannot be read: {str(error) or 'nested too deeply'}"]
    if not any(_defines_grade(node) for node in ast.walk(module)):
        return ["it defines no function grade(sample, item)"]
    functions = [node for node in module.body if _is_function(node) and _defines_grade(node)]
    return _parameter_problems(functions[-1]) if functions else []


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _defines_grade(node: ast.AST) -> bool:
    """Whether it may give the module a name `grade`; anywhere in it, since an `if` or `try` may do so."""
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
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    needs_names = any(default is None for default in arguments.kw_defaults)
    if least <= 2 and (most >= 2 or arguments.vararg) and not needs_names:
        return []
    return [f"line {node.lineno}: grade is called with two values, grade(sample, item), which it does not take"]
