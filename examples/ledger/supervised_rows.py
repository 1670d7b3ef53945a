"""Training rows of phase 1: complete conversations of the clumsy script, for the supervised method.

Some samples of phase 0 are mixed in, enough that the model did not forget how to look up values.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from examples.ledger.clumsy import CLUMSY, play
from examples.ledger.conversation import Message
from examples.ledger.lookup_samples import LookupSamples
from examples.ledger.questions import draw_question
from examples.ledger.tools import TOOLS
from examples.ledger.world import World

NUM_CLUMSY: Final = 8000
NUM_READINGS: Final = 1500
NUM_STRAIGHT: Final = 1300


def clumsy_conversations(world: World, companies: list[str], rng: random.Random) -> Iterator[list[Message]]:
    """Yield clumsy conversations about the companies, without end."""
    while True:
        question = draw_question(world, rng, companies)
        yield play(world, question, rng, CLUMSY).messages(world)


def row(messages: list[Message]) -> dict[str, Any]:
    """Return a row for the supervised method, which trains on every assistant message in it."""
    return {"messages": messages, "tools": [tool.chat_form() for tool in TOOLS.values()]}


def write_supervised_rows(path: Path, world: World, practice: LookupSamples, rng: random.Random) -> None:
    """Write all rows in random order. Clumsy conversations are about the training companies of `world`."""
    clumsy = clumsy_conversations(world, world.companies_in("train"), rng)
    conversations = [next(clumsy) for _ in range(NUM_CLUMSY)]
    conversations += [practice.reading() for _ in range(NUM_READINGS)]
    conversations += [practice.straight_conversation() for _ in range(NUM_STRAIGHT)]
    rng.shuffle(conversations)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row(messages)) + "\n" for messages in conversations)
