"""The three tools `list`, `search` and `cat`, each a deterministic function of the world and one string.

If something does not exist, the output is `NOT_FOUND`. The model in `base/` was trained to continue after this output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from examples.ledger.vocabulary import METRICS, STATEMENT_OF, STATEMENTS, YEARS
from examples.ledger.world import World

NOT_FOUND: Final = "error: not found"


def list_folder(world: World, path: str) -> str:
    """Return the years of a company (`vorzen`) or the statements of a year (`vorzen/2013`), separated by spaces."""
    match path.strip("/").split("/"):
        case [company] if company in world:
            return " ".join(YEARS)
        case [company, year] if company in world and year in YEARS:
            return " ".join(STATEMENTS)
        case _:
            return NOT_FOUND


def search(world: World, query: str) -> str:
    """Return two paths for a query such as `vorzen revenue 2013`, one per line: the best match and another statement.

    For a third of the queries, the wrong path comes first. A missing year or metric is guessed. The sum of the query's
    character codes is used in place of randomness.
    """
    words = query.split()
    company = next((word for word in words if word in world), None)
    if company is None:
        return NOT_FOUND
    number = sum(map(ord, query))
    year = next((word for word in words if word in YEARS), YEARS[number % len(YEARS)])
    guess = list(STATEMENTS)[number % len(STATEMENTS)]
    statement = next((STATEMENT_OF[metric] for metric in METRICS if metric in query), guess)
    other = [name for name in STATEMENTS if name != statement][number % 2]
    found = [f"{company}/{year}/{statement}", f"{company}/{year}/{other}"]
    if number % 3 == 0:
        found.reverse()
    return "\n".join(found)


def cat(world: World, path: str) -> str:
    """Return the document at a path such as `vorzen/2013/income`."""
    return world.documents.get(path.strip("/"), NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Tool:
    """Function of the world, and its description for the model. Its only argument is a required string."""

    name: str
    parameter: str
    description: str
    run: Callable[[World, str], str]

    def chat_form(self) -> dict[str, Any]:
        """Return the tool's entry in `tools` of a dataset row."""
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
