"""A script that answers questions the long way round, with habits given as chances.

With `CLUMSY` it looks around, reads wrong documents, reads again, and is often wrong: the agent that reinforcement is
to improve imitates it. With `CLEAN` it goes straight to the documents and is always right.
"""

import random
from dataclasses import dataclass
from typing import Final

from examples.ledger.conversation import Call, Conversation
from examples.ledger.questions import Question
from examples.ledger.vocabulary import STATEMENTS, YEARS
from examples.ledger.world import World

MAX_TURNS: Final = 16
CLEAN_SEARCH: Final = 0.3
"""How often a straight conversation still searches before it reads."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Chances. The last three say what becomes of the answer; what is left of 1 answers `unknown`."""

    straight: float
    """goes straight to the documents: then none of the habits down to `read_again` matters"""
    parallel: float
    """reads both documents of a question in one turn"""
    list_years: float
    list_statements: float
    search: float
    search_again: float
    wrong_document: float
    read_again: float
    right: float
    rounded: float
    other_metric: float


CLUMSY: Final = Habits(
    straight=0.08,
    parallel=0.2,
    list_years=0.6,
    list_statements=0.5,
    search=0.85,
    search_again=0.45,
    wrong_document=0.45,
    read_again=0.45,
    right=0.55,
    rounded=0.17,
    other_metric=0.18,
)
CLEAN: Final = Habits(
    straight=1.0,
    parallel=0.4,
    list_years=0.0,
    list_statements=0.0,
    search=0.0,
    search_again=0.0,
    wrong_document=0.0,
    read_again=0.0,
    right=1.0,
    rounded=0.0,
    other_metric=0.0,
)


def play(world: World, question: Question, rng: random.Random, habits: Habits) -> Conversation:
    """One conversation about a question. How the random numbers are drawn is fixed: tests compare whole traces."""
    straight = rng.random() < habits.straight
    parallel = len(question.documents) == 2 and rng.random() < habits.parallel
    walks = [_walk(question.metric, path, straight, rng, habits) for path in question.documents]
    if parallel:
        looks = [(call,) for walk in walks for call in walk[:-1] if call.tool != "cat"]
        turns = [*looks, tuple(Call("cat", path) for path in question.documents)]
    else:
        turns = [(call,) for walk in walks for call in walk]
    return Conversation(question, tuple(turns[: MAX_TURNS - 1]), _answer(world, question, rng, habits))


def _walk(metric: str, path: str, straight: bool, rng: random.Random, habits: Habits) -> list[Call]:
    """The calls that lead to one document and a little further."""
    company, year, _ = path.split("/")
    full_search = Call("search", f"{company} {metric} {year}")
    if straight:
        search_first = rng.random() < CLEAN_SEARCH
        return [full_search, Call("cat", path)] if search_first else [Call("cat", path)]
    calls = []
    if rng.random() < habits.list_years:
        calls.append(Call("list", company))
    if rng.random() < habits.list_statements:
        calls.append(Call("list", f"{company}/{year}"))
    searching = rng.random() < habits.search
    while searching:
        calls.append(Call("search", _query(company, metric, year, rng)))
        searching = rng.random() <= habits.search_again
    while rng.random() < habits.wrong_document:
        calls.append(Call("cat", _wrong_path(path, rng)))
    calls.append(Call("cat", path))
    if rng.random() < habits.read_again:
        calls.append(Call("cat", path) if rng.random() < 0.6 else full_search)
    return calls


def _query(company: str, metric: str, year: str, rng: random.Random) -> str:
    """A search query that in two of five cases leaves something out."""
    chance = rng.random()
    if chance < 0.6:
        return f"{company} {metric} {year}"
    return f"{company} {year}" if chance < 0.8 else f"{company} {metric}"


def _wrong_path(path: str, rng: random.Random) -> str:
    """A document of the same company: another statement, or any year (now and then the right one)."""
    company, year, statement = path.split("/")
    if rng.random() < 0.5:
        return f"{company}/{rng.choice(YEARS)}/{statement}"
    return f"{company}/{year}/{rng.choice([name for name in STATEMENTS if name != statement])}"


def _answer(world: World, question: Question, rng: random.Random, habits: Habits) -> str:
    """The right values, the values rounded to tens, any values of the same documents, or `unknown`."""
    chance = rng.random()
    if chance < habits.right:
        return question.reference_answer
    if chance < habits.right + habits.rounded:
        return " ".join(str(round(value, -1)) for value in question.values)
    if chance < habits.right + habits.rounded + habits.other_metric:
        documents = [world.values[path] for path in question.documents[: len(question.values)]]
        return " ".join(str(document[rng.choice(list(document))]) for document in documents)
    return "unknown"
