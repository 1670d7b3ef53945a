"""Examination of a model, independent of any job: conversation format, missing features, and fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent_rft.actors.engine.chat.dialect_detection import ROUND_TRIP_TOOLS, find_dialect, without_tools_renderer
from agent_rft.chat.conversation import split_conversation
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import RenderFailed, load_chat_template
from agent_rft.chat.tools_prelude import add_tools_prelude
from agent_rft.cluster.checks.check_job import apply_model_card
from agent_rft.cluster.checks.model_checks.dialect_check import OWN_TEMPLATE, TOOLS_FIX
from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.planning.model_folder import ModelFolder, find_model
from agent_rft.errors import Problem, UserError
from agent_rft.spec.job import JobSpec
from agent_rft.spec.model_options import ModelOptions
from agent_rft.types import Message, ToolSchema

_SYSTEM: Message = {"role": "system", "content": "Be kind."}
_QUESTION: Message = {"role": "user", "content": "Where is order A 17?"}
_CALL = {"id": "call", "type": "function", "function": {"name": "find_order", "arguments": '{"order_id": "A 17"}'}}
_CONVERSATION: tuple[Message, ...] = (
    _QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call", "content": "sent"},
    {"role": "assistant", "content": "It was sent."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "You are welcome."},
)
_WITHOUT_CALLS: tuple[Message, ...] = tuple(m for m in _CONVERSATION if m["content"] and m["role"] != "tool")


class ModelFeature(NamedTuple):
    """Feature of a model. `remark` describes the consequence or the fix if `value` limits training."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ModelFeatures:
    """Features of a model: the format of its conversations, and the kinds of training that it supports.

    Attributes:
        family: Name of the model family.
        tool_parser: Name of the tool parser; None if the model can be used only without tools.
        reads_calls: Whether the parser reads the calls that the template writes.
        stop_tokens: Stop tokens.
        reasoning: Use of reasoning: `none`, `optional`, `opened` (in every turn) or `message` (in separate messages).
        keeps_reasoning: Whether the reasoning of a turn with calls stays in the history.
        parallel_calls: Whether a turn of the history may have several calls.
        shows_tools: Whether the prompt shows the tools.
        shows_system: Whether the prompt shows a system message.
        is_append_only: Whether the template only appends to earlier turns, so that a rollout with calls is one segment.
        samples: Number of training samples into which a supervised conversation with a call and two answers is split;
            0 if it cannot be rendered.
        samples_without_calls: The same number for a supervised conversation with two answers and no call.
        has_structured_output: Whether answers can be constrained to a schema in rows with tools.
    """

    family: str
    tool_parser: str | None
    reads_calls: bool
    stop_tokens: tuple[str, ...]
    reasoning: Literal["none", "optional", "opened", "message"]
    keeps_reasoning: bool
    parallel_calls: bool
    shows_tools: bool
    shows_system: bool
    is_append_only: bool
    samples: int
    samples_without_calls: int
    has_structured_output: bool

    @property
    def can_train_calls(self) -> bool:
        """Whether tool calls can be trained, both by reinforcement and by supervised jobs."""
        return self.reads_calls and self.shows_tools and self.samples > 0

    def list_features(self) -> Iterator[ModelFeature]:
        """Yield the features as text, most important first."""
        calls = self.tool_parser is not None
        yield ModelFeature("family", self.family)
        if calls:
            yield ModelFeature(
                "tools in the prompt", _yes_or_no(self.shows_tools), "" if self.shows_tools else TOOLS_FIX
            )
            parser = str(self.tool_parser) if self.reads_calls else "no parser reads its calls"
            yield ModelFeature("tool parser", parser, "" if self.reads_calls else OWN_TEMPLATE)
        else:
            yield ModelFeature("tools", "no", f"the model is usable without tools; to use tools, {OWN_TEMPLATE}")
        system = "rows with a system message are refused; put the text into the user's first message"
        yield ModelFeature("system message", _yes_or_no(self.shows_system), "" if self.shows_system else system)
        if calls:
            one = "a turn with several calls is split into turns with one call each, so a new training segment begins"
            yield ModelFeature("parallel calls", _yes_or_no(self.parallel_calls), "" if self.parallel_calls else one)
        dropped = calls and self.reasoning != "none" and not self.keeps_reasoning
        omitted = "the template leaves reasoning out of the history, so each turn becomes a separate training segment"
        reasoning = {"none": "no", "optional": "yes", "opened": "always", "message": "yes, in separate messages"}
        yield ModelFeature("reasoning", reasoning[self.reasoning], omitted if dropped else "")
        if calls:
            several = "" if self.is_append_only else "the template changes the text of the model's earlier turns"
            yield ModelFeature("rollouts", "one segment" if self.is_append_only else "one segment per turn", several)
        samples = self.samples if calls else self.samples_without_calls
        supervised = {0: "no", 1: "one sample per conversation"}.get(samples, "one sample per turn")
        yield ModelFeature("supervised", supervised, "" if samples else OWN_TEMPLATE)
        if calls:
            grammar = "rows with tools cannot use response_format: agent-rft has no grammar for this model's tool calls"
            yield ModelFeature(
                "structured output",
                _yes_or_no(self.has_structured_output),
                "" if self.has_structured_output else grammar,
            )
        yield ModelFeature("stop tokens", " ".join(self.stop_tokens))


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def examine_renderer(renderer: Renderer, *, reads_calls: bool) -> ModelFeatures:
    """Return the features of a renderer's model.

    Set `reads_calls` if the parser reads the calls that the template writes.
    """
    shown = _render_prompt(renderer, [_QUESTION])
    form = renderer.template_format
    reasoning = "message" if renderer.family.reasoning_parser is not None else renderer.reasoning_mode
    return ModelFeatures(
        family=renderer.family.name,
        tool_parser=renderer.dialect.tool_parser,
        reads_calls=reads_calls,
        stop_tokens=tuple(renderer.stop_tokens.values()),
        reasoning=reasoning,
        keeps_reasoning=form.reasoning_field is not None,
        parallel_calls=form.takes_several_calls,
        shows_tools=all(tool["function"]["name"] in shown for tool in ROUND_TRIP_TOOLS),
        shows_system=_SYSTEM["content"] in _render_prompt(renderer, [_SYSTEM, _QUESTION]),
        is_append_only=form.can_append(1, has_text=False, has_reasoning=reasoning != "none"),
        samples=_count_samples(renderer, _CONVERSATION, ROUND_TRIP_TOOLS) if reads_calls else 0,
        samples_without_calls=_count_samples(renderer, _WITHOUT_CALLS, ()),
        has_structured_output=renderer.template_format.call_syntax is not None,
    )


def _render_prompt(renderer: Renderer, messages: list[Message]) -> str:
    try:
        return renderer.render_text(messages, ROUND_TRIP_TOOLS, add_generation_prompt=True)
    except RenderFailed:
        return ""


def _count_samples(renderer: Renderer, conversation: Sequence[Message], tools: Sequence[ToolSchema]) -> int:
    try:
        return len(split_conversation(renderer, conversation, tools))
    except (RenderFailed, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of examining a model: its features (None if the model cannot be read) and its problems.

    `unread_calls_problem` is set if no parser can read the model's tool calls. Only jobs with tools have this problem.
    """

    features: ModelFeatures | None
    problems: list[Problem]
    unread_calls_problem: Problem | None = None

    @property
    def can_train_calls(self) -> bool:
        """Whether tool calls can be trained."""
        return self.features is not None and self.features.can_train_calls and not self.all_problems

    @property
    def can_train_without_calls(self) -> bool:
        """Whether the model can be trained by jobs without tools."""
        return self.features is not None and self.features.samples_without_calls > 0 and not self.problems

    @property
    def all_problems(self) -> list[Problem]:
        return [*self.problems, *([] if self.unread_calls_problem is None else [self.unread_calls_problem])]


def examine_model(name: str, options: ModelOptions) -> Examination:
    """Examine a model, given by its folder or name, with a job's model options."""
    spec = {"model": name, "training_file": "", "method": {"type": "supervised"}}
    folder = ModelFolder.find(name)
    job = apply_model_card(JobSpec.model_validate(spec).model_copy(update={"model_options": options}), folder)
    model, problems = read_model(job, folder, trains=False)
    if model is None:
        return Examination(None, problems)
    if model.unread_calls_problem is not None and (renderer := without_tools_renderer(model.renderer)) is not None:
        return Examination(examine_renderer(renderer, reads_calls=False), problems, model.unread_calls_problem)
    reads_calls = all(problem.code != "calls_not_parsed" for problem in problems)
    return Examination(examine_renderer(model.renderer, reads_calls=reads_calls), problems)


def add_tools_to_template(name: str) -> str:
    """Return a model's chat template with a new first part, which writes tools, calls and results as text.

    Raises:
        UserError: The model is missing, its template already supports tools, or the added part does not work.
    """
    path, problem = find_model(name)
    if path is None:
        raise UserError(str(problem))
    tokenizer = ModelFolder(path, path).tokenizer
    if isinstance(tokenizer, Problem):
        raise UserError(str(tokenizer))
    own = load_chat_template(tokenizer)
    renderer, difference = find_dialect(tokenizer, DEFAULT_DIALECT)
    if examine_renderer(renderer, reads_calls=difference is None).can_train_calls:
        raise UserError(f"the chat template of {name} already supports tools: use the template as it is")
    text = add_tools_prelude(own)
    tokenizer.chat_template = text
    renderer, difference = find_dialect(tokenizer, DEFAULT_DIALECT)
    if difference is not None or not examine_renderer(renderer, reads_calls=True).can_train_calls:
        why = difference or "the template leaves out the tools or the turns"
        raise UserError(f"cannot add tools as text to the chat template of {name}: {why}; write your own template")
    return text
