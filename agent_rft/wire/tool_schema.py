"""Schema of the tools in requests to models.

The model sees only functions. Other tools of OpenAI's API are accepted but ignored, and unknown types are rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from agent_rft.chat.message_schema import RequestPart
from agent_rft.spec.schemas.json_schema import find_schema_problem, find_structure_problem
from agent_rft.spec.schemas.schema_limits import MAX_PATTERNS, SchemaProblem, find_patterns
from agent_rft.wire.api_errors import truncate

IgnoredType = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]
"""Types of tools in OpenAI's API, except `function`. Tools of these types are ignored."""
IGNORED_TYPES = frozenset(get_args(IgnoredType))
T = TypeVar("T", bound=BaseModel)


def _check_tool_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return raise_schema_problem(schema, find_structure_problem(schema))


def raise_schema_problem(schema: dict[str, Any], problem: SchemaProblem | None) -> dict[str, Any]:
    if problem is not None:
        raise ValueError(f"{problem}; {problem.fix}")
    return schema


JsonSchema = Annotated[dict[str, Any], AfterValidator(_check_tool_schema)]
"""JSON schema of a tool. Patterns in the schema are not compiled, because the API does not validate calls."""
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class FunctionDefinition(RequestPart):
    """Function of a tool as the model sees it. Extra fields are preserved, as in training."""

    model_config = ConfigDict(extra="allow")

    name: FunctionName
    description: str | None = None
    """Description of the function for the model."""
    parameters: JsonSchema | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Accepted for compatibility with OpenAI's API."""


class ToolDefinition(RequestPart):
    type: Literal["function"]
    function: FunctionDefinition


class IgnoredTool(RequestPart):
    """Tool of OpenAI's API that is not a function. The model does not see it."""

    type: IgnoredType


def tool_kind(tool: Any) -> str:
    """Return the tag by which pydantic selects the class of a tool: `ignored_tool` or `function_tool`.

    The tags differ from all keys of tools, so they can be removed from the paths in error messages.
    """
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "ignored_tool" if isinstance(kind, str) and kind in IGNORED_TYPES else "function_tool"


def check_tool_type(tool: Any) -> Any:
    """Refuse a tool of an unknown type.

    Raises:
        ValidationError: The type is a string, but neither `function` nor an ignored type.
    """
    match tool:
        case {"type": str(kind)} if kind != "function" and kind not in IGNORED_TYPES:
            message = "the type {kind} is not supported; remove the tool, or describe it as a function"
            problem = PydanticCustomError("unknown_tool_type", message, {"kind": repr(truncate(kind, 100))})
            raise ValidationError.from_exception_data(
                "tool", [InitErrorDetails(type=problem, loc=("type",), input=kind)]
            )
    return tool


class NamedFunction(RequestPart):
    name: str


class NamedTool(RequestPart):
    type: Literal["function"]
    function: NamedFunction


def check_unique_names(tools: list[T]) -> list[T]:
    """Check that no two functions in `tools` have the same name.

    Raises:
        ValueError: A name occurs twice.
    """
    names = Counter(tool.function.name for tool in tools if isinstance(tool, ToolDefinition))
    if duplicates := sorted(name for name, count in names.items() if count > 1):
        raise ValueError(f"duplicate tool names: {', '.join(duplicates)}; give each tool a unique name")
    return tools


ChatTool = Annotated[
    Annotated[ToolDefinition, Tag("function_tool")] | Annotated[IgnoredTool, Tag("ignored_tool")],
    Discriminator(tool_kind),
    BeforeValidator(check_tool_type),
]


def check_tool_choice(choice: str | NamedTool | None, functions: Sequence[ToolDefinition]) -> None:
    """Check `tool_choice` against the functions in `tools`.

    Raises:
        ValueError: `tool_choice` names a function that does not exist, or requires a call when there are no functions.
    """
    names = {tool.function.name for tool in functions}
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise ValueError(f"tool_choice names {choice.function.name!r}, which is not in tools")
    if choice == "required" and not names:
        raise ValueError("tool_choice is required, but tools contains no functions")


def check_grammars(choice: str | NamedTool | None, functions: Sequence[ToolDefinition], *, wants_json: bool) -> None:
    """Check the functions' schemas if the request needs a grammar.

    A grammar is needed if `choice` requires a call, or if the answer must be JSON (`wants_json`).

    Raises:
        ValueError: A schema cannot be expressed as a grammar, or there are too many patterns.
    """
    if not wants_json and choice in (None, "auto", "none"):
        return
    if (count := sum(len(find_patterns(tool.function.parameters or {})) for tool in functions)) > MAX_PATTERNS:
        allowed = f"at most {MAX_PATTERNS} patterns are allowed with this tool_choice and response format"
        raise ValueError(f"the schemas of the tools have {count:,} patterns; {allowed}")
    for tool in functions:
        problem = find_schema_problem(tool.function.parameters, grammar=True)
        if problem is not None:
            raise ValueError(f"tools: the schema of {tool.function.name!r} at {problem}; {problem.fix}")
