"""The console of a running server in Chromium: its form creates a job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.browser import WIDE, Watched, chromium


@contextmanager
def console(url: str, key: str) -> Iterator[Watched]:
    """Yield a window with the list of jobs, after a login.

    Args:
        url: The server's URL without /v1.
        key: An API key that may write.
    """
    with chromium() as browser:
        window = Watched(browser.new_page(viewport=WIDE), url.split("/")[2])
        window.page.goto(f"{url}#/jobs")
        window.page.get_by_label("API key").fill(key)
        window.page.get_by_role("button", name="Log in").click()
        yield window


def create_by_form(page: Any, request: Mapping[str, Any], rows: Path) -> str:
    """Create a job by the form and return its id.

    Args:
        page: The list of jobs.
        request: The body of the request. Its training file is on the server.
        rows: A file to upload, before that of the request is chosen.
    """
    page.get_by_role("link", name="New job").click()
    page.get_by_label("File with one JSON object per line").set_input_files(rows)
    page.get_by_label("model (required)").select_option(request["model"])
    files = page.get_by_label("training_file (required)")
    files.locator("option:checked", has_text=rows.name).wait_for(state="attached")  # an upload is chosen when it ends
    files.select_option(request["training_file"])
    page.get_by_role("tab", name="JSON").click()
    box = page.get_by_role("textbox", name="Request")
    assert json.loads(box.input_value())["training_file"] == request["training_file"]
    box.fill(json.dumps(request))
    page.get_by_text("The form has no problems").wait_for()
    page.get_by_role("button", name="Create job").click()
    page.wait_for_url("**/#/jobs/ftjob-*")
    return str(page.url.rpartition("/")[2])
