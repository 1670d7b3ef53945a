"""Tool of an example, with its schema for the model and the check of a call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

On = TypeVar("On")


@dataclass(frozen=True, slots=True)
class Tool(Generic[On]):
    """Function of an object, such as a library or a session, with its description for the model."""

    name: str
    description: str
    parameters: Mapping[str, type]
    """Names and types; the first `num_required` parameters are required."""
    run: Callable[..., str]
    num_required: int = 1

    def schema(self) -> dict[str, Any]:
        """Return the tool's entry in a row's `tools`, in OpenAI's format."""
        types = {str: "string", int: "integer"}
        properties = {name: {"type": types[kind]} for name, kind in self.parameters.items()}
        required = list(self.parameters)[: self.num_required]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def call(self, on: On, arguments: Any) -> str:
        """Return the output for a call's arguments.

        Raises:
            ValueError: The arguments do not match the parameters. The message is for the model.
        """
        required = list(self.parameters)[: self.num_required]
        if not isinstance(arguments, dict) or not all(name in arguments for name in required):
            raise ValueError(f"give {', '.join(required or self.parameters) or 'no arguments'}")
        for name, value in arguments.items():
            if name not in self.parameters or type(value) is not self.parameters[name]:
                takes = ", ".join(f"{name} ({kind.__name__})" for name, kind in self.parameters.items())
                raise ValueError(f"give {takes or 'no arguments'}")
            if isinstance(value, str):
                value.encode()  # half a character could not be sent back
        return self.run(on, **arguments)


def by_name(*tools: Tool[On]) -> dict[str, Tool[On]]:
    """Return the tools by name, in this order."""
    return {tool.name: tool for tool in tools}
