"""Training samples for phase 0 of the base model: intensive practice in looking up values and copying them.

Conversations alone contain too few look-ups: after training on 3.6M tokens of conversations, the grade was 0.002.
"""

import random
from dataclasses import dataclass
from typing import Any, Final

from transformers import PreTrainedTokenizerFast

from examples.ledger.clumsy import CLEAN, play
from examples.ledger.conversation import Message
from examples.ledger.questions import Question, ask, draw_question
from examples.ledger.vocabulary import ASSISTANT, METRICS, STATEMENTS, TOKEN_OF, TURN_END, TURN_START, YEARS, encode
from examples.ledger.world import World

QUESTIONS_PER_READING: Final = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids [T], and a mask [T] that is True for the assistant's tokens, which have full weight in the loss."""

    tokens: list[int]
    learned: list[bool]


def assistant_mask(tokens: list[int]) -> list[bool]:
    """Return a mask [T] that is True for the assistant's tokens, including its end-of-turn tokens."""
    mask = []
    speaking = False
    opening = [TOKEN_OF[TURN_START], TOKEN_OF[ASSISTANT]]
    for i, token in enumerate(tokens):
        mask.append(speaking)
        if tokens[max(0, i - 1) : i + 1] == opening:
            speaking = True
        elif token == TOKEN_OF[TURN_END]:
            speaking = False
    return mask


class LookupSamples:
    """Generates random samples of three kinds: repeated lines, readings, and straight conversations."""

    def __init__(
        self, world: World, companies: list[str], tokenizer: PreTrainedTokenizerFast, rng: random.Random
    ) -> None:
        self._world = world
        self._companies = companies
        self._tokenizer = tokenizer
        self._rng = rng

    def draw(self) -> Sample:
        """Return a random sample: 35 % repeated lines, 35 % readings, 30 % straight conversations."""
        number = self._rng.random()
        if number < 0.35:
            return self.restated_lines()
        return self.render(self.reading() if number < 0.7 else self.straight_conversation())

    def render(self, messages: list[Message]) -> Sample:
        """Render a conversation with the chat template."""
        text: Any = self._tokenizer.apply_chat_template(messages, tokenize=False)
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return Sample(tokens, assistant_mask(tokens))

    def restated_lines(self) -> Sample:
        """Return lines of metric and value, then repetitions of them in random order, whose values are thus known."""
        rng = self._rng
        lines = {metric: rng.randint(1000, 9999) for metric in rng.sample(METRICS, rng.randint(2, 6))}
        tokens = encode("".join(f"{metric} {value}\n" for metric, value in lines.items()))
        learned = [False] * len(tokens)
        for _ in range(rng.randint(6, 14)):
            metric = rng.choice(list(lines))
            again = encode(f"{metric} {lines[metric]}\n")
            tokens += again
            learned += [False] + [True] * (len(again) - 1)
        return Sample(tokens, learned)

    def reading(self) -> list[Message]:
        """Return one or two documents, then several questions about them with their answers."""
        rng = self._rng
        companies = rng.sample(self._companies, rng.choice([1, 1, 2]))
        year, statement = rng.choice(YEARS), rng.choice(list(STATEMENTS))
        documents = [self._world.documents[f"{company}/{year}/{statement}"] for company in companies]
        shown = "\n".join(f"<tool_response>\n{document}\n</tool_response>" for document in documents)
        messages: list[Message] = [{"role": "user", "content": shown}]
        for _ in range(QUESTIONS_PER_READING):
            question = self._question_about(companies, year, rng.choice(STATEMENTS[statement]))
            messages.append({"role": "user", "content": question.text})
            messages.append({"role": "assistant", "content": question.reference_answer})
        return messages

    def _question_about(self, companies: list[str], year: str, metric: str) -> Question:
        """Ask for one value (30 %, or always for one company), both values (35 %) or the higher value (35 %)."""
        rng = self._rng
        draw = rng.random()
        if len(companies) == 1 or draw < 0.3:
            return ask(self._world, "one", metric, year, [rng.choice(companies)])
        if draw < 0.65:
            return ask(self._world, "two", metric, year, rng.sample(companies, 2))
        return ask(self._world, "higher", metric, year, companies)

    def straight_conversation(self) -> list[Message]:
        """Return a conversation that answers a question without detours."""
        question = draw_question(self._world, self._rng, self._companies)
        return play(self._world, question, self._rng, CLEAN).messages(self._world)

    def scored_conversations(self, num: int) -> list[Sample]:
        """Return straight conversations about one or two values. The higher of two needs more than a look-up."""
        samples: list[Sample] = []
        while len(samples) < num:
            question = draw_question(self._world, self._rng, self._companies)
            if question.kind != "higher":
                samples.append(self.render(play(self._world, question, self._rng, CLEAN).messages(self._world)))
        return samples
