"""Tools of a user who already has an agent: functions with type hints, here for the ledger example's reports."""

from examples.ledger import tools
from examples.ledger.world import World

WORLD = World()


def list(path: str) -> str:
    """List the years of a company, or the statements of company/year."""
    return tools.list_folder(WORLD, path)


def search(query: str) -> str:
    """Find the paths of reports by company, metric and year."""
    return tools.search(WORLD, query)


def cat(path: str) -> str:
    """Read the report at company/year/statement."""
    return tools.cat(WORLD, path)
