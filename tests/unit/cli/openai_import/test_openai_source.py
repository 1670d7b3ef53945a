"""An import continues, or ends with a fix and leaves nothing, whatever OpenAI's API answers."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest

from agent_rft.cli.openai_import.openai_source import MAX_ATTEMPTS, OpenAIRefused, OpenAIUnavailable, make_openai_client
from agent_rft.errors import UserError
from tests.support.imports import checked, imported, run
from tests.support.openai_api import KEY, FakeOpenAI, Reply, refusal
from tests.support.openai_jobs import JOB_ID, record, recorded, reinforcement


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (refusal(401, f"Incorrect API key provided: {KEY}"), "set OPENAI_API_KEY"),
        (refusal(403, "You have insufficient permissions"), "insufficient permissions.*use a key of the job's project"),
        (refusal(404, "Could not find fine tune"), "check the job's id"),
        (refusal(400, "Not for free accounts"), "Not for free accounts.*--from"),
        (refusal(302, "", Location="http://127.0.0.1:1/"), "redirects are not followed"),
        (Reply(200, b"<html>hello"), "does not match OpenAI's API.*base URL"),
        (Reply(200, b'{"id": "ftjob-a", "model": 3}'), "model: Input should be a valid string"),
        (Reply(200, json.dumps(recorded(None) | {"id": "ftjob-../../x"}).encode()), "id: String should match"),
    ],
)
def test_a_refusal_says_what_to_do_and_shows_no_key(reply: Reply, said: str, api: FakeOpenAI, tmp_path: Path) -> None:
    api.instead = lambda path, times: reply
    waits: list[float] = []
    with pytest.raises(UserError, match=said) as error:
        run(api, tmp_path, waits=waits)

    assert KEY not in str(error.value) and not waits
    assert not list(tmp_path.iterdir())


def test_a_wrong_key_is_not_repeated_in_the_message(api: FakeOpenAI, tmp_path: Path) -> None:
    with pytest.raises(OpenAIRefused) as error:
        run(api, tmp_path, key="sk-wrong-9876543210")

    assert "Incorrect API key provided: [redacted]" in str(error.value)


@pytest.mark.parametrize("place", ["", "/events", "/checkpoints", "/content"])
def test_a_busy_or_failing_api_is_asked_again_as_late_as_it_says(place: str, api: FakeOpenAI, tmp_path: Path) -> None:
    failures = [refusal(429, "slow down", Retry_After="7"), refusal(500, "oops")]

    def busy(path: str, times: int) -> Reply | None:
        return failures[times] if path.endswith(place or JOB_ID) and times < len(failures) else None

    api.instead = busy
    record(api, recorded(reinforcement()))
    waits: list[float] = []
    told: list[str] = []
    run(api, tmp_path, waits=waits, told=told)

    assert 7 <= waits[0] < 8 and 0 < waits[1] < 2
    assert "HTTP 429 Too Many Requests (slow down); next attempt in 7." in told[0] and "oops" in told[1]
    checked(tmp_path / "moved")


def test_an_api_that_stays_busy_is_given_up_and_nothing_is_left(api: FakeOpenAI, tmp_path: Path) -> None:
    api.instead = lambda path, times: refusal(429, "slow down") if path.endswith("/content") else None
    with pytest.raises(OpenAIUnavailable, match="try again later"):
        imported(api, tmp_path, recorded(reinforcement()))

    assert api.asked["/files/file-train/content"] == MAX_ATTEMPTS
    assert not list(tmp_path.iterdir())


def test_a_download_that_breaks_off_is_begun_again(api: FakeOpenAI, tmp_path: Path) -> None:
    record(api, recorded(reinforcement()))
    half = Reply(200, api.files["file-train"][:100], {"Content-Length": "200", "Connection": "close"})
    api.instead = lambda path, times: half if path.endswith("train/content") and times == 0 else None
    run(api, tmp_path)

    checked(tmp_path / "moved")


def test_a_download_that_is_not_what_its_header_says_is_given_up(api: FakeOpenAI, tmp_path: Path) -> None:
    broken = Reply(200, b"not gzip", {"Content-Encoding": "gzip"})
    api.instead = lambda path, times: broken if path.endswith("train/content") else None
    with pytest.raises(OpenAIUnavailable, match="does not answer"):
        imported(api, tmp_path, recorded(reinforcement()))

    assert not list(tmp_path.iterdir())


def test_an_api_that_is_not_there_is_named(tmp_path: Path) -> None:
    nobody = FakeOpenAI()
    nobody.url = "http://127.0.0.1:1/v1"
    with pytest.raises(
        OpenAIUnavailable, match=r"127.0.0.1:1/v1/ does not answer: Connection refused \(6 attempts\); check"
    ):
        run(nobody, tmp_path)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "export OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "api.openai.com"}, "OPENAI_BASE_URL must start with http://"),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://a/v 1"}, "OPENAI_BASE_URL contains white space"),
        ({"OPENAI_API_KEY": "“sk”"}, "OPENAI_API_KEY contains .* curly quotes: copy the key again"),
        ({"OPENAI_API_KEY": "k", "OPENAI_ORG_ID": "org\n1"}, "OPENAI_ORG_ID contains a line break"),
        ({"OPENAI_API_KEY": "k", "ALL_PROXY": "socks5://p:1080"}, "ALL_PROXY is a socks5:// proxy"),
    ],
)
def test_the_environment_is_read_as_the_sdk_does(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_openai_client(None, environment)

    set_by_files = {"OPENAI_API_KEY": f"{KEY}\n", "OPENAI_ORG_ID": "org-1\n", "OPENAI_PROJECT_ID": "proj-1\r\n"}
    client, key = make_openai_client(None, set_by_files)
    assert key == KEY
    known = openai.OpenAI(api_key=KEY, organization="org-1", project="proj-1", base_url=None)
    with client, known:
        pass
    assert str(client.base_url) == str(known.base_url)
    sent = {name: client.headers[name] for name in ("Authorization", "OpenAI-Organization", "OpenAI-Project")}
    assert {name: known.default_headers[name] for name in sent if name != "Authorization"}.items() <= sent.items()
    assert sent["Authorization"] == known.auth_headers["Authorization"]
