"""Text similarity: values computed by hand, the limits, empty texts, other scripts, long texts, cosine."""

from __future__ import annotations

import asyncio
import random
from typing import Any, get_args

import pytest
from aiohttp import web
from rouge_score.rouge_scorer import RougeScorer

from agent_rft.actors.graders.kinds.similarity import MAX_CHARS, load_similarity_metric
from agent_rft.actors.grading.grader_factory import make_grader
from agent_rft.errors import GraderFailed
from agent_rft.spec.graders import Similarity, TextSimilarityGrader
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from tests.support.fakes_http import FakeEndpoint, FakeTime, Received, says

WORDS: list[Similarity] = [name for name in get_args(Similarity) if name != "cosine"]
TEXT = "the cat sat on the mat"


def spec(metric: str, **more: Any) -> TextSimilarityGrader:
    templates = {"input": "{{ sample.output_text }}", "reference": "{{ item.reference }}"}
    return TextSimilarityGrader(type="text_similarity", evaluation_metric=metric, **(templates | more))


@pytest.mark.parametrize(
    ("metric", "text", "reference", "value"),
    [
        ("fuzzy_match", "kitten", "sitting", 2 * 4 / 13),  # "ittn": 4 letters in common, of 6 + 7
        ("bleu", "the cat sat on a mat", TEXT, (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25),
        ("gleu", "the cat sat on a mat", TEXT, (5 + 3 + 2 + 1) / (6 + 5 + 4 + 3)),
        # 5 words, P = R = 5/6, in 3 chunks, since "the" is matched with the last one: "the", "cat sat on", "mat"
        ("meteor", "the cat sat on a mat", TEXT, 5 / 6 * (1 - 0.5 * (3 / 5) ** 3)),
        ("meteor", "cats running", "cat runs", 1 - 0.5 * (1 / 2) ** 3),  # equal stems
        ("meteor", "big", "large", 0.0),  # synonyms do not count: there is no WordNet
        ("rouge_1", "the cat", TEXT, 2 * 1 * (2 / 6) / (1 + 2 / 6)),
        ("rouge_2", "the cat sat", TEXT, 2 * 1 * (2 / 5) / (1 + 2 / 5)),
        ("rouge_3", "the cat sat on", TEXT, 2 * 1 * (2 / 4) / (1 + 2 / 4)),
        ("rouge_4", "the cat sat on", TEXT, 2 * 1 * (1 / 3) / (1 + 1 / 3)),
        ("rouge_5", "the cat sat on the", TEXT, 2 * 1 * (1 / 2) / (1 + 1 / 2)),
        ("rouge_l", "mat cat the sat", TEXT, 2 * (2 / 4) * (2 / 6) / (2 / 4 + 2 / 6)),  # "cat sat"
        ("rouge_1", "THE Cat!", "the cat", 1.0),
        ("rouge_1", "Привет мир", "привет", 2 * 0.5 * 1 / 1.5),
    ],
)
def test_values_computed_by_hand(metric: Similarity, text: str, reference: str, value: float) -> None:
    assert load_similarity_metric(metric)(text, reference) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("metric", WORDS)
def test_each_metric_is_0_for_nothing_in_common_and_1_for_equal_texts_except_meteor(
    metric: Similarity,
) -> None:
    similarity = load_similarity_metric(metric)
    assert similarity("zzz vvv www xxx kkk", "on the mat a cat") < 0.35  # single letters and smoothing add a little
    assert similarity(TEXT, TEXT) == pytest.approx(1.0, abs=0.003)  # METEOR: 1 - 0.5 / 6^3


@pytest.mark.parametrize("metric", WORDS)
def test_empty_texts(metric: Similarity) -> None:
    similarity = load_similarity_metric(metric)
    assert [similarity("", ""), similarity("  ", "\n"), similarity("!", "!")] == [1.0, 1.0, 1.0]
    assert [similarity("", "x"), similarity("x", ""), similarity("?", "x"), similarity("?", "!")] == [0.0] * 4


@pytest.mark.parametrize("metric", WORDS)
def test_any_texts_are_between_0_and_1(metric: Similarity) -> None:
    rng, similarity = random.Random(1), load_similarity_metric(metric)
    for _ in range(30):
        text, reference = ("".join(rng.choices("ab .,\n\0ÄЖ漢🙂\ud800", k=rng.randint(0, 40))) for _ in range(2))
        assert 0.0 <= similarity(text, reference) <= 1.0


def test_rouge_l_equals_rouge_score_s() -> None:
    rng, scorer = random.Random(2), RougeScorer(["rougeL"])
    for _ in range(50):
        text, reference = (" ".join(rng.choices("abcde", k=rng.randint(1, 20))) for _ in range(2))
        assert load_similarity_metric("rouge_l")(text, reference) == pytest.approx(
            scorer.score(reference, text)["rougeL"].fmeasure
        )


@pytest.mark.parametrize("metric", WORDS)
async def test_comparing_a_megabyte_does_not_block_the_event_loop(metric: Similarity) -> None:
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdefghijklmnop", k=6)) for _ in range(5_000)]
    long, other = (" ".join(rng.choices(words, k=140_000)) for _ in range(2))
    assert len(long) > 900_000 > MAX_CHARS
    grader = make_grader(spec(metric))
    ticks = 0
    async with asyncio.timeout(60):
        grading = asyncio.create_task(grader.grade({"output_text": long}, {"reference": other}, "t"))
        while not grading.done():
            await asyncio.sleep(0)
            ticks += 1
    assert 0.0 <= grading.result().value < 1.0
    assert ticks > 2
    await grader.close()


def test_a_very_long_word_is_not_stemmed() -> None:
    assert load_similarity_metric("meteor")("y" * 20_000 + "s", "y" * 20_000) == 0.0
    assert load_similarity_metric("meteor")("y" * 20_000, "y" * 20_000) == 0.5


# -- cosine ------------------------------------------------------------------------------------------------------------

VECTORS = {"north": [0.0, 2.0], "east": [3.0, 0.0], "north-east": [1.0, 1.0], "south": [0.0, -1.0]}


async def embeds(request: Received) -> web.StreamResponse:
    [text] = request.body["input"]
    return web.json_response({"data": [{"embedding": VECTORS[text], "index": 0}]})


def operator(url: str) -> OperatorConfig:
    endpoint = ModelEndpoint(base_url=url, api_key="sk-embedding-key", model="embedder-1")
    return OperatorConfig(models={"text-embedding": endpoint})


@pytest.mark.parametrize(
    ("text", "reference", "value"),
    [
        ("north", "north", 1.0),
        ("north", "east", 0.0),
        ("north", "north-east", 0.5**0.5),
        ("north", "south", 0.0),  # -1
        ("", "", 1.0),
        ("", "north", 0.0),
    ],
)
async def test_cosine_of_embeddings(text: str, reference: str, value: float) -> None:
    async with FakeEndpoint(embeds) as server:
        grader = make_grader(spec("cosine"), operator(server.url))
        grade = await grader.grade({"output_text": text}, {"reference": reference}, "t")
        await grader.close()
    assert grade.value == pytest.approx(value, abs=1e-6)
    for request in server.received:
        assert request.path == "/run/embeddings"
        assert request.headers["Authorization"] == "Bearer sk-embedding-key"
        assert request.body["model"] == "embedder-1"


async def test_a_reference_is_embedded_once_for_all_rollouts_of_its_row() -> None:
    async with FakeEndpoint(embeds) as server:
        grader = make_grader(spec("cosine"), operator(server.url))
        grades = [
            grader.grade({"output_text": text}, {"reference": "north"}, text) for text in ("east", "south", "east")
        ]
        await asyncio.gather(*grades)
        await grader.close()
    assert sorted(request.body["input"][0] for request in server.received) == ["east", "north", "south"]


@pytest.mark.parametrize(
    "body", [{"data": []}, {"data": [{"embedding": "no"}]}, {"data": [{"embedding": [0, 0]}]}, {"data": None}, "no"]
)
async def test_an_invalid_embedding_is_a_failure(body: object) -> None:
    async with FakeEndpoint(says(body)) as server:
        grader = make_grader(spec("cosine"), operator(server.url), FakeTime().timing())
        with pytest.raises(GraderFailed, match="text-embedding") as failed:
            await grader.grade({"output_text": "a"}, {"reference": "b"}, "t")
        await grader.close()
    assert failed.value.details["code"] == "model_grader_server_error"
