"""The three tools: `list`, `search` and `cat`, each a function of the world and one text.

What does not exist is the ordinary answer `NOT_FOUND`: the model in `base/` learned to go on from there. The answers
to the same question are always the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from examples.ledger.vocabulary import METRICS, STATEMENT_OF, STATEMENTS, YEARS
from examples.ledger.world import World

NOT_FOUND: Final = "error: not found"


def list_folder(world: World, path: str) -> str:
    """The years of a company (`vorzen`) or the statements of a year (`vorzen/2013`), with blanks between."""
    match path.strip("/").split("/"):
        case [company] if company in world:
            return " ".join(YEARS)
        case [company, year] if company in world and year in YEARS:
            return " ".join(STATEMENTS)
        case _:
            return NOT_FOUND


def search(world: World, query: str) -> str:
    """Two paths for a query such as `vorzen revenue 2013`, a line each: the best match and another statement.

    A third of the queries gets the wrong one first. What the query leaves out (year, metric) is guessed, from the
    sum of the query's characters in place of chance.
    """
    words = query.split()
    company = next((word for word in words if word in world), None)
    if company is None:
        return NOT_FOUND
    chance = sum(map(ord, query))
    year = next((word for word in words if word in YEARS), YEARS[chance % len(YEARS)])
    guess = list(STATEMENTS)[chance % len(STATEMENTS)]
    statement = next((STATEMENT_OF[metric] for metric in METRICS if metric in query), guess)
    other = [name for name in STATEMENTS if name != statement][chance % 2]
    found = [f"{company}/{year}/{statement}", f"{company}/{year}/{other}"]
    if chance % 3 == 0:
        found.reverse()
    return "\n".join(found)


def cat(world: World, path: str) -> str:
    """The document at a path such as `vorzen/2013/income`."""
    return world.documents.get(path.strip("/"), NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function of the world, and what the model is told about it. Its one argument is a required string."""

    name: str
    parameter: str
    description: str
    run: Callable[[World, str], str]

    def chat_form(self) -> dict[str, Any]:
        """The entry of a dataset row's `tools`."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {self.parameter: {"type": "string"}},
                    "required": [self.parameter],
                    "additionalProperties": False,
                },
            },
        }


TOOLS: Final = {
    tool.name: tool
    for tool in (
        Tool("list", "path", "List the years of a company, or the statements of company/year.", list_folder),
        Tool("search", "query", "Find the paths of reports by company, metric and year.", search),
        Tool("cat", "path", "Read the report at company/year/statement.", cat),
    )
}
