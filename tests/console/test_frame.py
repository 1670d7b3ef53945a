"""The console's frame in a real browser: login, pages, keys, screens, and texts that attack it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.console.conftest import Site, state_of
from tests.support.browser import PHONE
from tests.support.sockets import check_ports

Open = Callable[..., Any]
EMPTY_TOKEN = ""
ONCE = "once-" + "A" * 43
"""A key like that of `agent-rft train --open`."""


def shown(page: Any) -> Any:
    """The page below the bar, once it is there and has asked for all it shows."""
    page.wait_for_load_state("networkidle")
    return page.locator("main")


def test_one_logs_in_with_a_key_and_out_again(opened: Open, site: Site) -> None:
    page = opened(token=EMPTY_TOKEN)
    page.get_by_label("API key").fill("sk-rft-wrong")
    page.keyboard.press("Enter")
    assert "The API key is invalid, expired or revoked" in page.get_by_role("alert").inner_text()
    page.get_by_label("API key").fill(site.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Models").click()
    page.wait_for_url("**/#/models")
    assert site.token not in page.evaluate("JSON.stringify([document.cookie, {...localStorage}, location.href])")
    page.reload()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("API key").wait_for()
    page.reload()
    page.get_by_label("API key").wait_for()


@pytest.mark.parametrize("once", [False, True])
def test_key_in_a_link_to_a_server_logs_nobody_in(opened: Open, site: Site, once: bool) -> None:
    key = ONCE if once else site.token
    page = opened(f"#key={key}", token=EMPTY_TOKEN)
    page.get_by_label("API key").wait_for()
    assert page.url == f"{site.url}#/jobs" and page.get_by_label("API key").input_value() == ""
    page.reload()
    page.get_by_label("API key").wait_for()


@pytest.mark.parametrize("once", [False, True])
def test_key_in_a_link_does_not_replace_a_session(opened: Open, site: Site, once: bool) -> None:
    with state_of(site) as state:
        token = state.keys.create("attacker", ["write"])[1]
    page = opened(f"#key={ONCE if once else token}", token=site.token)
    page.get_by_role("navigation").wait_for()
    assert page.url == f"{site.url}#/jobs"
    page.get_by_text("ann", exact=True).wait_for()
    page.reload()
    page.get_by_text("ann", exact=True).wait_for()


def test_one_time_key_is_ignored_unless_the_page_is_on_the_loopback_address(browser: Any, site: Site) -> None:
    context = browser.new_context()
    sent: list[str] = []

    def forward(route: Any) -> None:
        request = route.request
        sent.append(f"{request.method} {urlsplit(request.url).path}")
        local = request.url.replace("http://rft.example/", site.url)
        route.fulfill(response=context.request.fetch(local, method=request.method))

    context.route("http://rft.example/**", forward)
    page = context.new_page()
    page.goto(f"http://rft.example/#key={ONCE}")
    page.get_by_label("API key").wait_for()
    assert page.url == "http://rft.example/#/jobs"
    assert "GET /v1/console/session" in sent and "POST /v1/console/session" not in sent
    context.close()


def test_each_page_opens_by_its_address_without_a_complaint(opened: Open, site: Site) -> None:
    page = opened()
    for address in site.addresses(site.job):
        page.goto(f"{site.url}{address}")
        assert shown(page).locator("h1").inner_text() != "", address
    page.goto(f"{site.url}#/no/such/page")
    assert "This page does not exist" in shown(page).inner_text()


def test_on_a_phone_no_page_is_wider_than_the_screen(opened: Open, site: Site) -> None:
    page = opened(size=PHONE)
    for address in site.addresses(site.job):
        page.goto(f"{site.url}{address}")
        shown(page).locator("h1").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address


def test_foreign_text_is_text_on_every_page(opened: Open, site: Site) -> None:
    page = opened()
    for address in site.addresses(site.hostile):
        page.goto(f"{site.url}{address}")
        shown(page).locator("h1").wait_for()
        assert "owned" not in page.title(), address
        assert page.locator("script").count() == 1 and page.locator("img").count() == 0, address
        text = page.locator("body").inner_text()
        assert "\x1b" not in text and "\u202e" not in text, address
        assert len(text) < 1_000_000, address


def test_a_revoked_key_is_told_and_one_logs_in_again(opened: Open, site: Site) -> None:
    with state_of(site) as state:
        key, token = state.keys.create("short", ["read"])
        page = opened("#/models", token=token)
        page.get_by_role("navigation").wait_for()
        state.keys.revoke(key.id)
    status = "fetch('/v1/console/session').then((answer) => answer.status)"
    while page.evaluate(status) != 401:  # the server asks its database about a key once in a second
        page.wait_for_timeout(100)
    page.reload()
    page.get_by_label("API key").wait_for()


def test_the_keyboard_reaches_the_pages_and_colors_are_kept(opened: Open, site: Site) -> None:
    page = opened("#/models")
    page.get_by_role("link", name="agent-rft").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Jobs"
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/jobs")
    page.locator("main:focus").wait_for()  # so that a screen reader reads the new page
    page.get_by_label("Colors").select_option("dark")
    page.reload()
    page.get_by_role("navigation").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_run_without_a_server_is_shown_by_its_address(opened: Open, site: Site) -> None:
    command = [sys.executable, "-m", "agent_rft.serve.host.run_console", str(site.folder / "runs" / site.job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as console:
        assert console.stdin is not None and console.stdout is not None
        address = console.stdout.readline().strip()
        check_ports(console.pid, "console")
        page = opened(address, token=EMPTY_TOKEN)
        page.get_by_role("navigation").wait_for()
        assert page.get_by_role("link", name="Keys").count() == 0, "what only a server has is left out"
        assert "#key=" not in page.url
        again = opened(address, token=EMPTY_TOKEN)
        again.get_by_label("API key").wait_for()  # the key has worked once
        page.get_by_role("list", name="Jobs").get_by_role("link").click()
        page.get_by_role("tab", name="Checkpoints").click()
        page.get_by_role("button", name="Call step 3").click()
        said = page.get_by_role("dialog").inner_text()
        assert "agent-rft serve --config serve.yaml" in said and f"{address.split('#')[0]}v1" not in said
        console.stdin.close()
        assert console.wait(timeout=60) == 0, "it ends with the command that started it"
