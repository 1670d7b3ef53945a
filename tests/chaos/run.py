"""Rollouts on a fake engine, with the real episode, dispatcher, grader pool and sessions."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, cast

import numpy as np

from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn
from agent_rft.actors.engine.vllm_engine import Completion
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.rollout.episode import EpisodeRunner, EpisodeSpec, RolloutRequest
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.actors.tools.tool_sessions import ToolSessions
from agent_rft.chat.renderer import Renderer
from agent_rft.spec.endpoints import SessionSpec, ToolSpec
from agent_rft.spec.job import RewardSpec, RolloutLimits
from agent_rft.types import DiscardedRollout, Rollout, Task
from tests.chaos.server import ChaosServer
from tests.support import builders
from tests.support.fakes_http import LOCAL

RESULT = "\n=> "


class Letters:
    """A renderer whose tokens are letters, with the methods that episodes use."""

    reasoning_delimiters = ("<think>", "</think>")
    encode_truncated_result = Renderer.encode_truncated_result

    async def run_in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    def render_prompt(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[int]:
        return self.encode_untrusted(messages[-1]["content"])

    def can_append(self, *args: Any, **options: Any) -> bool:
        return True

    def bridge_tokens(self, names: Sequence[str], results: Sequence[Sequence[int]]) -> list[int]:
        return [*self.encode_untrusted(RESULT), *(letter for result in results for letter in result)]

    def encode_untrusted(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_result(self, text: str) -> list[int]:
        return self.encode_untrusted(text)

    def decode_turn(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        return 0


def parse(text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
    """`call NAME ARGUMENTS`, or an answer."""
    if not text.startswith("call "):
        return ParsedTurn(text)
    _, name, arguments = text.split(" ", 2)
    return ParsedTurn("", ((name, arguments),))


def task(row: int, tool: str = "search") -> Task:
    """A row that calls `tool` once; if it is empty, the model answers at once."""
    function = {"name": tool, "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}] if tool else []
    return replace(builders.task(f"{row}", f"row {row} {tool}", tools), item={"row": row})


async def generate(prompt: Sequence[int], *, seed: int, **options: Any) -> Completion:
    """Call the row's tool once with unique arguments, then answer with a unique text."""
    text = "".join(map(chr, prompt))
    tool = text.split(RESULT)[0].split(" ")[2]
    said = f"call {tool} {json.dumps({'n': seed})}" if tool and RESULT not in text else f"answer {seed}"
    ids = [ord(letter) for letter in said]
    await asyncio.sleep(0)
    return Completion(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), True, 0.0)


class ChaosRun:
    """Runs rollouts, and counts those `started`, `graded`, `discarded` (by reason) and `cancelled`."""

    def __init__(
        self,
        server: ChaosServer,
        *,
        tools: Sequence[str] = ("search",),
        tool: dict[str, Any] | None = None,
        grader: dict[str, Any] | None = None,
        session: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        specs = [
            ToolSpec.model_validate({"name": name, "server_url": f"{server.url}/tool/{name}", **(tool or {})})
            for name in tools
        ]
        if grader is None or "type" not in grader:
            grader = {"type": "endpoint", "url": f"{server.url}/grade", **(grader or {})}
        urls = {"start_url": f"{server.url}/session/start", "end_url": f"{server.url}/session/end"}
        self.dispatcher = Dispatcher(specs, LOCAL)
        self.graders = GraderPool(builders.grader_spec(**grader), operator=LOCAL)
        self.book = None
        if session is not None:
            self.book = ToolSessions(SessionSpec.model_validate({**urls, **session}), operator=LOCAL)
        self.started = self.graded = self.cancelled = 0
        self.discarded = Counter[str]()
        spec = EpisodeSpec("chaos", RolloutLimits(**limits), RewardSpec(token_penalty=0.0), 8, 4096)
        self._runner = EpisodeRunner(
            spec,
            cast(Renderer, Letters()),
            parse,
            generate,
            self.dispatcher.call_turn,
            self.graders.grade,
            self.book,
        )

    async def __aenter__(self) -> ChaosRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.book is not None:
            await self.book.close("job_stopped")
        await self.dispatcher.close()
        await self.graders.close()

    async def rollout(self, row: Task, sample: int = 0) -> Rollout | DiscardedRollout:
        self.started += 1
        try:
            outcome = await self._runner.run(RolloutRequest(row, 0, sample, 0, 1.0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(outcome, DiscardedRollout):
            self.discarded[outcome.reason] += 1
        else:
            self.graded += 1
        return outcome

    async def rollouts(self, rows: Sequence[Task], size: int = 1) -> list[list[Rollout | DiscardedRollout]]:
        """Run `size` rollouts of each row, all concurrently."""
        groups = [asyncio.gather(*(self.rollout(row, sample) for sample in range(size))) for row in rows]
        return [list(group) for group in await asyncio.gather(*groups)]

    @property
    def balances(self) -> bool:
        return self.started == self.graded + self.discarded.total() + self.cancelled
