"""Sessions of browsers: opened with a key, kept in a cookie, ended with the key; a change comes from the own page."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter

from agent_rft.serve.console.console_session import make_router
from agent_rft.serve.http.api_app import create_app
from agent_rft.serve.http.auth import Reader, Writer
from agent_rft.serve.stores.key_store import MAX_SESSIONS, SESSION_S, KeyStore, SessionStore
from tests.support.jobs import database_with_tables, fixture_of

URL = "/v1/console/session"
OWN, FOREIGN = {"origin": "http://server"}, {"origin": "http://evil.example"}


class Server:
    """An app with sessions, a route that reads and one that changes. `now` is the clock of the stores."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000.0
        self.database = database_with_tables(folder)
        self.keys = KeyStore(self.database, lambda: self.now)
        self.sessions = SessionStore(self.database, self.keys, lambda: self.now)
        self.key, self.token = self.keys.create("ann", ["write"])

    def browser(self, base_url: str = "http://server", public_url: str | None = None) -> httpx.AsyncClient:
        """A client that keeps cookies, of an app whose cache of keys is new."""
        routes = APIRouter(tags=["things"])

        @routes.get("/things")
        async def read(key: Reader) -> str:
            return key.id

        @routes.post("/things")
        async def change(key: Writer) -> str:
            return key.id

        routers = [make_router(self.sessions, public_url=public_url), routes]
        app = create_app(routers, self.keys, sessions=self.sessions, public_url=public_url)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url)

    async def log_in(self, browser: httpx.AsyncClient, origin: str = "http://server") -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}", "origin": origin}
        return await browser.post(URL, headers=headers)


server = fixture_of(Server)


async def test_a_browser_logs_in_with_a_key_and_goes_on_with_a_cookie(server: Server) -> None:
    async with server.browser() as browser:
        assert (await browser.get("/v1/things")).json()["error"]["code"] == "missing_api_key"
        answer = await server.log_in(browser)
        shown = {"id": server.key.id, "name": "ann", "scopes": ["write"]}
        assert answer.json() == {"object": "console.session", "key": shown, "read_only": False}
        assert (await browser.get("/v1/things")).json() == server.key.id
        assert (await browser.get(URL)).json() == answer.json()
        assert (await browser.post("/v1/things", headers=OWN)).json() == server.key.id


@pytest.mark.parametrize(("origin", "secure"), [("http://server", False), ("https://server", True)])
async def test_no_script_reads_the_cookie_and_no_other_page_sends_it(server: Server, origin: str, secure: bool) -> None:
    async with server.browser() as browser:
        cookie = (await server.log_in(browser, origin)).headers["set-cookie"]
    value, *flags = cookie.split("; ")
    assert set(flags) - {"Secure"} == {"HttpOnly", "SameSite=strict", "Path=/v1", f"Max-Age={SESSION_S}"}
    assert ("Secure" in flags) == secure
    assert server.token not in cookie and server.key.id not in value


@pytest.mark.parametrize(
    "headers",
    [
        *(FOREIGN, FOREIGN | {"authorization": ""}, {}),
        *({"origin": text} for text in ("null", "", "http://server.evil.example", "http://server@evil.example")),
        *({"origin": text} for text in ("http://[::1", "http://[", "http://[v1.x]:a", "http://", "//", "server")),
    ],
)
async def test_a_change_with_the_cookie_comes_from_the_own_page(server: Server, headers: dict[str, str]) -> None:
    async with server.browser() as browser:
        await server.log_in(browser)
        answer = await browser.post("/v1/things", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")
        assert (await browser.delete(URL, headers=headers)).status_code == 403
        by_key = {**headers, "authorization": f"Bearer {server.token}"}
        assert (await browser.post("/v1/things", headers=by_key)).status_code == 200


@pytest.mark.parametrize(
    ("public_url", "origin", "status"),
    [
        (None, "http://server", 200),
        (None, "https://server", 200),  # a proxy with TLS, of which the server knows nothing
        ("https://server", "https://server", 200),
        ("https://server", "http://server", 403),
        ("https://server", "https://server:444", 403),
        ("https://server", "http://[::1", 403),
        ("https://other", "https://server", 403),
        ("https://other", "https://other", 200),  # the proxy has changed the header Host
    ],
)
async def test_the_scheme_counts_only_with_a_public_url(
    server: Server, public_url: str | None, origin: str, status: int
) -> None:
    async with server.browser("https://server", public_url) as browser:
        cookie = (await server.log_in(browser, origin)).headers["set-cookie"]
        answer = await browser.post("/v1/things", headers={"origin": origin})
    assert answer.status_code == status
    assert ("; Secure" in cookie) == (public_url or origin).startswith("https:")
    if status == 403:
        error = answer.json()["error"]
        assert error["code"] == "cross_origin" and ("public_url" in error["message"]) == (public_url is not None)


def test_a_key_has_a_bounded_number_of_sessions_and_the_oldest_end(server: Server) -> None:
    other, _ = server.keys.create("bob", ["read"])
    of_other = server.sessions.open(other)
    tokens = []
    for _ in range(MAX_SESSIONS + 2):
        server.now += 1
        tokens.append(server.sessions.open(server.key))
    assert [server.sessions.find(token) for token in tokens] == [None] * 2 + [server.key] * MAX_SESSIONS
    assert server.sessions.find(of_other) == other


async def test_a_session_ends_with_its_key(server: Server) -> None:
    async with server.browser() as browser:
        await server.log_in(browser)
        cookies = browser.cookies
    server.keys.revoke(server.key.id)
    async with server.browser() as browser:
        browser.cookies = cookies
        answer = await browser.get("/v1/things")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "console_session_ended")


async def test_a_session_ends_by_itself_and_when_its_key_expires(server: Server) -> None:
    session = server.sessions.open(server.key)
    short, _ = server.keys.create("bob", ["read"], expires_after_s=60)
    of_short = server.sessions.open(short)
    server.now += 60
    assert server.sessions.find(of_short) is None
    assert server.sessions.find(session) == server.key
    server.now += SESSION_S - 60
    assert server.sessions.find(session) is None


async def test_logging_out_ends_the_session_on_the_server(server: Server) -> None:
    async with server.browser() as browser:
        await server.log_in(browser)
        (stolen,) = browser.cookies.jar
        assert (await browser.delete(URL, headers=OWN)).json() == {"object": "console.session", "deleted": True}
        assert not browser.cookies
    assert server.sessions.find(str(stolen.value)) is None


async def test_a_session_is_no_key_and_opens_no_session(server: Server) -> None:
    async with server.browser() as browser:
        await server.log_in(browser)
        answer = await browser.post(URL, headers=OWN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_api_key")
        (cookie,) = browser.cookies.jar
        headers = {"authorization": f"Bearer {cookie.value}"}
        assert (await browser.get("/v1/things", headers=headers)).status_code == 401


async def test_servers_on_two_ports_of_a_host_keep_their_sessions_apart(server: Server) -> None:
    async with server.browser("http://127.0.0.1:8000") as one, server.browser("http://127.0.0.1:9000") as other:
        await server.log_in(one)
        other.cookies = one.cookies
        await server.log_in(other)
        assert {cookie.name for cookie in other.cookies.jar} == {"agent_rft_session_8000", "agent_rft_session_9000"}
