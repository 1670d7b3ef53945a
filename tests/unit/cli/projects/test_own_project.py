"""Projects from what users have: what is written runs at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_rft.cli.init import ask_project_questions
from agent_rft.cli.main import app
from agent_rft.cli.projects.own_project import ProjectRequest, write_own_project
from agent_rft.errors import UserError
from agent_rft.spec.job_file import load_job
from tests.unit.cli.projects.test_openapi_tools import PETS, site

TOOLS = """
\"\"\"Prices.\"\"\"


def add(a: int, b: int = 1) -> int:
    \"\"\"Adds.\"\"\"
    return a + b


async def price(name: str) -> dict:
    \"\"\"The price.\"\"\"
    if name == "broken":
        raise RuntimeError("secret of the server")
    return {"lamp": {"price": 17.5}}[name]
"""
QUESTIONS = "question,answer,kind\n" + "".join(f"What is {i} + {i}?,{2 * i},sum\n" for i in range(10))
CALLS = """
import json, sys, unittest
from fastapi.testclient import TestClient
import server, test_grader

tests = unittest.defaultTestLoader.loadTestsFromModule(test_grader)
result = unittest.TextTestRunner(sys.stderr).run(tests)
assert result.testsRun and result.wasSuccessful()
with TestClient(server.app, raise_server_exceptions=False) as client:
    for path, body in json.loads(sys.argv[1]):
        answer = client.post(path, json=body)
        print(json.dumps([answer.status_code, answer.text]))
"""


def answers(project: Path, *calls: tuple[str, object], **environment: str) -> list[list[object]]:
    """Runs the tests of a project's grader and its server in a process; returns status and text of each call."""
    command = [sys.executable, "-W", "error", "-c", CALLS, json.dumps(calls)]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def call(name: str, arguments: object) -> tuple[str, object]:
    return f"/tools/{name}", {"name": name, "arguments": json.dumps(arguments), "item": {}}


def graded(text: str, **item: object) -> tuple[str, object]:
    return "/grade", {"sample": {"output_text": text, "output_tools": []}, "item": item}


def check_files(project: Path, num_rows: int) -> None:
    job = load_job(project / "job.yaml", {})
    rows = []
    for path in (job.training_file, job.validation_file, job.test_file):
        assert path is not None
        rows += [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert len({row["messages"][-1]["content"] for row in rows}) == len(rows) == num_rows
    names = [tool.name for tool in job.reinforcement.tools]
    assert all([tool["function"]["name"] for tool in row.get("tools", [])] == names for row in rows)
    server, _ = job.reinforcement.grader.url.split("/grade")
    assert all(tool.server_url.startswith(f"{server}/tools/") for tool in job.reinforcement.tools)


def test_a_project_of_functions_and_questions_runs_at_once(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text(TOOLS)
    (tmp_path / "questions.csv").write_text(QUESTIONS)
    project = tmp_path / "my shop"
    sources = ["--from", str(tmp_path / "prices.py"), "--from", str(tmp_path / "questions.csv")]
    result = CliRunner().invoke(app, ["init", str(project), *sources, "--port", "8123", "--system", "Be short."])
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.output.splitlines()]
    assert (
        f"- tools: add, price from prices in {tmp_path}; the module was imported once in a separate process"
        in result.output
    )
    assert "- question: column 'question'; reference_answer: column 'answer'; extra fields of the rows: kind" in lines
    assert "- rows: 7 train, 1 validation, 2 test; no question is in two files" in lines
    assert any(
        line.startswith(f"cd '{project}' && ") and line.endswith("uvicorn server:app --port 8123") for line in lines
    )
    check_files(project, 10)
    assert load_job(project / "job.yaml", {}).model == str(project / "base"), "the toy"
    added, priced, wrong, unknown, failed, no_tool, right, other = answers(
        project,
        call("add", {"a": 2}),
        call("price", {"name": "lamp"}),
        call("add", {"a": "two"}),
        call("price", {"name": "chair"}),
        call("price", {"name": "broken"}),
        call("delete", {}),
        graded("1,250.00 EUR", reference_answer="1250 eur"),
        graded("1250 or 1251", reference_answer="1250"),
    )
    assert added == [200, '{"output":"3"}'] and priced == [200, '{"output":"{\\"price\\":17.5}"}']
    assert wrong[0] == 422 and "a: Input should be a valid integer" in str(wrong[1])
    assert unknown[0] == 400 and "KeyError: 'chair'" in str(unknown[1]), "the model reads what was wrong"
    assert failed[0] == 500 and "secret" not in str(failed[1]), "a failure of the tool is not an answer"
    assert no_tool[0] == 404
    assert (right, other) == ([200, '{"score":1.0}'], [200, '{"score":0.0}'])


def test_a_project_of_an_api_forwards_calls_and_changes_nothing_unasked(tmp_path: Path) -> None:
    found = {
        "/v1/pets/a%2Fb?fields=x&fields=y": (200, {}, b'{"name": "Rex"}'),
        "/v1/pets/none": (404, {}, b"no such pet"),
        "/v1/pets/busy": (429, {"Retry-After": "3"}, b""),
        "/v1/pets/moved": (302, {"Location": "http://169.254.169.254/"}, b""),
        "/v1/pets/large": (200, {}, b"x" * 1_000_001),
    }
    with site(found) as url:
        (tmp_path / "api.yaml").write_text(PETS.replace("https://{place}.example.com", url))
        said = write_own_project(tmp_path / "pets", ProjectRequest((str(tmp_path / "api.yaml"),)))
        got = answers(
            tmp_path / "pets",
            call("get_pet", {"petId": "a/b", "fields": ["x", "y"], "X-Page": 2}),
            *(call("get_pet", {"petId": name}) for name in ("none", "busy", "moved", "large", "..", "a\ud800")),
            call("put_pet", {"petId": "a", "body": {"name": "Rex"}}),
        )
    assert "tools that may change data; the server calls them only with API_CHANGES=1: put_pet" in said
    check_files(tmp_path / "pets", 30)
    assert got[0] == [200, json.dumps({"output": '{"name": "Rex"}'}, separators=(",", ":"))]
    assert [status for status, _ in got[1:]] == [404, 429, 502, 413, 422, 422, 409]
    assert "no such pet" in str(got[1][1]) and "was not sent" in str(got[-1][1])


def test_a_project_of_examples_alone_has_no_tools_and_takes_a_model(tmp_path: Path) -> None:
    (tmp_path / "questions.csv").write_text(QUESTIONS)
    model = "Qwen/Qwen3-0.6B"
    said = write_own_project(tmp_path / "sums", ProjectRequest((str(tmp_path / "questions.csv"),), model=model))
    assert f"download {model}" in said
    check_files(tmp_path / "sums", 10)
    assert not (tmp_path / "sums" / "base").exists() and load_job(tmp_path / "sums" / "job.yaml", {}).model == model
    assert answers(tmp_path / "sums", graded("2", reference_answer="2")) == [[200, '{"score":1.0}']]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "tools.txt"], "--from tools.txt: give a Python file"),
        (["--from", "a.csv", "--from", "b.csv"], "cannot be read"),
        (["--from", "q.csv", "--tool", "add"], "--tool requires a source of tools: give a Python file"),
        (["--from", "q.csv", "--from", "q.csv"], "give at most one source of tools and one CSV file"),
    ],
)
def test_sources_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    (tmp_path / "q.csv").write_text(QUESTIONS)
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["init", "new", *arguments]).exception
    assert isinstance(error, UserError) and said in str(error)
    assert not (tmp_path / "new").exists()


def test_options_of_ones_own_project_do_not_go_with_an_example(tmp_path: Path) -> None:
    for arguments in (["--example", "ledger", "--from", "q.csv"], ["--port", "8000"], ["--model", "m"]):
        result = CliRunner().invoke(app, ["init", str(tmp_path / "new"), *arguments])
        assert result.exit_code == 2 and ("--example" in result.output or "--from" in result.output)
    (tmp_path / "q.csv").write_text(QUESTIONS)
    error = CliRunner().invoke(app, ["init", str(tmp_path), "--from", str(tmp_path / "q.csv")]).exception
    assert isinstance(error, UserError) and "exists and is not empty" in str(error)


def test_five_questions_ask_for_the_same_as_the_options() -> None:
    replies = iter(["tools.py", "q.csv", "Be short.", "", "eight", "0", "8123"])
    questions: list[str] = []

    def ask(question: str, default: str) -> str:
        questions.append(question)
        return next(replies)

    assert ask_project_questions(ask) == ProjectRequest(("tools.py", "q.csv"), (), "Be short.", None, 8123)
    assert list(dict.fromkeys(question[:2] for question in questions)) == ["1.", "2.", "3.", "4.", "5."]
    assert ask_project_questions(lambda question, default: default) is None, (
        "who has nothing yet gets the ledger example"
    )
