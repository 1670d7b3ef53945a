"""The console's page: at `/`, under a policy without inline scripts and without other hosts."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from agent_rft.serve.console.console_files import BUNDLE, mount_console
from agent_rft.serve.http.api_app import create_app
from tests.support.api import FakeKeys


def app_of(folder: Path = BUNDLE) -> FastAPI:
    app = create_app([], FakeKeys())
    mount_console(app, folder)
    return app


def browser(folder: Path = BUNDLE) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app_of(folder)), base_url="http://server")


async def test_the_page_loads_its_own_files_and_nothing_else() -> None:
    async with browser() as client:
        page = await client.get("/")
        assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
        named = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        assert sorted(named) == ["/console/console.css", "/console/console.js", "data:,"]
        assert not re.search(r"<script(?![^>]*src=)|<style|style=| on\w+=", page.text)
        for name in named[1:]:
            assert (await client.get(name)).status_code == 200


@pytest.mark.parametrize("path", ["/", "/console/console.js", "/console/index.html"])
async def test_each_file_has_the_policy(path: str) -> None:
    async with browser() as client:
        headers = (await client.get(path)).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"


async def test_browsers_ask_whether_a_file_changed() -> None:
    async with browser() as client:
        first = await client.get("/console/console.js")
        again = await client.get("/console/console.js", headers={"if-none-match": first.headers["etag"]})
    assert (first.headers["cache-control"], again.status_code) == ("no-cache", 304)


@pytest.mark.parametrize(
    "path", ["/console/nothing.js", "/console/../console_files.py", "/console/%2e%2e/console_files.py"]
)
async def test_what_is_not_in_the_bundle_is_a_404_in_the_wire_form(path: str) -> None:
    async with browser() as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_the_bundle_names_no_host_and_evaluates_nothing() -> None:
    text = (BUNDLE / "console.js").read_text()
    hosts = set(re.findall(r"https?://([\w.-]+)", text))
    assert hosts <= {"svelte.dev", "www.w3.org"}, "links to Svelte's error texts and names of XML spaces only"
    assert not re.search(r"\beval\(|new Function\(|\.innerHTML=[^=]*\+", text)
