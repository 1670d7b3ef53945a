"""API keys that are expired, revoked, guessed, or used for more than their scope; what remains in the logs of it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.serve.deployment import make_app
from agent_rft.serve.host.run_console import ONE_TIME_PREFIX
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.http.access_log import AccessLog
from agent_rft.serve.http.auth import MAX_ADDRESSES, MAX_FAILED_LOGINS, MAX_TOTAL_FAILED_LOGINS, FailedLogins
from agent_rft.serve.stores.audit_log import MAX_FULL_ENTRIES, AuditEntry
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.key_store import MAX_SESSIONS, Scope
from agent_rft.spec.operator.operator_config import OperatorConfig, ServerLimits
from tests.support.bad_requests import SECRET
from tests.support.jobs import BODY

PROXY = "10.0.0.1"
WRONG = "sk-rft-0123456789abcdef-" + "A" * 43
GUESSES = 600
GUESS_CPU_S = 4e-3
"""Processor time for each wrong key, with the client's share in this process; it takes about 0.5 ms."""
HUGE = 10**6


class Victim:
    """A whole server in a folder, without a cluster; `keys` are texts of API keys."""

    def __init__(self, folder: Path) -> None:
        operator = OperatorConfig(
            aliases={"gpt-5": str(folder)}, limits=ServerLimits(requests_per_minute=HUGE), jobs={"max_running": 1}
        )
        self.state = ServerState(StateLocations(folder), operator)
        self.log = folder / "logs" / "access-0.jsonl"
        nothing: Any = None
        services = Services(self.state, operator, nothing, nothing)
        self._app = make_app(self.state, services, operator, None, AccessLog(self.log))
        self.keys = {name: self.key(name, scope) for name, scope in OWNERS.items()}
        self.http = self.client(PROXY)

    def key(self, name: str, scope: Scope, expires_after_s: int | None = None) -> str:
        return self.state.keys.create(name, [scope], None, expires_after_s)[1]

    def id_of(self, name: str) -> str:
        return self.keys[name].split("-")[2]

    def client(self, address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self._app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://server")

    async def ask(self, method: str, path: str, name: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, f"/v1{path}", headers=bearer(self.keys[name]), **options)

    async def file(self, name: str) -> str:
        form: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}
        return str((await self.ask("POST", "/files", name, **form)).json()["id"])

    async def job(self, name: str) -> str:
        body = BODY | {"training_file": await self.file(name)}
        answer = await self.ask("POST", "/fine_tuning/jobs", name, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def audited(self, **filters: Any) -> list[AuditEntry]:
        return self.state.audit.list(1_000, **filters)

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


OWNERS: dict[str, Scope] = {"maker": "write", "other": "write", "reader": "read", "admin": "admin"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def victim(tmp_path: Path) -> AsyncIterator[Victim]:
    victim = Victim(tmp_path)
    async with victim.http:
        yield victim
    victim.state.close()


# -- keys that are none any more ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["expired", "revoked"])
async def test_a_key_that_ended_is_refused_like_one_that_never_was(victim: Victim, end: str) -> None:
    token = victim.key("leaver", "admin", expires_after_s=-1 if end == "expired" else None)
    if end == "revoked":
        victim.state.keys.revoke(token.split("-")[2])
    answers = [await victim.http.get("/v1/models", headers=bearer(given)) for given in (token, WRONG)]
    assert [answer.status_code for answer in answers] == [401, 401]
    assert answers[0].json() == answers[1].json(), "nobody learns which keys were right once"


# -- scopes ------------------------------------------------------------------------------------------------------------


async def attempts(victim: Victim, name: str, file_id: str, job_id: str, model: str) -> dict[str, int]:
    """What a key tries with objects, in an order in which each may succeed."""
    changes = {
        "cancel": ("POST", f"/fine_tuning/jobs/{job_id}/cancel"),
        "delete model": ("DELETE", f"/models/{model}"),
        "delete file": ("DELETE", f"/files/{file_id}"),
    }
    return {what: (await victim.ask(*request, name)).status_code for what, request in changes.items()}


async def objects(victim: Victim, name: str) -> tuple[str, str, str]:
    """The ids of a file, a job and its model of a key."""
    job_id = await victim.job(name)
    record = JobStore(victim.state.database).get(job_id)
    victim.state.models.add(f"ft:{job_id}", "folder", "gpt-5", job_id, owner=record.owner)
    return record.training_file, job_id, f"ft:{job_id}"


@pytest.mark.parametrize(("name", "status"), [("reader", 403), ("other", 403), ("maker", 200), ("admin", 200)])
async def test_only_the_maker_and_an_admin_change_what_was_made(victim: Victim, name: str, status: int) -> None:
    made = await objects(victim, "maker")
    assert set((await attempts(victim, name, *made)).values()) == {status}
    outcome = "done" if status == 200 else "refused"
    acts = [(entry.actor, entry.action, entry.object) for entry in victim.audited(outcome=outcome)]
    file_id, job_id, model = made
    for action, id in (("job.cancel", job_id), ("model.delete", model), ("file.delete", file_id)):
        assert (victim.id_of(name), action, id) in acts


async def test_what_has_no_known_owner_may_be_deleted_with_write_as_before(victim: Victim) -> None:
    async def old_bytes() -> AsyncIterator[bytes]:
        yield b"{}"

    old = await victim.state.files.create(old_bytes(), "old.jsonl", "fine-tune")
    victim.state.models.add("ft:old", "folder", "gpt-5", "ftjob-old")
    assert (await victim.ask("DELETE", f"/files/{old.id}", "reader")).status_code == 403
    assert (await victim.ask("DELETE", f"/files/{old.id}", "other")).status_code == 200
    assert (await victim.ask("DELETE", "/models/ft:old", "other")).status_code == 200


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
async def test_a_refusal_says_what_is_needed_and_comes_before_the_jobs_state(victim: Victim, verb: str) -> None:
    job_id = await victim.job("maker")
    answer = await victim.ask("POST", f"/fine_tuning/jobs/{job_id}/{verb}", "other")
    error = answer.json()["error"]
    assert answer.status_code == 403 and error["type"] == "permission_error"
    assert error["code"] == "insufficient_scope" and "admin" in error["message"] and "write" in error["message"]
    assert JobStore(victim.state.database).get(job_id).status == "validating_files"


async def test_everybody_still_sees_and_uses_what_others_made(victim: Victim) -> None:
    file_id, job_id, model = await objects(victim, "maker")
    for path in (f"/files/{file_id}/content", f"/fine_tuning/jobs/{job_id}", f"/models/{model}"):
        assert (await victim.ask("GET", path, "reader")).status_code == 200
    body = BODY | {"training_file": file_id}
    assert (await victim.ask("POST", "/fine_tuning/jobs", "other", json=body)).status_code == 200


# -- guessing ----------------------------------------------------------------------------------------------------------


async def test_guesses_are_told_to_wait_cost_little_and_lock_out_nobody(victim: Victim) -> None:
    statuses: dict[int, int] = {}
    start = time.process_time()
    for i in range(GUESSES):
        answer = await victim.http.get("/v1/models", headers=bearer(f"sk-rft-{i:016x}-{'A' * 43}"))
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    assert time.process_time() - start < GUESSES * GUESS_CPU_S
    assert statuses.keys() == {401, 429} and statuses[401] < 3 * MAX_FAILED_LOGINS
    assert answer.json()["error"]["code"] == "too_many_failed_logins" and int(answer.headers["Retry-After"]) >= 1
    # Behind the same proxy: a key that this server has never seen, and one that it has.
    for name in ("reader", "reader", "other"):
        assert (await victim.ask("GET", "/models", name)).status_code == 200
    async with victim.client("10.0.0.2") as elsewhere:
        assert (await elsewhere.get("/v1/models", headers=bearer(WRONG))).status_code == 401, "its own count"
    assert victim.audited() == [], "guesses do not fill the database"


def test_guesses_from_many_addresses_are_limited_together_in_bounded_memory() -> None:
    now = [0.0]
    failed = FailedLogins(lambda: now[0])
    waits = [failed.record_failure(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}") for i in range(MAX_ADDRESSES + 5_000)]
    assert sum(wait == 0 for wait in waits) == MAX_TOTAL_FAILED_LOGINS
    assert len(failed._by_address) == MAX_ADDRESSES
    now[0] += 60
    assert failed.record_failure("10.0.0.9") == 0, "a minute later it counts again"


def test_the_addresses_of_one_ipv6_network_count_as_one() -> None:
    failed = FailedLogins(lambda: 0.0)
    waits = [failed.record_failure(f"2001:db8:1:2::{i:x}") for i in range(MAX_FAILED_LOGINS + 1)]
    assert [wait > 0 for wait in waits] == [False] * MAX_FAILED_LOGINS + [True]
    assert failed.record_failure("2001:db8:1:3::1") == 0
    assert failed.record_failure("not an address") == failed.record_failure("") == 0


# -- the logs ----------------------------------------------------------------------------------------------------------


async def test_the_access_log_has_each_request_and_nothing_that_a_client_sent(victim: Victim) -> None:
    job_id = await victim.job("maker")
    await victim.ask("GET", f"/fine_tuning/jobs?after={SECRET}", "reader")
    await victim.ask("GET", f"/{SECRET}", "reader")
    await victim.http.get("/v1/models", headers=bearer(WRONG) | {"x-request-id": "mine-1"})
    await victim.http.request(SECRET.upper(), "/v1/models", headers={"User-Agent": SECRET})
    lines = victim.logged()
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/files", 200),
        ("POST", "/v1/fine_tuning/jobs", 200),
        ("GET", "/v1/fine_tuning/jobs", 400),
        ("GET", "other", 404),
        ("GET", "other", 401),
        ("other", "other", 401),
    ]
    assert [line["key"] for line in lines[:3]] == [victim.id_of("maker")] * 2 + [victim.id_of("reader")]
    assert lines[4]["key"] is None and lines[4]["client_request_id"] == "mine-1"
    assert all(line["request_id"].startswith("req_") for line in lines)
    assert all(line["ms"] >= 0 and line["time"].endswith("+00:00") for line in lines)
    text = victim.log.read_text()
    assert job_id not in text and SECRET.lower() not in text.lower()
    assert not any(token.split("-", 3)[3] in text for token in [WRONG, *victim.keys.values()])


async def test_the_audit_log_has_who_did_what_by_which_request(victim: Victim) -> None:
    job_id = await victim.job("maker")
    (made,) = victim.audited(object=job_id)
    assert (made.actor, made.action, made.outcome, made.status) == (victim.id_of("maker"), "job.create", "done", 200)
    assert made.request_id in {line["request_id"] for line in victim.logged()}
    bad = await victim.ask("POST", "/fine_tuning/jobs", "maker", json=BODY | {"training_file": SECRET})
    (entry,) = victim.audited(outcome="failed")
    assert (entry.status, entry.object, entry.request_id) == (400, None, bad.headers["x-request-id"])
    await victim.ask("DELETE", f"/files/{'x' * 5_000}", "maker")
    assert len(victim.audited(action="file.delete")[0].object or "") == 255
    assert SECRET not in str(victim.audited())


async def test_a_client_cannot_choose_the_id_of_its_entry(victim: Victim) -> None:
    await victim.file("maker")
    (first,) = victim.audited()
    headers = bearer(victim.keys["other"]) | {"x-request-id": str(first.request_id)}
    form: Any = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}
    answer = await victim.http.post("/v1/files", headers=headers, **form)
    entry = victim.audited()[0]
    assert entry.request_id == answer.headers["x-request-id"] != first.request_id
    assert entry.client_request_id == first.request_id and first.client_request_id is None


# -- a full database ---------------------------------------------------------------------------------------------------


FLOOD = 60
FLOOD_CPU_S = 25e-3
"""Processor time for each request of a flood, with the client's share in this process; it takes about 5 ms."""


async def test_a_read_key_cannot_fill_the_database(victim: Victim) -> None:
    reader = bearer(victim.keys["reader"])

    async def flood() -> None:
        for number in range(FLOOD):
            headers = reader | {"x-request-id": f"{number:x<128}"}
            opened = await victim.http.post("/v1/console/session", headers=headers)
            session = {"cookie": opened.headers["set-cookie"].partition(";")[0], "origin": "http://server"}
            assert opened.status_code == 200
            refused = await victim.http.delete(f"/v1/files/{number:y<255}", headers=headers)
            assert refused.status_code == 403
            assert (await victim.http.post("/v1/console/session", headers=session)).status_code == 400
            if number % 2:
                assert (await victim.http.delete("/v1/console/session", headers=session)).status_code == 200
            victim.http.cookies.clear()

    def num_rows() -> int:
        with victim.state.database.engine.connect() as connection:
            tables = ("audit", "console_sessions")
            return sum(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() for table in tables)

    start = time.process_time()
    await flood()
    rows = num_rows()
    await flood()
    assert time.process_time() - start < 7 * FLOOD * FLOOD_CPU_S
    entries = victim.audited(actor=victim.id_of("reader"))
    # Three outcomes, and the counts of: created, deleted, without a key, refused. An hour may end in between.
    assert len(entries) <= 2 * (3 * MAX_FULL_ENTRIES + 4) and num_rows() - rows <= len(entries)
    assert num_rows() <= len(entries) + MAX_SESSIONS
    assert sum(entry.num_requests for entry in entries if entry.outcome == "refused") == 2 * FLOOD


async def test_a_flood_of_refusals_hides_no_change(victim: Victim) -> None:
    file_id = await victim.file("maker")
    for _ in range(2 * MAX_FULL_ENTRIES):
        assert (await victim.ask("DELETE", f"/files/{file_id}", "other")).status_code == 403
        assert (await victim.ask("DELETE", "/files/file-unknown", "other")).status_code == 404
    own = await victim.file("other")
    assert (await victim.ask("DELETE", f"/files/{own}", "other")).status_code == 200
    acts = [(entry.action, entry.object, entry.outcome) for entry in victim.audited(actor=victim.id_of("other"))[:2]]
    assert acts == [("file.delete", own, "done"), ("file.create", own, "done")]


# -- the console -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["http://[::1", "http://[", "https://[x]y", "http://[::1]:99999999", "//[", "null", ""]
)
async def test_an_origin_that_cannot_be_parsed_is_refused(victim: Victim, origin: str) -> None:
    opened = await victim.http.post("/v1/console/session", headers=bearer(victim.keys["maker"]) | {"origin": origin})
    headers = {"cookie": opened.headers["set-cookie"].partition(";")[0], "origin": origin}
    answer = await victim.http.post("/v1/fine_tuning/jobs", headers=headers, json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")


@pytest.mark.parametrize("host", ["[::1", "[", "a:b:c", "server:99999999", ""])
async def test_a_host_that_cannot_be_parsed_is_no_error_of_the_server(victim: Victim, host: str) -> None:
    opened = await victim.http.post("/v1/console/session", headers=bearer(victim.keys["maker"]) | {"host": host})
    assert opened.status_code < 500
    for path in ("/", "/v1", "/v1/models", "/docs"):
        headers = bearer(victim.keys["maker"]) | {"host": host, "origin": f"http://{host}"}
        assert (await victim.http.get(path, headers=headers)).status_code < 500, path


async def test_one_time_keys_of_train_open_work_on_no_server(victim: Victim) -> None:
    secret = victim.keys["admin"].split("-", 2)[2]
    for token in (ONE_TIME_PREFIX + "A" * 43, ONE_TIME_PREFIX + secret, ONE_TIME_PREFIX + victim.keys["admin"]):
        assert (await victim.http.post("/v1/console/session", headers=bearer(token))).status_code == 401


async def test_results_of_a_readiness_check_are_read_by_its_maker_only(victim: Victim) -> None:
    body = BODY | {"training_file": await victim.file("maker")}
    check = (await victim.ask("POST", "/fine_tuning/readiness", "maker", json=body)).json()["id"]

    async def rows() -> AsyncIterator[bytes]:
        yield SECRET.encode()

    store, owner = JobStore(victim.state.database), victim.id_of("maker")
    results = [
        (await victim.state.files.create(rows(), name, "fine-tune-results", owner=owner, owner_only=True)).id
        for name in ("readiness.json", "readiness.html")
    ]
    for status in ("queued", "running"):
        store.move(check, status)
    store.move(check, "succeeded", findings={"verdict": "train", "reasons": []}, result_files=results)
    paths = [f"/fine_tuning/readiness/{check}{path}" for path in ("", "/events")]
    paths += [f"/files/{id}{path}" for id in results for path in ("", "/content")]
    for name, expected in (("reader", 404), ("other", 404), ("maker", 200), ("admin", 200)):
        assert {(await victim.ask("GET", path, name)).status_code for path in paths} == {expected}, name
        listed = [(await victim.ask("GET", path, name)).text for path in ("/files", "/fine_tuning/readiness")]
        assert [id in "".join(listed) for id in (check, *results)] == [expected == 200] * 3, name
    for id in results:
        assert (await victim.ask("DELETE", f"/files/{id}", "other")).status_code == 404
    assert (await victim.ask("POST", f"/fine_tuning/readiness/{check}/cancel", "other")).status_code == 404
