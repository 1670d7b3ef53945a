"""Scripted agent that answers questions with needless calls and errors. Each habit has a probability.

With `CLUMSY`, the agent reads wrong documents, rereads documents, and is often wrong. The base model imitates it, so
that reinforcement can improve on it. With `CLEAN`, the agent reads only the right documents and is always right.
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
"""Probability that a straight conversation searches before it reads a document."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Probabilities of the habits. The last three are kinds of answers; otherwise, the answer is `unknown`."""

    straight: float
    """Goes straight to the documents. The habits from `list_years` to `read_again` then do not apply."""
    parallel: float
    """Reads both documents of a question in one turn."""
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
    """Return a random conversation. Do not change the order of random draws: tests compare full conversations."""
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
    """Return the calls for one document: until it is read and, sometimes, one needless call after that."""
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
    """Return a search query, which is incomplete in two of five cases."""
    draw = rng.random()
    if draw < 0.6:
        return f"{company} {metric} {year}"
    return f"{company} {year}" if draw < 0.8 else f"{company} {metric}"


def _wrong_path(path: str, rng: random.Random) -> str:
    """Return another statement of the same company, or the same statement of a random year (perhaps the right one)."""
    company, year, statement = path.split("/")
    if rng.random() < 0.5:
        return f"{company}/{rng.choice(YEARS)}/{statement}"
    return f"{company}/{year}/{rng.choice([name for name in STATEMENTS if name != statement])}"


def _answer(world: World, question: Question, rng: random.Random, habits: Habits) -> str:
    """Return the right values, the values rounded to tens, other values of the same documents, or `unknown`."""
    draw = rng.random()
    if draw < habits.right:
        return question.reference_answer
    if draw < habits.right + habits.rounded:
        return " ".join(str(round(value, -1)) for value in question.values)
    if draw < habits.right + habits.rounded + habits.other_metric:
        documents = [world.values[path] for path in question.documents[: len(question.values)]]
        return " ".join(str(document[rng.choice(list(document))]) for document in documents)
    return "unknown"
