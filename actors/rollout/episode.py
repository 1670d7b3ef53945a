"""One rollout: its turns, tool calls and grade.

This module is pure asyncio. It samples, parses, calls tools and grades through functions that the caller passes, so it
runs without an engine, HTTP or Ray.

Invariants:

- The learner trains on exactly the token ids that the engine sampled, each once.
- A failure outside the model (`DiscardError`) never becomes a grade.
- An error of the model, such as an invalid tool call, is reported to the model and counted, and the rollout continues.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from opentelemetry.trace import Span

from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn, TurnParser
from agent_rft.actors.engine.grammar.structural_tags import build_structure
from agent_rft.actors.engine.vllm_engine import Completion
from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.rollout.time_budget import TimeBudget
from agent_rft.actors.rollout.trajectory import Trajectory, parse_turn
from agent_rft.actors.runtime.rollout_stages import RolloutStages
from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, Tracer, mark_failed
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import RenderFailed
from agent_rft.chat.template_messages import parse_arguments
from agent_rft.errors import DiscardError, TemplateFailed
from agent_rft.spec.job import RewardSpec, RolloutLimits
from agent_rft.spec.schemas.json_schema import HALF_SURROGATE_PAIR, SchemaValidator
from agent_rft.trainer.algorithm.reward import compute_reward
from agent_rft.types import DiscardedRollout, Finish, Grade, Rollout, Task, ToolCall, ToolResult, Turn

MAX_CHECKERS = 256
"""Maximum number of compiled tool schemas in the cache. Each row may have different tools, so there can be many."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Settings shared by all rollouts of a job."""

    seed: str
    limits: RolloutLimits
    reward: RewardSpec
    max_steps: int
    context_length: int
    max_reasoning_tokens: int | None = None
    response_schema: dict[str, Any] | None = None
    model: str = ""
    """Model name in traces."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Request for one rollout. `epoch`, `sample`, `attempt` and the task's row id determine the rollout's random seeds.

    `index` is the admission number of the rollout's group. A full engine serves lower numbers first, because the
    learner takes groups in this order. Turns of an earlier batch therefore do not wait behind turns of the next batch.
    """

    task: Task
    epoch: int
    sample: int
    attempt: int
    temperature: float
    index: int = 0


class Generate(Protocol):
    def __call__(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        seed: int,
        temperature: float,
        structure: str | None,
        order: int,
    ) -> Awaitable[Completion]: ...


CallTools = Callable[[str, dict[str, Any], Sequence[ToolCall]], Awaitable[list[ToolResult]]]
"""Function that takes trace_id, item and calls, and returns the results in the order of the calls."""
GradeSample = Callable[[dict[str, Any], dict[str, Any], str], Awaitable[Grade]]
"""Function that takes sample, item and trace_id, and returns the grade."""


class Sessions(Protocol):
    """Protocol that opens a session for each rollout, and ends the session after the rollout."""

    async def start(self, trace_id: str, item: dict[str, Any]) -> None:
        """Open the session; return when the rollout may start.

        Raises:
            ToolFailed: The session could not be opened.
            EndpointRefused: The server refuses the key.
        """

    def end(self, trace_id: str, reason: str) -> None:
        """End the session in the background; never raises, even if the session never started."""


def derive_turn_seed(job: str, request: RolloutRequest, turn: int) -> int:
    """Return the seed of one turn.

    Each turn of a request has a different seed. If the request is repeated, its turns have the same seeds as before.
    """
    parts = (job, request.epoch, request.task.row_id, request.sample, request.attempt, turn)
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


class EpisodeRunner:
    """Runs the rollouts of one job on one engine."""

    def __init__(
        self,
        spec: EpisodeSpec,
        renderer: Renderer,
        parse: TurnParser,
        generate: Generate,
        call_tools: CallTools,
        grade: GradeSample,
        sessions: Sessions | None = None,
        engine: str = "the engine",
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        """Create the runner; `engine` is the engine's name in errors."""
        self._spec = spec
        self._renderer = renderer
        self._parse = parse
        self._generate = generate
        self._call_tools = call_tools
        self._grade = grade
        self._sessions = sessions
        self._engine = engine
        self._clock = clock
        self._tracer = tracer
        self._checkers: dict[str, SchemaValidator] = {}
        self._appended: set[tuple[int, tuple[str, ...], bool, bool]] = set()
        """Turns whose next tokens the renderer knows: stop token, called tools, whether they had text and reasoning."""
        self.in_flight = RolloutStages()

    async def run(self, request: RolloutRequest) -> Rollout | DiscardedRollout:
        """Run one rollout to its end.

        Returns:
            The graded rollout, or a DiscardedRollout after an infrastructure failure. A `CancelledError` counts as an
            infrastructure failure unless this task was cancelled.

        Raises:
            UserError: The job cannot continue, for example because an endpoint refuses its key.
        """
        trace_id = f"trace_{secrets.token_hex(16)}"
        end_reason = "failed"
        try:
            outcome = await self._run_traced(request, trace_id)
            end_reason = outcome.reason if isinstance(outcome, DiscardedRollout) else "graded"
            return outcome
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                end_reason = "cancelled"
                raise
            end_reason = DiscardError.reason
            message = f"a library cancelled the rollout: {error!r}"
            return DiscardedRollout(trace_id, request.task.row_id, request.sample, end_reason, message)
        finally:
            self.in_flight.leave(trace_id)
            if self._sessions is not None:
                self._sessions.end(trace_id, end_reason)

    async def _run_traced(self, request: RolloutRequest, trace_id: str) -> Rollout | DiscardedRollout:
        with self._tracer.rollout_span(
            trace_id,
            "invoke_agent",
            gen_ai__operation__name="invoke_agent",
            gen_ai__conversation__id=trace_id,
            agent_rft__row_id=request.task.row_id,
            agent_rft__sample=request.sample,
        ) as span:
            outcome = await self._run_in_session(request, trace_id)
            if isinstance(outcome, DiscardedRollout):
                mark_failed(span, outcome.reason)
            else:
                span.set_attributes({"agent_rft.finish": outcome.finish, "agent_rft.reward": outcome.reward})
        return outcome

    async def _run_in_session(self, request: RolloutRequest, trace_id: str) -> Rollout | DiscardedRollout:
        budget = TimeBudget(self._spec.limits, self._clock)
        try:
            if self._sessions is not None:
                self.in_flight.enter(trace_id, "session start")
                async with budget.stage("the session server"):
                    await self._sessions.start(trace_id, request.task.item)
            return await self._run_turns(request, trace_id, budget)
        except DiscardError as error:
            discard = error
        endpoint = str(discard.details.get("endpoint", ""))
        return DiscardedRollout(
            trace_id, request.task.row_id, request.sample, discard.reason, discard.message, endpoint
        )

    async def _run_turns(self, request: RolloutRequest, trace_id: str, budget: TimeBudget) -> Rollout:
        started = time.monotonic()
        task, limits = request.task, self._spec.limits
        spec = self._spec
        self.in_flight.enter(trace_id, "rendering")
        prompt, result_tokens, structure = await self._renderer.run_in_thread(self._render_task, task)
        trajectory = Trajectory(prompt, list(task.messages), result_tokens)
        answer, finish = "", None
        while finish is None:
            max_tokens = min(
                limits.max_completion_tokens - trajectory.num_sampled,
                self._spec.context_length - len(trajectory.token_ids),
            )
            self.in_flight.enter(trace_id, "sampling")
            with self._turn_span(trace_id, request, len(trajectory.token_ids), max_tokens) as span:
                async with budget.stage(self._engine):
                    completion = await self._generate(
                        trajectory.token_ids,
                        max_tokens=max_tokens,
                        seed=derive_turn_seed(self._spec.seed, request, len(trajectory.turns)),
                        temperature=request.temperature,
                        structure=structure,
                        order=request.index,
                    )
                    budget.count_sampling(completion.model_s)
                span.set_attribute("gen_ai.usage.output_tokens", len(completion.token_ids))
                span.set_attribute("gen_ai.response.finish_reasons", ["stop" if completion.stopped else "length"])
            answer, finish = await self._take_turn(task, trace_id, trajectory, completion, budget)
        self.in_flight.enter(trace_id, "grading")
        sample = make_sample(answer, trajectory.turns, finish, self._spec.response_schema is not None)
        async with budget.stage("the grader"):
            grade = await self._grade(sample, task.item, trace_id)
        busy_s = sum(turn.busy_s for turn in trajectory.turns)
        return Rollout(
            trace_id=trace_id,
            row_id=task.row_id,
            epoch=request.epoch,
            sample=request.sample,
            attempt=request.attempt,
            segments=trajectory.segments(),
            turns=tuple(trajectory.turns),
            answer=answer,
            finish=finish,
            grade=grade,
            reward=compute_reward(
                spec.reward, grade, trajectory.num_calls, len(trajectory.turns), trajectory.num_sampled, busy_s
            ),
            reasoning_tokens=trajectory.reasoning_tokens,
            wall_s=time.monotonic() - started,
            structure=structure,
        )

    def _render_task(self, task: Task) -> tuple[list[int], list[list[int]], str | None]:
        """Return the tokens of the first prompt, the tokens of each tool result in it, and the structure of turns."""
        results = [
            self._renderer.encode_result(message["content"]) for message in task.messages if message["role"] == "tool"
        ]
        prompt = self._renderer.render_prompt(task.messages, task.tools)
        spec = self._spec
        structure = build_structure(self._renderer, task.tools, spec.response_schema, spec.max_reasoning_tokens)
        return prompt, results, structure

    def _turn_span(
        self, trace_id: str, request: RolloutRequest, num_prompt_tokens: int, max_tokens: int
    ) -> AbstractContextManager[Span]:
        return self._tracer.span(
            trace_id,
            f"chat {self._spec.model}".rstrip(),
            gen_ai__operation__name="chat",
            gen_ai__request__model=self._spec.model,
            gen_ai__request__temperature=request.temperature,
            gen_ai__request__max_tokens=max_tokens,
            gen_ai__usage__input_tokens=num_prompt_tokens,
        )

    async def _take_turn(
        self, task: Task, trace_id: str, trajectory: Trajectory, completion: Completion, budget: TimeBudget
    ) -> tuple[str, Finish | None]:
        """Append a completion and its tool results; return the answer, and the finish reason if the rollout ended."""
        segment, start, stop = trajectory.add_completion(completion)
        text = self._renderer.decode_turn(completion.token_ids)
        parsed, num_reasoning = self._parse_turn(completion.token_ids, task)
        trajectory.reasoning_tokens += num_reasoning

        def end_turn(
            finish: Finish,
            calls: Sequence[ToolCall] = (),
            results: Sequence[ToolResult] = (),
            result_tokens: Sequence[list[int]] = (),
        ) -> tuple[str, Finish]:
            turn = Turn(start, stop, text, tuple(calls), tuple(results), completion.model_s, segment)
            trajectory.add_turn(turn, parsed, result_tokens)
            return parsed.content.strip(), finish

        if not completion.stopped:
            sampled_out = trajectory.num_sampled >= self._spec.limits.max_completion_tokens
            return end_turn("max_tokens" if sampled_out else "context")
        if not parsed.calls and not parsed.is_malformed:
            return end_turn("answer")
        if budget.is_over:
            return end_turn("timeout")
        calls = [ToolCall(f"call_{secrets.token_hex(12)}", name, arguments) for name, arguments in parsed.calls]
        if parsed.is_malformed:
            calls = [ToolCall(f"call_{secrets.token_hex(12)}", "malformed_call", "{}")]
        calls = calls[: max(0, self._spec.max_steps - trajectory.num_steps - 1)]
        results, result_tokens = self._truncate(
            await self._get_results(task, trace_id, trajectory.num_calls, calls, budget)
        )
        end_turn("max_steps", calls, results, result_tokens)
        if trajectory.num_steps >= self._spec.max_steps:
            return parsed.content.strip(), "max_steps"
        if trajectory.num_sampled >= self._spec.limits.max_completion_tokens:
            return parsed.content.strip(), "max_tokens"
        self.in_flight.enter(trace_id, "rendering")
        if not await self._prepare_next_turn(task, trajectory, completion.token_ids[-1], parsed, calls, result_tokens):
            return parsed.content.strip(), "context"
        return "", None

    def _parse_turn(self, token_ids: Sequence[int], task: Task) -> tuple[ParsedTurn, int]:
        """Parse a turn; also return its number of reasoning tokens."""
        parsed, length = parse_turn(self._renderer, self._parse, token_ids, task.tools)
        return parsed, length or (len(self._renderer.encode_untrusted(parsed.reasoning)) if parsed.reasoning else 0)

    async def _prepare_next_turn(
        self,
        task: Task,
        trajectory: Trajectory,
        stop_token: int,
        turn: ParsedTurn,
        calls: Sequence[ToolCall],
        results: list[list[int]],
    ) -> bool:
        """Add the tokens between this turn's `stop_token` and the next turn; return False if the context is full.

        Raises:
            TemplateFailed: The chat template cannot render the conversation.
        """
        has_text = bool(turn.content.strip())
        has_reasoning = bool(turn.reasoning) or self._renderer.reasoning_delimiters[1] in trajectory.turns[-1].text
        known = {tool["function"]["name"] for tool in task.tools}
        names = tuple(c.name if c.name in known else "tool" for c in calls)
        shape, renderer = (stop_token, names, has_text, has_reasoning), self._renderer

        def render() -> tuple[list[int] | None, list[int]]:
            if renderer.can_append(stop_token, len(names), has_text=has_text, has_reasoning=has_reasoning):
                bridge = renderer.bridge_tokens(names, results)
                self._appended.add(shape)
                return bridge, trajectory.token_ids
            return None, renderer.render_history(trajectory.messages, task.tools, trajectory.result_tokens)

        try:
            # After the first turn of this shape, the renderer has its tokens and does not render.
            bridge, prompt = render() if shape in self._appended else await renderer.run_in_thread(render)
        except (RenderFailed, ValueError) as error:
            raise TemplateFailed(f"the chat template cannot render turn {len(trajectory.turns)}: {error}") from error
        if len(prompt) + len(bridge or ()) >= self._spec.context_length:
            return False
        if bridge is None:
            trajectory.continue_with(prompt)
        else:
            trajectory.add_unsampled_tokens(bridge)
        return True

    async def _get_results(
        self, task: Task, trace_id: str, num_before: int, calls: Sequence[ToolCall], budget: TimeBudget
    ) -> list[ToolResult]:
        """Return the results in call order. Valid calls are sent together; invalid calls get errors as results."""
        rejections = [self._reject_call(task, call, num_before + i) for i, call in enumerate(calls)]
        valid = [call for call, rejection in zip(calls, rejections, strict=True) if rejection is None]
        self.in_flight.enter(trace_id, "tool calls")
        tool_results: list[ToolResult] = []
        if valid:
            async with budget.stage(", ".join(sorted({f"tool {call.name!r}" for call in valid}))):
                tool_results = await self._call_tools(trace_id, task.item, valid)
                budget.count_tools(max(result.latency_s for result in tool_results))
        answers = iter(tool_results)
        return [rejection if rejection is not None else next(answers) for rejection in rejections]

    def _reject_call(self, task: Task, call: ToolCall, position: int) -> ToolResult | None:
        """Return the result that reports an invalid call to the model; None for a valid call."""
        names = [tool["function"]["name"] for tool in task.tools]
        kind, text = None, ""
        if call.name == "malformed_call" and call.name not in names:
            kind, text = "malformed_call", "the tool call could not be read; write valid JSON with name and arguments"
        elif position >= self._spec.limits.max_tool_calls:
            kind, text = "over_budget", f"no tool calls are left (limit {self._spec.limits.max_tool_calls}); answer now"
        elif call.name not in names:
            kind, text = "unknown_tool", f"there is no tool {call.name!r}; the tools are {', '.join(names)}"
        else:
            problem = self._find_argument_error(task.tools[names.index(call.name)], call.arguments)
            if problem is not None:
                kind, text = "invalid_arguments", problem
        return None if kind is None else ToolResult(call.call_id, f"error: {text}", error=kind)

    def _find_argument_error(self, tool: dict[str, Any], arguments: str) -> str | None:
        schema = tool["function"].get("parameters")
        try:
            value = parse_arguments(arguments)
        except UnicodeEncodeError:
            return f"invalid arguments {HALF_SURROGATE_PAIR}"
        except ValueError as error:
            return f"the arguments are not valid JSON: {error}"
        if schema is None:
            return None
        key = json.dumps(schema, sort_keys=True)
        if key not in self._checkers:
            if len(self._checkers) >= MAX_CHECKERS:
                del self._checkers[next(iter(self._checkers))]
            self._checkers[key] = SchemaValidator(schema)
        problem = self._checkers[key].find_violation(value)
        return None if problem is None else f"invalid arguments {problem}"

    def _truncate(self, results: Sequence[ToolResult]) -> tuple[list[ToolResult], list[list[int]]]:
        """Truncate outputs to `max_tool_output_tokens`; return the results and their tokens.

        A note at the end of a truncated output reports how many tokens were cut.
        """
        limit = self._spec.limits.max_tool_output_tokens
        truncated: list[ToolResult] = []
        tokens: list[list[int]] = []
        for result in results:
            ids, is_cut = self._renderer.encode_truncated_result(result.output, limit)
            if is_cut:
                result = ToolResult(
                    result.call_id,
                    self._renderer.decode_turn(ids),
                    result.error,
                    result.latency_s,
                    result.retries,
                    truncated=True,
                )
            truncated.append(result)
            tokens.append(ids)
        return truncated, tokens
