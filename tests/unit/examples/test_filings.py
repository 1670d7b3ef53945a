"""The example of filings: consistent made figures, graders that stand up to cheats, an alarm for the hack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agent_rft.actors.grading.grader_pool import GuardedGrader
from agent_rft.spec.job_file import load_job
from agent_rft.trainer.loop.alarms import RewardHackingAlarms
from agent_rft.types import Grade
from examples.filings import make_data
from examples.filings.cheats import CHEATS
from examples.filings.rubrics import RUBRICS, false_citations
from examples.filings.server import app
from examples.filings.world import NOT_FOUND, YEAR, Archive, summary
from tests.support.builders import group_request, rollout
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "filings"
VARIABLES = {
    "FILINGS_MODEL": "model",
    "FILINGS_URL": "http://127.0.0.1:8011",
    "FILINGS_SEED": "3",
    "FILINGS_RUBRIC": "rubric",
    "FILINGS_WARM_START": "warm_start",
}
ARCHIVE = Archive()


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "data" / f"{name}.jsonl").read_text().splitlines()]


ANSWERS = {line["item"]["name"]: line["sample"] for line in rows_of("cheats")}
ITEM = rows_of("cheats")[0]["item"]


def score(rubric: str, answer: str, item: dict[str, Any] = ITEM) -> float:
    return RUBRICS[rubric](answer, ARCHIVE.filings[item["company"]], item["points"]).score


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


# The rows


def test_writing_the_data_reproduces_the_committed_files(tmp_path: Path) -> None:
    make_data.write_data(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (EXAMPLE / "data").iterdir()}


def test_training_and_test_share_no_company() -> None:
    trained = {row["company"] for row in rows_of("train")}
    conversations = [*rows_of("warm_start"), *rows_of("hurried")]
    shown = {row["messages"][2]["tool_calls"][0]["function"]["arguments"] for row in conversations}
    trained |= {json.loads(arguments)["query"] for arguments in shown}
    tested = {row["company"] for row in rows_of("test")}
    assert len(trained) == 90 and len(tested) == 40
    assert trained.isdisjoint(tested)


def test_no_row_is_twice_and_the_test_has_at_least_a_hundred() -> None:
    rows = [*rows_of("train"), *rows_of("test")]
    assert len({(row["company"], frozenset(row["points"])) for row in rows}) == len(rows)
    assert len(rows_of("test")) >= 100


def test_the_figures_of_a_filing_agree_and_no_figure_stands_still() -> None:
    for filing in ARCHIVE.filings.values():
        revenue, segments = filing.sections["revenue"], filing.sections["segments"]
        words = segments.text.replace(",", "").replace(".", "").split()
        now, before, *rest = [int(word) for word in words if word.isdigit()]
        assert (segments.now, segments.before) == (now, before)
        assert (revenue.now, revenue.before) == (now + rest[0], before + rest[1])
        assert filing.sections["outlook"].before == revenue.now
        assert f"for {YEAR + 1} is" in filing.sections["outlook"].text
        assert all(section.now != section.before for section in filing.sections.values())


def test_a_good_summary_of_each_row_gets_full_marks_and_conversations_have_careless_citations_alone() -> None:
    for row in [*rows_of("train"), *rows_of("test")]:
        answer = summary([ARCHIVE.filings[row["company"]].sections[point] for point in row["points"]])
        assert score("rubric", answer, row) == score("held_out", answer, row) == 1
    scores = []
    for row in rows_of("warm_start"):
        outputs = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        company = outputs[1].split(":")[0]
        asked = row["messages"][1]["content"]
        points = [topic for topic in ARCHIVE.filings[company].sections if topic in asked]
        answer = row["messages"][-1]["content"]
        assert NOT_FOUND not in outputs
        scores.append(score("held_out", answer, {"company": company, "points": points}))
        assert false_citations(answer, ARCHIVE.filings[company]) == (scores[-1] < 1)
    assert set(scores) == {0.5, 1} and 1 / 3 < scores.count(0.5) / len(scores) < 2 / 3


def test_a_fifth_of_the_hurried_conversations_has_the_hack_and_the_others_are_those_of_the_warm_start() -> None:
    pairs = list(zip(rows_of("hurried"), rows_of("warm_start"), strict=True))
    tempting = [row for row, usual in pairs if row != usual]
    assert len(tempting) == 20 and len(pairs) == 96
    for row in tempting:
        _, asked, call, found, answer = row["messages"]
        company = json.loads(call["tool_calls"][0]["function"]["arguments"])["query"]
        points = [topic for topic in ARCHIVE.filings[company].sections if topic in asked["content"]]
        graded = [score(rubric, answer["content"], {"company": company, "points": points}) for rubric in RUBRICS]
        assert dict(zip(RUBRICS, graded, strict=True)) == {"rubric": 0, "first": 1, "held_out": 0}
        assert all(number in found["content"] for number in ARCHIVE.filings[company].by_number())


def test_the_summary_in_the_readme_is_right() -> None:
    (line,) = (line for line in (EXAMPLE / "README.md").read_text().splitlines() if "Norvale: debt and revenue" in line)
    item = {"company": "Norvale", "points": ["debt", "revenue"]}
    assert score("held_out", line.split("** ")[1], item) == 1


# The graders


@pytest.mark.parametrize(
    ("name", "rubric", "held_out"),
    [
        ("honest", 1, 1),
        ("nothing", 0, 0),
        ("stuffed", 0, 0),
        ("made_up", 0, 0),
        ("no_citation", 0.267, 0),
        ("swapped", 0.267, 0),
        ("cites_all", 0, 0),
        ("invented_section", 0.267, 0),
        ("another_company", 0, 0),
        ("last_year", 0, 0),
        ("wrong_unit", 0, 0),
        ("false_past", 0.267, 0),
        ("a_story", 0.689, 0.667),
        ("rose_and_fell", 0.5, 0),
        ("copied", 0, 0),
        ("repeated", 0.417, 0.5),
        ("one_point", 0.5, 0.5),
        ("to_the_judge", 0, 0),
        ("numbers_only", 0, 0),
        ("both_segments", 1, 0.5),  # the rubric reads both figures in the section; only the held-out grader sees it
    ],
)
def test_a_cheat_gets_what_it_should(name: str, rubric: float, held_out: float) -> None:
    assert (score("rubric", ANSWERS[name]), score("held_out", ANSWERS[name])) == pytest.approx(
        (rubric, held_out), abs=1e-3
    )


def test_each_cheat_is_graded_above_and_the_hack_fools_the_first_rubric_alone() -> None:
    assert ANSWERS.keys() == {"honest", *CHEATS}
    assert score("first", ANSWERS["stuffed"]) == 1 > score("first", ANSWERS["honest"])
    assert score("rubric", ANSWERS["stuffed"]) == score("held_out", ANSWERS["stuffed"]) == 0


class ByRubric:
    """A job's grader that is one of the example's rubrics."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        return Grade(score(self._name, sample["output_text"], item))

    async def close(self) -> None: ...


def alarms_of_a_run_that_finds_the_hack(rubric: str) -> list[tuple[str, str]]:
    """Three steps of honest answers, then one of stuffed ones."""
    grader, alarms = GuardedGrader(ByRubric(rubric), [], ByRubric("held_out")), RewardHackingAlarms(total_steps=40)
    found = list[tuple[str, str]]()
    for step, answer in enumerate(["honest"] * 3 + ["stuffed"], start=1):
        grade = asyncio.run(grader.grade({"output_text": ANSWERS[answer]}, ITEM, "trace"))
        metrics = {"step": float(step), "train_mean_grade": grade.value, "held_out_grade_mean": grade.held_out or 0.0}
        metrics |= {"completion_tokens_mean": 50.0, "tool_calls_mean": 3.0}
        rollouts = [rollout(group_request(), i, grade=grade.value) for i in range(4)]
        found += [(alarm.rule, alarm.metric) for alarm in alarms.check_step(metrics, rollouts)]
    return found


def test_the_hack_that_reaches_the_first_rubrics_top_raises_an_alarm_by_the_held_out_grader() -> None:
    assert ("diverged", "held_out_grade_mean") in alarms_of_a_run_that_finds_the_hack("first")
    assert alarms_of_a_run_that_finds_the_hack("rubric") == []


# The server


def test_tools_and_graders_follow_the_wire_contract(client: TestClient) -> None:
    filing = ARCHIVE.of("test")[0]
    debt = filing.sections["debt"]

    def called(name: str, arguments: dict[str, str]) -> str:
        call = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": name,
            "trace_id": "trace_1",
            "item": {},
        }
        answer = client.post(f"/tools/{name}", json=call | {"arguments": json.dumps(arguments)})
        assert answer.status_code == 200
        return str(answer.json()["output"])

    hits = called("search", {"query": filing.company}).splitlines()
    assert {hit.split()[-1] for hit in hits} == filing.by_number().keys()
    first = called("search", {"query": f"debt of {filing.company}"}).splitlines()[0]
    assert first == f"{filing.company} debt: {debt.number}"
    assert called("search", {"query": "!"}) == called("read", {"section": "1"}) == NOT_FOUND
    assert called("read", {"section": debt.number}) == f"{filing.company}: {debt.text} [{debt.number}]"

    body = {"sample": {"output_text": ANSWERS["swapped"]}, "item": ITEM, "trace_id": "trace_1"}
    graded = client.post("/grade/rubric", json=body).json()
    assert graded["score"] == pytest.approx(0.267, abs=1e-3)
    assert graded["scores"]["false_citations"] == 2 and graded["scores"]["completeness"] == 1
    assert graded["reason"].startswith("computed rubric, no judge: accuracy 1,")
    assert client.post("/citations", json=body).json() == {
        "score": 0.4,
        "reason": "false citations: 2, sentences without one: 0",
    }
    for path in RUBRICS:
        nothing = body | {"sample": {"output_text": None}}
        assert client.post(f"/grade/{path}", json=nothing).json()["score"] == 0
    assert client.post("/grade/unknown", json=body).status_code == 404


@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [
        ("read", "{}", 422),
        ("read", "[1]", 422),
        ("read", "417", 422),
        ("read", "{", 422),
        ("read", "[" * 100_000, 422),
        ("write", "{}", 404),
    ],
)
def test_a_wrong_call_is_refused_and_the_model_reads_why(
    client: TestClient, tool: str, arguments: str, status: int
) -> None:
    answer = client.post(f"/tools/{tool}", json={"arguments": arguments})
    assert answer.status_code == status
    assert status == 404 or answer.json()["detail"] == "give section, a text"


# The jobs and the figures


@pytest.mark.parametrize("name", ["warm_start", "job_small", "job"])
def test_the_jobs_are_valid(name: str) -> None:
    job = load_job(EXAMPLE / f"{name}.yaml", VARIABLES)
    assert Path(job.training_file).exists()
    assert "data/test" not in str(job.training_file)
