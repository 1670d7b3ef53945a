"""Examination of a model before there is a job: how it writes conversations, and what is missing, with the fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent_rft.actors.engine.chat.dialects import PROBE_TOOLS, answers_only, find_dialect
from agent_rft.chat.conversation import samples_of
from agent_rft.chat.dialect import UNKNOWN
from agent_rft.chat.prelude import tools_as_text
from agent_rft.chat.renderer import Renderer
from agent_rft.chat.template import RenderFailed, template_of
from agent_rft.cluster.planning.model_folder import ModelFolder, find_model
from agent_rft.cluster.preflight.model_checks.dialect import OWN_TEMPLATE, TOOLS_REMEDY
from agent_rft.cluster.preflight.model_checks.model import read_model
from agent_rft.cluster.preflight.prepare import with_card
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


class Finding(NamedTuple):
    """One answer about a model, with what it means or what to do where it is not simply good."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """How a model writes conversations, and what can be trained with it.

    Attributes:
        tool_parser: Name of its tool parser; None: it works without tools only.
        reads_calls: Whether the parser reads the calls that the template writes.
        thought: Whether a turn may start with a thought, continues one of the prompt, or has messages for it.
        keeps_thoughts: Whether the thought of a turn with calls stays in the history.
        parallel_calls: Whether a turn of the history may have several calls.
        shows_tools: Whether the prompt shows the tools.
        shows_system: Whether the prompt shows a system message.
        appends: Whether a rollout with calls is one segment.
        samples: Number of samples of a supervised conversation with a call and two answers; 0: it cannot be rendered.
        samples_without_calls: The same, of a conversation with two answers only.
        structured: Whether answers can be constrained where there are tools.
    """

    family: str
    tool_parser: str | None
    reads_calls: bool
    end_tokens: tuple[str, ...]
    thought: Literal["none", "optional", "opened", "message"]
    keeps_thoughts: bool
    parallel_calls: bool
    shows_tools: bool
    shows_system: bool
    appends: bool
    samples: int
    samples_without_calls: int
    structured: bool

    @property
    def trainable(self) -> bool:
        """Whether tool calls can be trained by reinforcement and by examples."""
        return self.reads_calls and self.shows_tools and self.samples > 0

    def findings(self) -> Iterator[Finding]:
        """Yield the answers in sentences, the most important first."""
        calls = self.tool_parser is not None
        yield Finding("family", self.family)
        if calls:
            yield Finding("tools in the prompt", _yes(self.shows_tools), "" if self.shows_tools else TOOLS_REMEDY)
            parser = str(self.tool_parser) if self.reads_calls else "none reads its calls"
            yield Finding("tool parser", parser, "" if self.reads_calls else OWN_TEMPLATE)
        else:
            yield Finding("tools", "no", f"it works without tools; for tools, {OWN_TEMPLATE}")
        system = "rows with a system message are refused: put it into the user's first message"
        yield Finding("system message", _yes(self.shows_system), "" if self.shows_system else system)
        if calls:
            one = "a turn with several calls is written as several turns, and begins a new segment"
            yield Finding("parallel calls", _yes(self.parallel_calls), "" if self.parallel_calls else one)
        dropped = calls and self.thought != "none" and not self.keeps_thoughts
        remark = "they are left out of the history, so each turn is a segment" if dropped else ""
        thoughts = {"none": "no", "optional": "yes", "opened": "always", "message": "yes, messages of their own"}
        yield Finding("thoughts", thoughts[self.thought], remark)
        if calls:
            several = "" if self.appends else "the template writes turns of the history in another way than the model"
            yield Finding("rollouts", "one segment" if self.appends else "a segment a turn", several)
        samples = self.samples if calls else self.samples_without_calls
        supervised = {0: "no", 1: "one sample a conversation"}.get(samples, "a sample a turn")
        yield Finding("supervised", supervised, "" if samples else OWN_TEMPLATE)
        if calls:
            grammar = "response_format is refused for rows with tools: this family's calls have no grammar here"
            yield Finding("structured output", _yes(self.structured), "" if self.structured else grammar)
        yield Finding("end tokens", " ".join(self.end_tokens))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def examine(renderer: Renderer, *, reads_calls: bool) -> Examined:
    """Examine what a renderer does, in the dialect that was found for its model."""
    shown = _shown(renderer, [_QUESTION])
    form = renderer.form
    thought = "message" if renderer.family.reasoning_parser is not None else renderer.thought
    return Examined(
        family=renderer.family.name,
        tool_parser=renderer.dialect.tool_parser,
        reads_calls=reads_calls,
        end_tokens=tuple(renderer.end_tokens.values()),
        thought=thought,
        keeps_thoughts=form.thought_field is not None,
        parallel_calls=form.takes_several_calls,
        shows_tools=all(tool["function"]["name"] in shown for tool in PROBE_TOOLS),
        shows_system=_SYSTEM["content"] in _shown(renderer, [_SYSTEM, _QUESTION]),
        appends=form.appends(1, says=False, thinks=thought != "none"),
        samples=_num_samples(renderer, _CONVERSATION, PROBE_TOOLS) if reads_calls else 0,
        samples_without_calls=_num_samples(renderer, _WITHOUT_CALLS, ()),
        structured=renderer.form.calls is not None,
    )


def _shown(renderer: Renderer, messages: list[Message]) -> str:
    try:
        return renderer.rendered(messages, PROBE_TOOLS, generate=True)
    except RenderFailed:
        return ""


def _num_samples(renderer: Renderer, conversation: Sequence[Message], tools: Sequence[ToolSchema]) -> int:
    try:
        return len(samples_of(renderer, conversation, tools))
    except (RenderFailed, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of examining a model: the answers (None: it cannot be read), and everything that is wrong with it.

    `unread_calls` is why no parser reads its calls, which is a problem of jobs with tools only.
    """

    examined: Examined | None
    problems: list[Problem]
    unread_calls: Problem | None = None

    @property
    def trainable(self) -> bool:
        """Whether tool calls can be trained."""
        return self.examined is not None and self.examined.trainable and not self.all_problems

    @property
    def trainable_without_tools(self) -> bool:
        """Whether jobs without tools can be trained."""
        return self.examined is not None and self.examined.samples_without_calls > 0 and not self.problems

    @property
    def all_problems(self) -> list[Problem]:
        return [*self.problems, *([] if self.unread_calls is None else [self.unread_calls])]


def examine_model(name: str, options: ModelOptions) -> Examination:
    """Examine the model of a folder or a name with a job's options."""
    spec = {"model": name, "training_file": "", "method": {"type": "supervised"}}
    folder = ModelFolder.find(name)
    job = with_card(JobSpec.model_validate(spec).model_copy(update={"model_options": options}), folder)
    model, problems = read_model(job, folder, trains=False)
    if model is None:
        return Examination(None, problems)
    if model.unread_calls is not None and (renderer := answers_only(model.renderer)) is not None:
        return Examination(examine(renderer, reads_calls=False), problems, model.unread_calls)
    reads_calls = all(one.code != "calls_not_read" for one in problems)
    return Examination(examine(model.renderer, reads_calls=reads_calls), problems)


def template_with_tools(name: str) -> str:
    """The chat template of a model with a part before it that writes tools, calls and results as text.

    Raises:
        UserError: There is no such model, it does not need one, or its calls could not be read with it either.
    """
    path, problem = find_model(name)
    if path is None:
        raise UserError(str(problem))
    tokenizer = ModelFolder(path, path).tokenizer
    if isinstance(tokenizer, Problem):
        raise UserError(str(tokenizer))
    own = template_of(tokenizer)
    renderer, mistake = find_dialect(tokenizer, UNKNOWN)
    if examine(renderer, reads_calls=mistake is None).trainable:
        raise UserError(f"the chat template of {name} has tools already: it needs no other")
    text = tools_as_text(own)
    tokenizer.chat_template = text
    renderer, mistake = find_dialect(tokenizer, UNKNOWN)
    if mistake is not None or not examine(renderer, reads_calls=True).trainable:
        why = mistake or "it leaves out the tools or the turns"
        raise UserError(f"the chat template of {name} cannot be used with tools as text: {why}; write one of your own")
    return text
