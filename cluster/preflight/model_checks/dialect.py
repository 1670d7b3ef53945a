"""Check of a job's chat template and tool parser by a round trip: calls are rendered, and the same must be read.

Nothing that a template leaves out is silent: tools, messages, calls and results must be in what it renders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from agent_rft.actors.engine.chat.dialects import answers_only, find_dialect
from agent_rft.actors.engine.chat.parsing import tool_parser_names
from agent_rft.actors.engine.grammar.structure import grammar_mistake
from agent_rft.chat.dialect import UNKNOWN
from agent_rft.chat.families import FAMILIES
from agent_rft.chat.family import Family
from agent_rft.chat.model_card import ModelCard, digest_of
from agent_rft.chat.renderer import Renderer, Tokenizer
from agent_rft.chat.template import RenderFailed, template_of
from agent_rft.cluster.planning.model_folder import one_line
from agent_rft.errors import Problem, UserError
from agent_rft.spec.job import JobSpec, Reinforcement

PARSER = "model_options.tool_parser"
TEMPLATE = "model_options.chat_template"
SWITCHES = ("reasoning_effort", "enable_thinking", "thinking")
"""Names that templates have for a reasoning effort."""
OWN_TEMPLATE = (
    f"set {TEMPLATE} to a template that renders tools, calls and results (`agent-rft models template FOLDER` writes "
    "one that adds them to the model's own)"
)
CALLS = "the calls of the model's template"
TOOLS_REMEDY = f"{OWN_TEMPLATE}; or set model_options.tools_in_prompt: false if the model needs no descriptions"


class ReadDialect(NamedTuple):
    """The dialect of a job's model.

    Attributes:
        renderer: The renderer in this dialect; None: the template cannot be used.
        unread_calls: Why no parser reads the model's calls. It is a problem of jobs that need calls; see `tool_calls`.
        problems: Everything that is wrong with the template and the job's model options.
    """

    renderer: Renderer | None
    unread_calls: Problem | None
    problems: list[Problem]


def read_dialect(tokenizer: Tokenizer, job: JobSpec, card: ModelCard | None = None) -> ReadDialect:
    """Find the dialect of a job's model.

    The parser in the model's `card` was found by the check of the job that trained it, and is not searched again.
    """
    options = job.model_options
    asked = replace(
        UNKNOWN,
        end_tokens=options.stop_tokens,
        template_arguments=options.template_arguments,
        chat_template=options.chat_template,
    )
    problems = _unknown_tokens(tokenizer, options.stop_tokens)
    try:
        template = template_of(tokenizer, options.chat_template).text
        asked = replace(asked, template_arguments=_effort(job, template) | asked.template_arguments)
        renderer = Renderer(tokenizer, asked)
        renderer.prompt([{"role": "user", "content": "question"}], ())
        if card is not None and card.template_digest == digest_of(template) and options.tool_parser == card.tool_parser:
            renderer = Renderer(tokenizer, replace(asked, family=card.family, tool_parser=card.tool_parser))
            return ReadDialect(renderer, None, problems)
        if find_spec("vllm") is None:
            return ReadDialect(renderer, None, problems)  # without an engine nothing runs, which is another problem
        if options.tool_parser not in ("auto", *tool_parser_names()):
            message = f"there is no parser {options.tool_parser!r}"
            remedy = f"use auto or one of {', '.join(tool_parser_names())}"
            return ReadDialect(renderer, None, [*problems, Problem("unknown_parser", PARSER, message, remedy)])
        renderer, mistake = find_dialect(tokenizer, asked, options.tool_parser)
    except UserError as error:
        field = TEMPLATE if options.chat_template is not None else "model"
        code = str(error.details.get("code", "template_fails"))
        return ReadDialect(None, None, [*problems, Problem(code, field, error.problem, error.remedy)])
    if mistake is None:
        unread = _result_problem(renderer)
    elif options.tool_parser == "auto":
        unread = Problem("calls_not_read", PARSER, f"no parser reads {CALLS}: {mistake}", OWN_TEMPLATE)
    else:
        message = f"{options.tool_parser} does not read {CALLS}: {mistake}"
        problems.append(Problem("calls_not_read", PARSER, message, f"set it to auto, or {OWN_TEMPLATE}"))
        return ReadDialect(renderer, None, problems)
    if unread is not None and answers_only(renderer) is None:
        return ReadDialect(renderer, None, [*problems, unread])
    return ReadDialect(renderer, unread, problems)


def grammar_problems(reinforcement: Reinforcement, family: Family, *, calls: bool) -> list[Problem]:
    """A problem if turns, with or without calls, are constrained, and the family's form is not known as a grammar."""
    if reinforcement.response_format is None:
        return []
    mistake = grammar_mistake(family, calls=calls)
    known = ", ".join(family.name for family in FAMILIES if family.calls)
    remedy = f"leave it out and ask for the form in the prompt, or use a model of another family ({known})"
    field = "method.reinforcement.response_format"
    return [] if mistake is None else [Problem("no_call_grammar", field, mistake, remedy)]


def _result_problem(renderer: Renderer) -> Problem | None:
    """A problem if the template cannot render the results of calls."""
    calls = [
        {"id": f"call{i:05d}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for i, name in enumerate(("first", "second"))
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in calls]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    try:
        renderer.resume([{"role": "user", "content": "question"}, turn, *results], (), ((), ()))
    except (RenderFailed, ValueError) as error:
        message = f"the model's template cannot render the results of two calls: {one_line(error)}"
        return Problem("template_fails", TEMPLATE, message, OWN_TEMPLATE)
    return None


def _unknown_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Problem]:
    return [
        Problem(
            "unknown_stop_token",
            f"model_options.stop_tokens[{i}]",
            f"{text!r} is not one token of the model's vocabulary",
            "use the text of a token, such as <|im_end|>; see added_tokens in tokenizer.json",
        )
        for i, text in enumerate(texts)
        if tokenizer.backend_tokenizer.token_to_id(text) is None
    ]


def _effort(job: JobSpec, template: str) -> dict[str, Any]:
    """The template's own switches for reasoning_effort, if it has them."""
    if job.method.type == "supervised":
        return {}
    effort = job.reinforcement.hyperparameters.reasoning_effort
    if effort == "default":
        return {}
    values = {"reasoning_effort": effort, "enable_thinking": True, "thinking": True}
    return {name: values[name] for name in SWITCHES if name in template}
