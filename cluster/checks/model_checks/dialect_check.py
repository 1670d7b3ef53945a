"""Check of a job's chat template and tool parser by a round trip: the parser must read the calls that were rendered.

The check also reports tools, messages, calls and results that the template leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from agent_rft.actors.engine.chat.dialect_detection import find_dialect, without_tools_renderer
from agent_rft.actors.engine.chat.turn_parsers import list_tool_parsers
from agent_rft.actors.engine.grammar.structural_tags import find_grammar_problem
from agent_rft.chat.dialect import DEFAULT_DIALECT
from agent_rft.chat.families import FAMILIES
from agent_rft.chat.model_card import ModelCard, hash_template
from agent_rft.chat.model_family import ModelFamily
from agent_rft.chat.renderer import Renderer, Tokenizer
from agent_rft.chat.template import RenderFailed, load_chat_template
from agent_rft.cluster.planning.model_folder import format_error
from agent_rft.errors import Problem, UserError
from agent_rft.spec.job import JobSpec, Reinforcement

PARSER = "model_options.tool_parser"
TEMPLATE = "model_options.chat_template"
SWITCHES = ("reasoning_effort", "enable_thinking", "thinking")
"""Names of template arguments that set the reasoning effort or turn reasoning on."""
OWN_TEMPLATE = (
    "run `agent-rft models template FOLDER > template.jinja`, which adds tools, calls and results to the model's own "
    f"template, and set {TEMPLATE} to template.jinja"
)
CALLS = "tool calls in the syntax of the model's chat template"
TOOLS_FIX = f"{OWN_TEMPLATE}; or set model_options.tools_in_prompt: false if the model needs no tool descriptions"


class DialectResult(NamedTuple):
    """Result of the search for the dialect of a job's model.

    Attributes:
        renderer: The renderer for the dialect that was found; None if the template cannot be used.
        unread_calls_problem: Problem that affects only jobs with tool calls; None if there is no such problem.
        problems: All problems of the template and the job's model options.
    """

    renderer: Renderer | None
    unread_calls_problem: Problem | None
    problems: list[Problem]


def find_job_dialect(tokenizer: Tokenizer, job: JobSpec, card: ModelCard | None = None) -> DialectResult:
    """Find the dialect (conversation format) of a job's model, and check the model's tool parser.

    The parser must be able to read the tool calls that the chat template writes. This is not checked if the job uses
    the template and the parser in the model's `card`, because the job that trained the model has passed the same check.
    """
    options = job.model_options
    asked = replace(
        DEFAULT_DIALECT,
        stop_tokens=options.stop_tokens,
        template_arguments=options.template_arguments,
        chat_template=options.chat_template,
    )
    problems = _stop_token_problems(tokenizer, options.stop_tokens)
    try:
        template = load_chat_template(tokenizer, options.chat_template).text
        asked = replace(asked, template_arguments=_effort_arguments(job, template) | asked.template_arguments)
        renderer = Renderer(tokenizer, asked)
        renderer.render_prompt([{"role": "user", "content": "question"}], ())
        if (
            card is not None
            and card.template_digest == hash_template(template)
            and options.tool_parser == card.tool_parser
        ):
            renderer = Renderer(tokenizer, replace(asked, family=card.family, tool_parser=card.tool_parser))
            return DialectResult(renderer, None, problems)
        if find_spec("vllm") is None:
            return DialectResult(renderer, None, problems)  # another check reports the missing engine
        if options.tool_parser not in ("auto", *list_tool_parsers()):
            message = f"the parser {options.tool_parser!r} does not exist"
            fix = f"use auto or one of {', '.join(list_tool_parsers())}"
            return DialectResult(renderer, None, [*problems, Problem("unknown_parser", PARSER, message, fix)])
        renderer, problem = find_dialect(tokenizer, asked, options.tool_parser)
    except UserError as error:
        field = TEMPLATE if options.chat_template is not None else "model"
        code = str(error.details.get("code", "template_error"))
        return DialectResult(None, None, [*problems, Problem(code, field, error.problem, error.fix)])
    if problem is None:
        unread = _tool_result_problem(renderer)
    elif options.tool_parser == "auto":
        unread = Problem("calls_not_parsed", PARSER, f"no parser reads {CALLS}: {problem}", OWN_TEMPLATE)
    else:
        message = f"{options.tool_parser} does not read {CALLS}: {problem}"
        problems.append(Problem("calls_not_parsed", PARSER, message, f"set it to auto, or {OWN_TEMPLATE}"))
        return DialectResult(renderer, None, problems)
    if unread is not None and without_tools_renderer(renderer) is None:
        return DialectResult(renderer, None, [*problems, unread])
    return DialectResult(renderer, unread, problems)


def check_grammar(reinforcement: Reinforcement, family: ModelFamily, *, calls: bool) -> list[Problem]:
    """Return a problem if the job constrains answers with a schema, but no grammar exists for the family's syntax.

    Set `calls` if turns may contain tool calls.
    """
    if reinforcement.response_format is None:
        return []
    error = find_grammar_problem(family, calls=calls)
    known = ", ".join(family.name for family in FAMILIES if family.call_syntaxes)
    fix = (
        "leave out response_format and describe the format in the prompt, or use a model of one of these families: "
        f"{known}"
    )
    field = "method.reinforcement.response_format"
    return [] if error is None else [Problem("no_call_grammar", field, error, fix)]


def _tool_result_problem(renderer: Renderer) -> Problem | None:
    """Return a problem if the template cannot render the results of tool calls."""
    calls = [
        {"id": f"call{i:05d}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for i, name in enumerate(("first", "second"))
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in calls]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    try:
        renderer.render_history([{"role": "user", "content": "question"}, turn, *results], (), ((), ()))
    except (RenderFailed, ValueError) as error:
        message = f"the model's template cannot render the results of two calls: {format_error(error)}"
        return Problem("template_error", TEMPLATE, message, OWN_TEMPLATE)
    return None


def _stop_token_problems(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Problem]:
    return [
        Problem(
            "unknown_stop_token",
            f"model_options.stop_tokens[{i}]",
            f"{text!r} is not a single token of the model's vocabulary",
            "use a single token, such as <|im_end|>; tokenizer.json lists special tokens in added_tokens",
        )
        for i, text in enumerate(texts)
        if tokenizer.backend_tokenizer.token_to_id(text) is None
    ]


def _effort_arguments(job: JobSpec, template: str) -> dict[str, Any]:
    """Return the template arguments for the job's reasoning_effort, if the template has such arguments."""
    if job.method.type == "supervised":
        return {}
    effort = job.reinforcement.hyperparameters.reasoning_effort
    if effort == "default":
        return {}
    values = {"reasoning_effort": effort, "enable_thinking": True, "thinking": True}
    return {name: values[name] for name in SWITCHES if name in template}
