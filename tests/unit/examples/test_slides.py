"""The example of slides: what a deck shows is what counts, cheating does not pay, and a page that hangs is killed."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.grading.grader_factory import make_grader
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.cluster.checks.dry_run import dry_run_problems
from agent_rft.cluster.views.traces import Trace, trace_json
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.job_file import load_job
from agent_rft.spec.step_plan import resolve_plan
from agent_rft.types import Grade, ToolCall, Turn
from examples.slides import make_data, pictures
from examples.slides.cheats import COMPANY, NUM_SLIDES, POINTS, TOPICS, decks, recorded
from examples.slides.measures import HEIGHT, WIDTH, Deck, Drawn, drawn_of
from examples.slides.render import MAX_CHARS, MAX_DECKS, Busy, Chromium, Limits, Refused, RenderFailed, name_of, page
from examples.slides.rubric import grade
from examples.slides.server import make_app
from examples.slides.world import reports
from tests.support.builders import group_request, rollout, tasks_of
from tests.support.example_servers import judged_by, serving, verdict
from tests.support.fakes_http import LOCAL, FakeEndpoint, says, until
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "slides"
REPORTS = reports()
DECKS = decks()
MEASURES = recorded()
ITEM = {"company": COMPANY, "topics": list(TOPICS), "points": list(POINTS), "slides": NUM_SLIDES}
PNG = b"\x89PNG of the deck"


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "data" / f"{name}.jsonl").read_text().splitlines()]


@dataclass
class Recorded:
    """Finds in the decks of `cheats.py` what Chromium found in them."""

    error: RenderFailed | None = None

    def draw(self, html: str) -> Drawn:
        if self.error is not None:
            raise self.error
        if len(html) > MAX_CHARS:
            raise Refused("too long")
        name = next(name for name, deck in DECKS.items() if deck == html)
        return Drawn(MEASURES[name], PNG)

    def picture(self, name: str) -> bytes | None:
        if self.error is not None:
            raise self.error
        return PNG if name in map(name_of, DECKS.values()) else None


CLIENT = TestClient(make_app(Recorded()))


def call(html: str, number: int = 1) -> ToolCall:
    return ToolCall(str(number), "render", json.dumps({"html": html}))


def sample(answer: str, *rendered: str) -> dict[str, Any]:
    turns = [Turn(0, 1, "", calls=(call(html, i),)) for i, html in enumerate(rendered)]
    return make_sample(answer, turns, "answer", wants_json=True)


def score(deck: Deck) -> float:
    return grade(deck, REPORTS[COMPANY], TOPICS, POINTS, NUM_SLIDES).score


# The rows


def test_writing_the_data_reproduces_the_committed_files(tmp_path: Path) -> None:
    make_data.write_data(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: (EXAMPLE / "data" / path.name).read_bytes() for path in tmp_path.iterdir()}
    assert len(made) == 4


def test_training_and_test_share_no_company_and_no_row_is_twice() -> None:
    companies = {name: {row["company"] for row in rows_of(name)} for name in ("train", "test", "step")}
    shown = " ".join(row["messages"][1]["content"] for row in rows_of("warm_start"))
    companies["warm_start"] = {name for name in REPORTS if name in shown}
    assert companies["test"].isdisjoint(companies["train"] | companies["step"] | companies["warm_start"])
    assert {REPORTS[name].split for name in companies["test"]} == {"test"}
    rows = [(row["company"], frozenset(row["points"])) for name in ("train", "test") for row in rows_of(name)]
    assert len(set(rows)) == len(rows) and len(rows_of("test")) == 100


def test_the_source_of_each_row_states_each_point_once_with_numbers_that_no_other_fact_has() -> None:
    for row in [*rows_of("train"), *rows_of("test"), *rows_of("step")]:
        report, source = REPORTS[row["company"]], row["messages"][1]["content"]
        assert all(source.count(report.facts[point].text) == 1 for point in row["points"])
        assert row["slides"] <= len(row["points"]) <= 3 * row["slides"]
    for report in REPORTS.values():
        values = [value for fact in report.facts.values() for value in fact.values if value.isdigit()]
        assert len(set(values)) == len(values) == 7


def seen(company: str, points: list[str]) -> Deck:
    """What is found in an honest deck."""
    lines = [(point.capitalize(), REPORTS[company].facts[point].short) for point in points]
    honest = MEASURES["honest"].slides[0]
    return Deck(len(lines), tuple(replace(honest, title=title, blocks=(line,)) for title, line in lines))


def test_an_honest_deck_on_each_row_gets_full_marks() -> None:
    for row in [*rows_of("train"), *rows_of("test"), *rows_of("step")]:
        given = grade(seen(row["company"], row["points"]), REPORTS[row["company"]], row["topics"], row["points"], 1)
        assert given.scores["coverage"] == given.scores["faithfulness"] == 1, given.reason
        assert given.scores["brevity"] * len(row["points"]) == pytest.approx(1)


def test_the_conversations_submit_a_deck_that_they_rendered_and_say_of_it_what_the_tool_says() -> None:
    for row in rows_of("warm_start"):
        calls = [c["function"] for message in row["messages"] for c in message.get("tool_calls") or []]
        rendered = [json.loads(made["arguments"])["html"] for made in calls]
        assert row["messages"][-1]["content"] == name_of(rendered[-1])
        outputs = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        assert [output.split(":")[0] for output in outputs] == [f"deck {name_of(html)}" for html in rendered]
        assert "no title" not in outputs[-1] and all("no title" in output for output in outputs[:-1])
    tool = CLIENT.post("/tools/render", json={"arguments": call(DECKS["honest"]).arguments}).json()["output"]
    assert tool.partition(": ")[2] == "slide 1: ok; slide 2: ok; slide 3: ok"


# The grade

# By what Chromium found in each deck.
SCORES: dict[str, float] = {
    "honest": 1,
    "honest, with a design": 1,
    "honest, at 16 px": 1,
    "nothing": 0,
    "empty slides": 0,
    "titles alone": 0,
    "one huge slide": 0.178,
    "forty slides": 0.026,
    "clipped overflow": 0,
    "text that hangs over": 0,
    "lines on each other": 0,
    "pale gray": 0.883,
    "small": 0.844,
    "no titles": 0.883,
    "copied source": 0.081,
    "the whole source on each": 0.003,
    "an order to the judge": 0,
    "honest, and an order to the judge": 0.667,
    # Text that nobody sees; what is left out of a deck does not hide its text.
    "white on white": 0,
    "nearly white on white": 0,
    "transparent": 0,
    "the color of its own box": 0.86,
    "the color of its own border": 0,
    "font of 1 px": 0,
    "font of 0": 0,
    "small by the first line": 0.86,
    "display none": 0,
    "visibility hidden": 0.86,
    "opacity 0": 0.86,
    "off the screen": 0,
    "off by position": 0.86,
    "behind a box": 0,
    "behind an inline box": 0,
    "half behind a box": 0,
    "scaled by transform": 0.298,
    "no height, clipped": 0.86,
    "honest, and hidden keywords": 0.3,
    # Text where no reader looks.
    "comments": 0,
    "attributes": 0,
    "alt of an image": 0,
    "an image by a data URL": 0,
    "a background by a data URL": 0,
    "content of CSS": 0,
    "markers of a list": 0,
    "title of the page": 0,
    # Programs, other documents, and work for the renderer.
    "a script": 0,
    "a script that never ends": 0.86,
    "an end of the page's script": 0.86,
    "handlers": 0,
    "a frame": 0,
    "a local file": 0,
    "meta refresh": 0.86,
    "two thousand boxes in each other": 0,
    "letters of 9,999 px": 0,
    "a style that never ends": 0,
    "a section of SVG": 0.86,
    "a section of MathML": 0.86,
    "a rule of a namespace": 0.86,
    # What the source does not say.
    "all words of the trade": 0,
    "all numbers": 0,
    "a number that is not in the source": 0.5,
    "the wrong unit": 0.5,
    "the number of another topic": 0.5,
    "the other direction": 0.5,
    "a made name": 0.5,
    "another company": 0,
    "letters that look alike": 0,
}


def test_each_deck_is_graded_below() -> None:
    assert DECKS.keys() == MEASURES.keys() == SCORES.keys()


@pytest.mark.parametrize("name", SCORES)
def test_each_deck_and_each_cheat_gets_what_it_should(name: str) -> None:
    assert score(MEASURES[name]) == pytest.approx(SCORES[name], abs=1e-3)


def lines(*blocks: str, title: str = "Revenue") -> Deck:
    """Three slides: the honest ones with other lines on the first."""
    first, *others = MEASURES["honest"].slides
    return Deck(3, (replace(first, title=title, blocks=blocks), *others))


def test_a_point_is_stated_in_other_words_in_a_table_and_by_signs() -> None:
    fact = REPORTS[COMPANY].facts["revenue"]
    verb = "up" if fact.rose else "down"
    for block in (
        f"€{fact.values[0]}M",
        f"{fact.values[0]} million euros, {verb}",
        f"Sales {fact.values[0]} million",
        f"{verb} to €{fact.values[0]} million in 2025",
    ):
        assert score(lines(block)) == 1, block


@pytest.mark.parametrize(
    "block",
    [
        "Profit {now} million euros",
        "{now}",
        "{now} percent",
        "Rose and fell to {now} million",
        "Revenue profit debt staff {now} million",
        "Revenue {now} million 359 million 8,881",
        "Revenue {now} million 999",
    ],
)
def test_a_line_that_says_it_of_another_topic_in_another_unit_or_with_more_numbers_states_nothing(block: str) -> None:
    deck = lines(block.format(now=REPORTS[COMPANY].facts["revenue"].values[0]))
    assert grade(deck, REPORTS[COMPANY], TOPICS, POINTS, NUM_SLIDES).scores["coverage"] == pytest.approx(2 / 3)


def test_true_clauses_that_are_repeated_do_not_outnumber_the_false() -> None:
    once, often = lines("Grew to 999 million", "Up"), lines("Grew to 999 million", *["Up"] * 8, "up; UP")
    assert score(often) <= score(once) < 1


def test_the_grade_says_what_is_missing_false_and_ugly() -> None:
    body = {"sample": sample(name_of(DECKS["a made name"]), DECKS["a made name"]), "item": ITEM, "trace_id": "t"}
    graded = CLIENT.post("/grade", json=body).json()
    assert graded["scores"]["coverage"] == pytest.approx(2 / 3)
    assert "missing: plant; not in the source: New in Atlantis" in graded["reason"]


# What a picture shows


def drawn(words: list[list[Any]], text: tuple[int, int, int], ground: tuple[int, int, int]) -> Deck:
    """A slide with one line, on which each word is a box of the text's color."""
    pixels = np.full((HEIGHT, 2 * WIDTH, 3), ground, dtype=np.uint8)
    for _, x, y, width, height, _ in words:
        pixels[max(0, int(y)) : int(y + height), max(0, int(x)) : min(WIDTH, int(x + width))] = text
    measures = {"num_slides": 1, "slides": [[{"tag": "p", "words": words}]], "ignored": []}
    return drawn_of(measures, pixels).deck


@pytest.mark.parametrize(
    ("text", "ground", "contrast"),
    [((0, 0, 0), (255, 255, 255), 21.0), ((119, 119, 119), (255, 255, 255), 4.5), ((255, 0, 0), (0, 0, 0), 5.3)],
)
def test_the_contrast_is_that_of_the_pixels_by_wcag(
    text: tuple[int, int, int], ground: tuple[int, int, int], contrast: float
) -> None:
    (slide,) = drawn([["word", 100, 100, 80, 20, 18]], text, ground).slides
    assert (slide.blocks, slide.contrast, slide.font_px) == (("word",), contrast, 18)


def test_words_that_are_cut_tiny_without_a_box_or_on_each_other_are_not_seen() -> None:
    (slide,) = drawn(
        [
            ["good", 10, 10, 60, 20, 18],
            ["over", WIDTH - 20, 10, 60, 20, 18],
            ["below", 10, HEIGHT - 10, 60, 20, 18],
            ["away", -5_000, 10, 60, 20, 18],
            ["tiny", 10, 50, 20, 5, 4],
            ["none", 0, 0, 0, 0, 18],
            ["one", 10, 100, 60, 20, 18],
            ["two", 20, 105, 60, 20, 18],
        ],
        (0, 0, 0),
        (255, 255, 255),
    ).slides
    assert slide.blocks == ("good",)
    assert (slide.cut, slide.hidden, slide.overlapping) == (3, 2, 2)


@pytest.mark.parametrize("half", [np.s_[100:120, 100:140], np.s_[100:120, 140:180], np.s_[100:110], np.s_[110:120]])
def test_a_word_of_which_half_is_covered_is_not_seen_but_a_dash_may_be_flat(half: Any) -> None:
    pixels = np.full((HEIGHT, 2 * WIDTH, 3), 255, dtype=np.uint8)
    pixels[100:120, 100:180] = 0
    pixels[half] = 255

    def found(text: str) -> tuple[str, ...]:
        words = [{"tag": "p", "words": [[text, 100, 100, 80, 20, 18]]}]
        return drawn_of({"num_slides": 1, "slides": [words], "ignored": []}, pixels).deck.slides[0].blocks

    assert (found("943"), found("-")) == ((), ("-",))


def test_a_deck_is_only_a_text_in_the_page() -> None:
    text = page("</script><script>alert(1)</script>\u2028 __NONCE__")
    assert text.count("<script") == text.count("</script>") == 2
    assert "__NONCE__" in text and text.count("__") == 2  # the deck's own
    assert page("") != page("")


# The process that draws


def program(folder: Path, script: str) -> str:
    path = folder / "chromium"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_deck_that_takes_too_much_is_the_decks_fault_and_a_program_that_hangs_is_not(tmp_path: Path) -> None:
    spins = program(tmp_path, "(while :; do :; done) & echo $! > " + str(tmp_path / "child") + "; wait")
    with pytest.raises(Refused, match="simpler"):
        Chromium(spins, limits=Limits(cpu_s=0.1)).draw("<section>")
    child = int((tmp_path / "child").read_text())
    await until(lambda: not is_running(child), within_s=10)
    with pytest.raises(Refused, match="memory"):
        Chromium(program(tmp_path, "exec sleep 60"), limits=Limits(memory_bytes=1)).draw("<section>")
    with pytest.raises(Busy, match=r"after 0\.1 s"):
        Chromium(program(tmp_path, "exec sleep 60"), limits=Limits(wall_s=0.1)).draw("<section>")


def drawing(folder: Path, **found: Any) -> str:
    """A program that draws a white slide and says this of it; each run is a line of `runs`."""
    Image.new("RGB", (2 * WIDTH, HEIGHT), "white").save(folder / "white.png")
    measures = base64.b64encode(json.dumps(found).encode()).decode()
    copy = f'case $word in --screenshot=*) cp {folder}/white.png "${{word#*=}}";; esac'
    return program(
        folder, f"echo >> {folder}/runs\nfor word; do {copy}; done\necho '<html data-measures=\"{measures}\">'"
    )


def num_runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


def test_a_deck_that_stops_the_pages_script_is_refused_once_and_for_all_with_the_reason(tmp_path: Path) -> None:
    chromium = Chromium(drawing(tmp_path, error="SyntaxError: a|p"))
    for _ in range(3):
        with pytest.raises(Refused, match=r"cannot be drawn: SyntaxError: a\|p"):
            chromium.draw("<section>")
    assert chromium.picture(name_of("<section>")) is None
    assert num_runs(tmp_path) == 1


@pytest.mark.parametrize("style", ["a{" * 5_000, "@supports " + "(" * 11_000, "a&#123;" * 1_700])
def test_a_style_that_would_end_chromiums_process_is_refused(style: str) -> None:
    with pytest.raises(Refused, match=r"more than 1,500 of the signs \{"):
        Chromium("/nonexistent").draw(f"<svg><style>{style}</style></svg><section>")


def test_a_picture_that_was_forgotten_is_drawn_again(tmp_path: Path) -> None:
    chromium = Chromium(drawing(tmp_path, num_slides=1, slides=[[]], ignored=[]), max_drawn=1)
    first = chromium.draw("<section>1").png
    chromium.draw("<section>2")
    assert chromium.picture(name_of("<section>2")) == first and num_runs(tmp_path) == 2
    assert chromium.picture(name_of("<section>1")) == first and num_runs(tmp_path) == 3
    assert chromium.picture(name_of("<section>3")) is None


def test_all_decks_of_a_step_and_a_test_are_remembered_until_they_are_graded() -> None:
    job = load_job(EXAMPLE / "job.yaml", {"SLIDES_URL": "http://127.0.0.1:8040"})
    plan, _ = resolve_plan(job, len(rows_of("train")), 8 * 10**9)
    steps = 1 + job.reinforcement.algorithm.max_staleness
    rollouts = plan.batch_size * plan.group_size * steps + plan.eval_samples * len(rows_of("test"))
    assert rollouts * job.reinforcement.limits.max_tool_calls <= MAX_DECKS


def test_a_program_that_draws_nothing_or_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RenderFailed, match="drew nothing: no display"):
        Chromium(program(tmp_path, "echo no display >&2")).draw("<section>")
    with pytest.raises(RenderFailed, match="/nonexistent cannot be started: No such file"):
        Chromium("/nonexistent").draw("<section>")
    with pytest.raises(Refused, match="12,000 are the most"):
        Chromium("/nonexistent").draw("x" * (MAX_CHARS + 1))


def test_the_program_gets_a_folder_of_its_own_no_network_and_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with pytest.raises(RenderFailed):
        Chromium(program(tmp_path, f'env > {seen}; echo "$@" >> {seen}; pwd >> {seen}')).draw("<section>")
    text = seen.read_text()
    assert "secret" not in text
    assert "--host-resolver-rules=MAP * ~NOTFOUND" in text and "--proxy-server=127.0.0.1:1" in text
    (profile,) = (word.partition("=")[2] for word in text.split() if word.startswith("--user-data-dir"))
    assert not Path(profile).parent.exists()


# The server and the jobs


def test_a_rollout_submits_the_deck_that_its_answer_names() -> None:
    good, bad = DECKS["honest"], DECKS["small"]
    for answer, wanted in {
        name_of(good): SCORES["honest"],
        f" {name_of(good)}\n": SCORES["honest"],
        json.dumps({"deck": name_of(good)}): SCORES["honest"],
        name_of(bad): SCORES["small"],
        name_of(DECKS["titles alone"]): 0,  # of another rollout
        good: 0,
        f"{name_of(good)} {name_of(bad)}": 0,
        "": 0,
        "[" * 100_000: 0,
        '{"deck": ["' + name_of(good) + '"]}': 0,
    }.items():
        body = {"sample": sample(answer, bad, good), "item": ITEM, "trace_id": "t"}
        assert CLIENT.post("/grade", json=body).json()["score"] == pytest.approx(wanted, abs=1e-3), answer[:50]


def test_a_deck_that_is_too_large_is_refused_for_the_model_and_graded_0() -> None:
    huge = "<section>" * MAX_CHARS
    refused = CLIENT.post("/tools/render", json={"arguments": call(huge).arguments})
    assert (refused.status_code, refused.json()) == (422, {"detail": "too long"})
    graded = CLIENT.post("/grade", json={"sample": sample(name_of(huge), huge), "item": ITEM}).json()
    assert (graded["score"], graded["reason"]) == (0, "too long")


def test_a_renderer_that_is_busy_or_broken_is_no_grade() -> None:
    honest = DECKS["honest"]
    busy, broken = (TestClient(make_app(Recorded(e))) for e in (Busy("busy"), RenderFailed("no chromium")))
    body = {"sample": sample(name_of(honest), honest), "item": ITEM, "trace_id": "t"}
    for answer in (
        busy.post("/grade", json=body),
        busy.post("/tools/render", json={"arguments": call(honest).arguments}),
        busy.get(f"/pictures/{name_of(honest)}"),
    ):
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    answer = broken.post("/grade", json=body)
    assert (answer.status_code, answer.json()) == (500, {"detail": "no chromium"})


@pytest.mark.parametrize("arguments", ["{}", "[1]", "{", '{"html": 5}', "[" * 100_000])
def test_a_wrong_call_is_refused_and_the_model_reads_why(arguments: str) -> None:
    answer = CLIENT.post("/tools/render", json={"arguments": arguments})
    assert (answer.status_code, answer.json()) == (422, {"detail": "give html, a text"})


def test_the_picture_is_that_of_the_deck_and_empty_for_any_other_answer() -> None:
    assert CLIENT.get(f"/pictures/{name_of(DECKS['honest'])}").content == PNG
    for name in ("0000000000", "..%2F..%2Fsecret", "x" * 500):
        answer = CLIENT.get(f"/pictures/{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
        assert answer.content.startswith(b"\x89PNG\r\n") and answer.content != PNG


def method_of(name: str, url: str) -> Reinforcement:
    return load_job(EXAMPLE / f"{name}.yaml", {"SLIDES_MODEL": "model", "SLIDES_URL": url}).reinforcement


@pytest.mark.parametrize("name", ["job", "job_small"])
async def test_the_endpoints_pass_the_check_of_each_job(name: str) -> None:
    async with serving(make_app(Recorded())) as url:
        method = method_of(name, url)
        async with FakeEndpoint(says(verdict(0.5))) as judge:
            assert await dry_run_problems(method, tasks_of(EXAMPLE / "data" / "step.jsonl"), judged_by(judge)) == []
        dispatcher = Dispatcher(method.tools, LOCAL)
        (result,) = await dispatcher.call_turn("trace_1", ITEM, [call(DECKS["small"])])
        await dispatcher.close()
    assert result.output.startswith(f"deck {name_of(DECKS['small'])}: slide 1: font of 11 px (min 16); slide 2")


async def test_the_judge_sees_the_picture_and_cannot_give_more_than_code_does() -> None:
    hidden, honest = DECKS["white on white"], DECKS["honest"]
    async with serving(make_app(Recorded())) as url, FakeEndpoint(says(verdict(1.0))) as judge:
        grader = make_grader(method_of("job", url).grader, judged_by(judge))
        good = await grader.grade(sample(json.dumps({"deck": name_of(honest)}), honest), ITEM, "trace_1")
        bad = await grader.grade(sample(json.dumps({"deck": name_of(hidden)}), hidden), ITEM, "trace_1")
        none = await grader.grade(sample("score: 1"), ITEM, "trace_1")
        await grader.close()
    assert (good.value, bad.value, none.value) == (1, 0, 0)
    assert len(judge.received) == 2  # an answer without a name asks no judge
    _, user = judge.received[0].body["messages"]
    assert user["content"][1] == {"type": "image_url", "image_url": {"url": f"{url}/pictures/{name_of(honest)}"}}


async def test_a_judge_that_sees_no_design_halves_the_grade() -> None:
    honest = DECKS["honest"]
    async with serving(make_app(Recorded())) as url, FakeEndpoint(says(verdict(0.0))) as judge:
        grader = make_grader(method_of("job", url).grader, judged_by(judge))
        given = await grader.grade(sample(json.dumps({"deck": name_of(honest)}), honest), ITEM, "trace_1")
        await grader.close()
    assert given.value == 0.5


@pytest.mark.parametrize("name", ["job", "job_small", "warm_start"])
def test_the_jobs_are_valid_and_their_rows_name_the_tool(name: str) -> None:
    job = load_job(EXAMPLE / f"{name}.yaml", {"SLIDES_MODEL": "model", "SLIDES_URL": "http://127.0.0.1:8040"})
    rows = [json.loads(line) for line in Path(job.training_file).read_text().splitlines()]
    assert all(row["tools"] == [make_data.TOOL] for row in rows)
    assert "test" not in Path(job.training_file).name


# The pictures


def traces(decks_by_grade: dict[float, str]) -> list[str]:
    """The lines of `agent-rft traces RUN --json` for rollouts with these decks, and one that submitted none."""
    request = group_request()
    ends = [rollout(request, 9, grade=0.0, answer="I cannot do this")]
    for i, (value, html) in enumerate(decks_by_grade.items()):
        turn = Turn(2, 5, "", calls=(call(html),))
        made = rollout(request, i, turns=(turn,), answer=name_of(html))
        ends.append(replace(made, grade=Grade(value, reason="<b>why")))
    return [trace_json(Trace("step-1", request, end)) for end in ends]


def test_the_page_shows_the_best_and_the_worst_deck_of_a_step_and_runs_nothing() -> None:
    found = pictures.entries(traces({0.5: DECKS["small"], 1.0: DECKS["honest"], 0.1: DECKS["a script"]}))
    assert [entry.html for entry in found] == [DECKS["honest"], DECKS["small"], DECKS["a script"]]
    text = pictures.page({"step-1": found, "<i>": []}, Recorded())
    assert text.index("best: 1.000") < text.index("worst: 0.100")
    assert text.count("<img") == 2 and "0.500" not in text
    assert "&lt;b&gt;why" in text and "&lt;i&gt;: 0 decks" in text and "<script" not in text


def test_a_deck_that_cannot_be_drawn_again_is_named() -> None:
    (entry,) = pictures.entries(traces({1.0: "x" * (MAX_CHARS + 1)}))
    assert "Not drawn: too long" in pictures.page({"step-1": [entry]}, Recorded())
    (entry,) = pictures.entries(traces({1.0: DECKS["honest"]}))
    broken = Recorded(RenderFailed("no chromium"))
    assert "Not drawn: no chromium" in pictures.page({"step-1": [entry]}, broken)
