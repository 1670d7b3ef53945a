"""The console's rollouts in a real browser: found by filters, read as a conversation, compared, and followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.console.conftest import Site
from tests.support.browser import PHONE, WIDE

Open = Callable[..., Any]
CELLS = "tbody td:nth-child(3)"
"""The row of each rollout."""


def test_filters_are_in_the_address_and_lead_to_a_rollout(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.job}/rollouts?step=3")  # where a point of a curve leads
    page.get_by_text("40 rollouts.").wait_for()
    page.locator("[name=tool]").select_option("cat")
    page.locator("[name=min_reward]").fill("0.9")
    page.locator("[name=text]").fill("COMPANY 2 in")
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash.includes('text=COMPANY') && location.hash.includes('min_reward=0.9')")
    page.wait_for_function(
        "[...document.querySelectorAll('tbody tr')].every((row) => row.cells[2].textContent === '2')"
    )
    page.locator("tbody th a").first.click()
    page.get_by_role("heading", name="row 2").wait_for()
    page.go_back()
    page.get_by_role("button", name="Clear filters").click()
    page.locator("[name=file]").select_option("test-after")
    page.get_by_text("8 rollouts.").wait_for()


def test_a_step_without_rollouts_says_which_have_some(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.job}/rollouts?step=77")
    assert "available: 0, 1, 2, 3" in page.get_by_role("alert").inner_text()


def test_a_rollout_is_read_as_a_conversation(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.job}/rollouts/step-000003.0")
    page.locator(".message.user").wait_for()
    text = page.locator("main").inner_text()
    assert "what was net income of company 0" in text and "→ " in text and "vorzen/2013/income" in text
    assert "brevity" in text and "policy version" in text and "I look at" not in text
    page.locator("summary", has_text="Reasoning").first.click()
    assert "I look at" in page.locator(".trace").inner_text()
    page.locator("summary", has_text="Tokens").first.click()
    page.locator(".token").nth(3).click()
    assert "log-probability -" in page.get_by_role("status").inner_text()
    page.get_by_label("sample 1, reward").click()
    page.get_by_role("heading", name="sample 1").wait_for()


def test_parallel_calls_without_ids_are_all_read(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.hostile}/rollouts/step-000004.1")
    earlier = page.locator(".message.assistant").first
    earlier.get_by_text("calls cat").wait_for()
    assert earlier.locator(".call .role").all_inner_texts() == ["calls search", "calls search", "calls cat"]
    assert page.locator(".message.tool .role").all_inner_texts() == ["result"] * 3


def test_grade_shows_whether_the_rollout_is_trained_on(opened: Open, site: Site) -> None:
    for number, use in ((1, "used for training"), (2, "not used for training: the grader answered train: false")):
        page = opened(f"#/jobs/{site.hostile}/rollouts/step-000004.{number}")
        page.locator(".grades").get_by_text(use, exact=True).wait_for()


def test_a_discarded_rollout_says_why(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.job}/rollouts?finish=discarded&step=2")
    page.locator("tbody th a").click()
    page.get_by_text("Discarded: tool_failed.").wait_for()


def test_two_rollouts_are_read_side_by_side(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.job}/rollouts?file=test-after")
    for number in (0, 1):
        page.get_by_label(f"Compare test-after.{number}").check()
    page.get_by_role("link", name="Read the two side by side").click()
    page.locator(".pair .trace").nth(1).wait_for()
    assert [page.locator(".pair h2").nth(i).inner_text() for i in (0, 1)] == [
        "test after, row 0, sample 0",
        "test after, row 1, sample 0",
    ]


def test_a_row_is_followed_through_the_steps(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.job}/rollouts?view=rows&rows_by=widest")
    page.locator("svg.histogram").first.wait_for()
    page.get_by_role("link", name="row 0").click()
    slider = page.get_by_role("slider", name="File")
    slider.wait_for()
    slider.press("Home")
    page.get_by_role("heading", name="test before 1 of 7").wait_for()
    page.get_by_role("button", name="Next").click()
    page.get_by_role("heading", name="validation at step 0 2 of 7").wait_for()
    assert "file=validation-000000" in page.url
    page.get_by_label("sample 1, reward").click()
    page.get_by_text("policy version 0").first.wait_for()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_what_models_wrote_stays_text_and_fits(opened: Open, site: Site, size: dict[str, int]) -> None:
    page = opened(f"#/jobs/{site.hostile}/rollouts/step-000004.0", size=size)
    page.locator(".trace").wait_for()
    assert page.locator("script").count() == 1 and page.locator("main img").count() == 0
    assert len(page.locator("main").inner_text()) < 100_000, "the long line is shown in parts"
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.get_by_role("button", name="Show").first.click()


def test_a_rollout_that_is_gone_is_told(opened: Open, site: Site) -> None:
    page = opened(f"#/jobs/{site.job}/rollouts/step-000009.0")
    assert "does not exist or was removed" in page.get_by_role("alert").inner_text()
