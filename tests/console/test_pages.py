"""New jobs by a form, looks before training, comparisons, fleet, models and keys, clicked through in a real browser."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.serve.stores.job_store import JobStore
from tests.console.conftest import Site
from tests.console.test_jobs import state_of
from tests.support.builders import raw_job
from tests.support.paths import ROOT

Open = Callable[..., Any]
ROW = json.dumps({"messages": [{"role": "user", "content": "What is the debt?"}], "reference_answer": "7"})


def rows(folder: Path, *lines: str) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines))
    return path


def fill_in(page: Any, file: Path) -> None:
    """Upload the rows and choose the model: the least that a job needs beside what the form begins with."""
    page.get_by_label("File with one JSON object per line").set_input_files(file)
    page.get_by_text("required key is missing").first.wait_for()
    page.get_by_label("model (required)").select_option("gpt-5")
    page.get_by_text("The form has no problems").wait_for()


def test_a_job_is_checked_beside_the_form_and_created(opened: Open, site: Site, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "ledger" / "base", site.folder, dirs_exist_ok=True)  # the model gpt-5
    page = opened("#/jobs/new")
    fill_in(page, rows(tmp_path, *[ROW] * 10, "{"))
    page.get_by_label("seed").fill("x")
    page.get_by_role("tab", name="JSON").click()
    page.get_by_role("button", name="seed").click()  # leads from the list to its field
    assert page.evaluate("document.activeElement.value") == "x"
    page.get_by_label("seed").fill("7")
    page.get_by_text("The form has no problems").wait_for()
    page.get_by_role("button", name="Create job").click()
    page.get_by_role("button", name="training_file, line 11").wait_for()
    assert "#/jobs/new" in page.url
    page.get_by_label("File with one JSON object per line").set_input_files(rows(tmp_path, *[ROW] * 11))
    page.get_by_text("The form has no problems").wait_for()
    page.get_by_role("tab", name="JSON").click()
    assert json.loads(page.get_by_role("textbox", name="Request").input_value())["seed"] == 7
    page.get_by_role("button", name="Create job").click()
    page.wait_for_url("**/#/jobs/ftjob-*")


def test_a_look_before_training_is_begun_by_the_form_and_cancelled(opened: Open, site: Site, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "ledger" / "base", site.folder, dirs_exist_ok=True)
    page = opened("#/jobs/new")
    fill_in(page, rows(tmp_path, *[ROW] * 12))
    with page.expect_request("**/jobs/check?samples=8"):  # so that a look over the operator's limit is not created
        page.get_by_role("button", name="Check readiness").click()
    page.wait_for_url("**/#/readiness/ftready-*")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("The job was cancelled").wait_for()
    page.get_by_role("link", name="Readiness").click()
    page.get_by_role("cell", name="cancelled").wait_for()


def test_a_copied_request_names_the_secrets_that_are_missing(opened: Open, site: Site) -> None:
    page = opened()
    tool = {"name": "search", "server_url": "https://tools.example/", "headers": {"Authorization": "Bearer secret-1"}}
    file = {"name": "rows.jsonl", "mimeType": "application/jsonl", "buffer": ROW.encode()}
    form = {"purpose": "fine-tune", "file": file}
    headers = {"authorization": f"Bearer {site.token}"}
    made = page.request.post(f"{site.url}v1/files", headers=headers, multipart=form).json()
    tracker = {"type": "wandb", "wandb": {"project": "ledger", "tags": ["nightly"]}}
    body = raw_job(tools=[tool]) | {"model": "gpt-5", "training_file": made["id"], "integrations": [tracker]}
    job = page.request.post(f"{site.url}v1/fine_tuning/jobs", headers=headers, data=body).json()
    page.goto(f"{site.url}#/jobs/new?from={job['id']}")
    page.get_by_text("1 secret must be entered again").wait_for()
    assert page.get_by_label("server_url").first.input_value() == "https://tools.example/"
    page.get_by_role("tab", name="JSON").click()
    assert json.loads(page.get_by_role("textbox", name="Request").input_value())["integrations"] == [tracker]


def test_two_evaluations_are_chosen_and_compared(opened: Open, site: Site) -> None:
    page = opened("#/compare")
    for side, name in enumerate(("test-before", "test-after")):
        box = page.get_by_role("group").nth(side)
        box.get_by_label("Job").select_option(site.job)
        box.get_by_label("Evaluation").select_option(name)
    page.get_by_role("heading", name="test-after against test-before").wait_for()
    assert page.get_by_role("table", name="Changes with 95 % intervals").get_by_role("row").count() == 7
    page.get_by_label("Only rows with this text").fill("company 3")
    assert page.get_by_role("table", name="Compared rows").get_by_role("row").count() == 2
    link = page.get_by_role("link", name="Rollout of row").first
    trace = link.get_attribute("href").partition("?trace=")[2]
    link.click()
    page.get_by_text("1 rollout.", exact=True).wait_for()
    page.locator("tbody th a").click()
    page.get_by_text(trace, exact=True).wait_for()


def test_a_page_asks_again_when_a_busy_server_said_to(opened: Open, site: Site) -> None:
    page = opened("#/compare")
    busy = {"error": {"message": "Not ready: another comparison is running.", "type": "server_error"}}
    headers = {"Retry-After": "1"}
    page.route("**/comparison?*", lambda route: route.fulfill(status=503, headers=headers, json=busy), times=1)
    sides = f"{site.job}:test-before,{site.job}:test-after"
    page.goto(f"{site.url}#/compare?sides={sides}")
    page.get_by_text("another comparison is running").wait_for()
    page.get_by_role("heading", name="test-after against test-before").wait_for()


def test_the_fleet_says_who_waits_for_whom(opened: Open, site: Site) -> None:
    endpoint = {"limit": 8, "in_flight": 2, "queued": 5, "breaker": "open", "calls": 9, "failed": 1, "retries": 2}
    endpoint |= {"name": "tool 'search'", "down_s": 20.0, "delayed_calls": 64}
    recent = {"recent_s": 60.0, "recent_calls": 4, "recent_errors": {"timeout": 3}, "errors": {"timeout": 3}}
    state = {
        "at": time.time(),
        "engines": [{"name": "engine-0", "state": "ready", "rollouts": 3}],
        "actors": [
            {
                "name": "engine-0",
                "work": [{"trace_id": "trace_1", "stage": "grading", "duration_s": 9.0}],
                "silent_s": 0.0,
            },
            {"name": "learner rank 0", "work": [], "silent_s": 0.0},
        ],
        "endpoints": [endpoint | recent | {"latency_p50_s": 0.2, "latency_p95_s": None}],
    }
    RunFolder(site.folder / "runs" / site.job).status_file.write_text(json.dumps(state))
    page = opened(f"#/fleet?job={site.job}")
    page.get_by_text("The learner waits for the rollouts of the next batch; 3 are in flight.").wait_for()
    for text in ("Rollouts wait for the grader, the longest for 9 s.", "tool 'search' fails", "timeout 3", "200 ms"):
        assert page.get_by_text(text).first.is_visible(), text
    assert page.get_by_text("down for 20 s, 64 calls delayed").is_visible()
    assert page.get_by_text("none", exact=True).count() == 0
    with state_of(site) as server:
        store = JobStore(server.database)
        for left_running in store.list_with_status("running"):  # by tests of other files
            store.move(left_running.id, "cancelled")
    page.goto(f"{site.url}#/fleet")
    page.get_by_text("No job is running.").wait_for()


def test_a_key_is_shown_once_and_revoked(opened: Open, site: Site) -> None:
    page = opened("#/keys")
    page.get_by_role("button", name="Add key").click()
    page.get_by_label("Name").fill("ci")
    page.get_by_label("Scope").select_option("read")
    page.get_by_role("button", name="Create").click()
    made = page.locator("[data-key]").inner_text()
    reader = opened("#/keys", token=made)
    reader.get_by_text("Only admins can see keys.").wait_for()
    page.get_by_role("button", name="Done").click()
    assert page.get_by_text(made).count() == 0
    page.get_by_role("button", name="Revoke ci").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    page.get_by_role("cell", name="revoked").wait_for()


def test_a_key_whose_number_fields_were_emptied_works_until_it_is_revoked(opened: Open) -> None:
    page = opened("#/keys")
    page.get_by_role("button", name="Add key").click()
    page.get_by_label("Name").fill("forever")
    page.get_by_label("Lifetime in days").fill("")
    page.get_by_label("Requests per minute").fill("5")
    page.get_by_label("Requests per minute").fill("")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("button", name="Done").click()
    cells = page.get_by_role("row").filter(has_text="forever").get_by_role("cell")
    assert [cells.nth(at).inner_text() for at in (5, 6)] == ["never", "default"]


def test_models_are_filtered_and_tried(opened: Open) -> None:
    page = opened("#/models")
    page.get_by_label("Only models with this text").fill("gpt-5")
    page.get_by_role("button", name="Call gpt-5", exact=True).click()
    assert 'model="gpt-5"' in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
