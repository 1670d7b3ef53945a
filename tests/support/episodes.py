"""A rollout with a scripted model, tools that echo, and a grader that returns 1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn, TurnParser
from agent_rft.actors.engine.vllm_engine import Completion
from agent_rft.actors.rollout.episode import EpisodeRunner, EpisodeSpec, RolloutRequest
from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, Tracer
from agent_rft.chat.renderer import Renderer
from agent_rft.spec.job import RewardSpec, RolloutLimits
from agent_rft.types import Grade, Rollout, ToolCall, ToolResult
from tests.support.builders import task

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = ({"type": "function", "function": {"name": "cat", "parameters": SCHEMA}},)
TASK = task("1-a", "what was revenue of vorzen in 2015?", TOOLS, reference="7")


def call(path: str, name: str = "cat") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"path": "{path}"}}}}\n</tool_call>'


def parse(text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
    """A minimal parser of Hermes' format, with reasoning as text."""
    reasoning, _, text = text.rpartition("</think>\n")
    reasoning = reasoning.removeprefix("<think>\n").strip()
    parts = [part.partition("</tool_call>")[0] for part in text.split("<tool_call>")[1:]]
    try:
        found = tuple((c["name"], json.dumps(c["arguments"])) for c in map(json.loads, parts))
    except ValueError:
        return ParsedTurn("", is_malformed=True, reasoning=reasoning)
    return ParsedTurn(text.partition("<tool_call>")[0], found, reasoning=reasoning)


class ScriptedEpisode:
    """A scripted model (of texts, or of token ids with their end), tools that echo, and a grader that returns 1."""

    def __init__(
        self, renderer: Renderer, *script: str | list[int], version: Callable[[int], int] = lambda turn: 0
    ) -> None:
        self.renderer = renderer
        self.script = list(script)
        self.parse: TurnParser = parse
        self.version = version
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.seeds: list[int] = []
        self.max_tokens: list[int] = []
        self.structures: list[str | None] = []
        self.orders: list[int] = []
        self.messages: list[list[ToolCall]] = []
        self.traces: set[str] = set()
        self.graded: list[dict[str, Any]] = []
        self.sessions: list[str] = []
        self.model_s = 0.5
        self.experts: Callable[[int, int], NDArray[np.uint8]] | None = None
        """The experts that an engine reports for a number of tokens in a turn."""
        self.output: Callable[[ToolCall], str] = lambda c: f"result of {json.loads(c.arguments)['path']}"

    async def generate(self, prompt: Sequence[int], **options: Any) -> Completion:
        turn = len(self.prompts)
        self.prompts.append(list(prompt))
        self.seeds.append(options["seed"])
        self.max_tokens.append(options["max_tokens"])
        self.structures.append(options["structure"])
        self.orders.append(options["order"])
        said = self.script[turn]
        ids = said if isinstance(said, list) else [*self.renderer.encode(said), self.renderer.tokenizer.eos_token_id]
        stopped = len(ids) <= options["max_tokens"]
        ids = ids[: options["max_tokens"]]
        self.sampled.append(ids)
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 10
        experts = None if self.experts is None else self.experts(turn, len(prompt) + len(ids) - 1)
        versions = np.full(len(ids), self.version(turn), np.int32)
        return Completion(ids, logprobs, versions, stopped, self.model_s, experts)

    async def call_tools(self, trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]) -> list[ToolResult]:
        self.traces.add(trace_id)
        self.messages.append(list(calls))
        return [ToolResult(c.call_id, self.output(c), latency_s=0.1 * (i + 1)) for i, c in enumerate(calls)]

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        self.traces.add(trace_id)
        self.graded.append(sample)
        return Grade(1.0)

    async def start(self, trace_id: str, item: dict[str, Any]) -> None:
        assert item == TASK.item
        self.traces.add(trace_id)
        self.sessions.append(f"start with {len(self.prompts)} turns")

    def end(self, trace_id: str, reason: str) -> None:
        self.traces.add(trace_id)
        self.sessions.append(reason)

    def hang(self, stage: str) -> asyncio.Event:
        """Block in `stage`; the returned event is set when it is reached."""
        reached = asyncio.Event()

        async def hang(*args: Any, **options: Any) -> None:
            reached.set()
            await asyncio.Event().wait()

        setattr(self, stage, hang)
        return reached

    def runner(
        self, max_steps: int = 64, context: int = 2048, tracer: Tracer = NO_TRACES, **limits: Any
    ) -> EpisodeRunner:
        spec = EpisodeSpec("7", RolloutLimits(**limits), RewardSpec(token_penalty=0.0), max_steps, context)
        return EpisodeRunner(
            spec, self.renderer, self.parse, self.generate, self.call_tools, self.grade, self, tracer=tracer
        )


REQUEST = RolloutRequest(TASK, epoch=0, sample=3, attempt=0, temperature=1.0)


async def graded(runner: EpisodeRunner, request: RolloutRequest = REQUEST) -> Rollout:
    rollout = await runner.run(request)
    assert isinstance(rollout, Rollout), rollout
    return rollout
