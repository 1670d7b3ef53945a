"""The grammars of constrained turns: what a family's template writes fits token by token, and nothing else does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from agent_rft.actors.engine.chat.dialect_detection import ROUND_TRIP_CALLS, ROUND_TRIP_TOOLS, run_round_trip
from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn, load_parser
from agent_rft.actors.engine.grammar.structural_tags import (
    GrammarUnavailable,
    build_structure,
    build_turn_structure,
    find_grammar_problem,
)
from agent_rft.chat.dialect import Dialect
from agent_rft.chat.families import FAMILIES
from agent_rft.chat.families.gpt_oss import GPT_OSS
from agent_rft.chat.model_family import ModelFamily
from agent_rft.chat.renderer import Renderer
from agent_rft.trainer.model.grammar_masks import GrammarMasks
from agent_rft.trainer.model.micro_batches import pack_sequences
from agent_rft.types import TrainSegment
from tests.support.families import MISTRAL_LIST, OTHER, TINY, TinyFamily

WITH_GRAMMAR = [family.name for family in FAMILIES if family.call_syntaxes]
ANSWER = {"type": "object", "properties": {"rule": {"type": "integer"}}, "required": ["rule"]}


class Case:
    """A family's tiny model: its renderer, the grammar of its turns, and the learner's view of it."""

    def __init__(self, name: str, folder: Path, tiny: TinyFamily | None = None) -> None:
        [family] = [family for family in FAMILIES if family.name == name]
        (tiny or TINY[name]).write(folder)
        self.renderer = Renderer(AutoTokenizer.from_pretrained(folder), Dialect(name, family.tool_parser))
        self.ends = tuple(self.renderer.stop_tokens)
        self.grammars = GrammarMasks(folder, self.ends)

    def turn(self, num_calls: int) -> str:
        """What the template writes for reasoning, if the model reasons, and calls."""
        thinks = self.renderer.reasoning_mode != "none" or self.renderer.family.message_syntax is not None
        reasoning = "I look." if thinks else ""
        read = run_round_trip(
            self.renderer, lambda text, _: ParsedTurn(text), ROUND_TRIP_TOOLS, ROUND_TRIP_CALLS[:num_calls], reasoning
        )
        return read.rendered_text

    def num_accepted(self, text: str, end: int) -> tuple[int, int]:
        """How many tokens of a turn its grammar accepts, and how many there are."""
        sampled = [*self.renderer.encode(text), end]
        structure = build_structure(self.renderer, ROUND_TRIP_TOOLS, ANSWER, None)
        zeros, masks = np.zeros(len(sampled) + 1, np.float32), np.array([False, *[True] * len(sampled)])
        versions = np.zeros(len(sampled) + 1, np.int32)
        sequence = TrainSegment(np.array([0, *sampled], np.int32), masks, zeros, versions, 1.0, structure)
        [[batch]] = pack_sequences([sequence], num_ranks=1, budget=1 << 20)
        return int(self.grammars.constrain(batch)[0].weights.sum()), len(sampled)


@pytest.fixture(scope="module", params=[*WITH_GRAMMAR, "mistral_list"])
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    return Case("mistral", folder, MISTRAL_LIST) if request.param == "mistral_list" else Case(request.param, folder)


def test_calls_and_answers_as_the_template_writes_them_are_accepted_with_each_end_token(case: Case) -> None:
    numbers = (1, 2) if case.renderer.template_format.takes_several_calls else (1,)
    reasoning = {"none": "", "optional": "{}hm{}\n", "opened": "hm{1}\n\n"}[case.renderer.reasoning_mode]
    answers = [reasoning.format(*case.renderer.reasoning_delimiters) + '{"rule": 3}']
    if (messages := case.renderer.family.message_syntax) is not None:
        begin, end = messages.around_reasoning
        answers = [f'{before}{messages.before_answer}{{"rule": 3}}' for before in ("", f"{begin}hm{end}")]
    for text in (*map(case.turn, numbers), *answers):
        for end in case.ends:
            accepted, of = case.num_accepted(text, end)
            assert accepted == of, text


def test_what_else_a_family_writes_before_arguments_is_accepted_and_read(tmp_path: Path) -> None:
    case = Case("gpt_oss", tmp_path)
    form, read = case.renderer.template_format.call_syntax, load_parser(GPT_OSS, case.renderer.tokenizer)
    assert form is not None and form.other_begins
    name, arguments = ROUND_TRIP_CALLS[0]
    for begin in form.other_begins:
        text = begin.format(name=name) + json.dumps(arguments)
        accepted, of = case.num_accepted(text, case.ends[0])
        assert accepted == of, text
        assert [(name, json.loads(given)) for name, given in read(text, ROUND_TRIP_TOOLS).calls] == [
            ROUND_TRIP_CALLS[0]
        ]


def test_a_list_of_calls_needs_no_ids(tmp_path: Path) -> None:
    case = Case("mistral", tmp_path, MISTRAL_LIST)
    text, read = case.turn(2), load_parser(case.renderer.family, case.renderer.tokenizer)
    without = re.sub(', "id": "[^"]*"', "", text)
    assert without != text
    accepted, of = case.num_accepted(without, case.ends[0])
    assert accepted == of, without
    assert [(name, json.loads(given)) for name, given in read(without, ROUND_TRIP_TOOLS).calls] == list(
        ROUND_TRIP_CALLS
    )


def test_another_tool_a_missing_argument_and_a_call_that_is_cut_are_refused(case: Case) -> None:
    text, (argument, value) = case.turn(1), ("limit", "3")
    broken = [
        text.replace("find_order", "find_nothing"),
        text.replace(argument, "topic"),
        text[: text.rindex(value)],
        f"{text} and more",
    ]
    for wrong in broken:
        accepted, of = case.num_accepted(wrong, case.ends[0])
        assert accepted < of, wrong


def test_a_parser_whose_family_is_not_known_is_named(tmp_path: Path) -> None:
    renderer = Renderer(AutoTokenizer.from_pretrained(OTHER.write(tmp_path)), Dialect("hunyuan_a13b", "hunyuan_a13b"))
    with pytest.raises(GrammarUnavailable, match="hunyuan_a13b"):
        build_structure(renderer, ROUND_TRIP_TOOLS, ANSWER, None)
    assert build_structure(renderer, ROUND_TRIP_TOOLS, None, None) is None


def test_without_tools_a_family_whose_calls_have_no_grammar_is_constrained() -> None:
    family = ModelFamily("new", "new")
    assert "calls of the model family new" in str(find_grammar_problem(family, calls=True))
    assert find_grammar_problem(family, calls=False) is None
    assert build_turn_structure((), ANSWER, None) is not None
