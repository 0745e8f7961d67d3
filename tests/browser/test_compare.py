"""The Compare page in a real browser, light and dark, with the synthetic engine."""

import re

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser

QUESTION = "What does it cost, what does it save?"


@pytest.fixture(scope="module")
def address():
    with served(FOCUS_LAB_ENGINE="tests.app.fake_compare:make", FAKE_SECONDS="3", FAKE_ROWS="4") as url:
        yield url


@pytest.fixture(params=["light", "dark"])
def page(request, new_page, address):
    page = new_page(request.param)
    page.goto(f"{address}/compare?compare_view=Measure")
    page.get_by_role("heading", name=QUESTION).wait_for(timeout=60_000)
    return page


def run_button(page):
    return page.get_by_role("button", name=re.compile("Run"))


def test_a_run_shows_progress_then_partial_rows_then_the_whole(page):
    page.locator(".js-plotly-plot").first.wait_for(timeout=30_000)
    run_button(page).first.click()
    page.get_by_role("button", name="Stop").wait_for(timeout=10_000)
    page.get_by_text("partial", exact=True).first.wait_for(timeout=10_000)
    run_button(page).first.wait_for(timeout=30_000)
    said = re.compile(r"On this text at 1,024 tokens, Focus K=16 q4k1 keeps 30\.0 %")
    page.get_by_text(said).wait_for(timeout=30_000)
    assert page.get_by_text("partial", exact=True).count() == 0
    plot = page.locator(".js-plotly-plot").first
    assert plot.locator(".scatterlayer .trace").count() >= 5
    assert plot.get_by_text("costs more and").count() == 1
    background = plot.locator(".main-svg").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert background in ("rgba(0, 0, 0, 0)", "transparent")
    axis = plot.locator(".ytick text").first.evaluate("e => getComputedStyle(e).fill")
    paper = page.locator(".stApp").evaluate("e => getComputedStyle(e).backgroundColor")
    assert contrast(axis, paper) > 3


def test_tabs_gates_and_errors_work_where_they_are(page):
    page.get_by_role("tab", name="Soft to hard gate").click()
    page.get_by_role("button", name=re.compile("Measure the gates")).click()
    page.get_by_text("hard (served)", exact=False).first.wait_for(timeout=30_000)
    page.get_by_text(re.compile("A soft gate computes every pair")).wait_for()
    page.get_by_role("button", name="4,096").click()
    page.get_by_text(re.compile("were asked for")).wait_for(timeout=10_000)
    page.get_by_role("button", name=re.compile("Take the lengths up to 1,024")).click()
    run_button(page).first.wait_for(timeout=10_000)
    assert page.get_by_text("Traceback").count() == 0


@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_a_ticked_line_of_the_choice_is_measured_and_a_preset_is_searched(page):
    page.get_by_role("tab", name="Choose").click()
    page.get_by_text(re.compile("what was not measured has no rank")).wait_for(timeout=30_000)
    page.locator(".stDataFrame").first.click(position={"x": 16, "y": 54})
    page.get_by_role("button", name="Compare 1 on your text").click()
    page.get_by_role("tab", name="Measure", selected=True).wait_for(timeout=30_000)
    page.locator(".st-key-compare_same").get_by_role("combobox").click()
    page.get_by_role("option", name="Same pairs kept").click()
    page.get_by_role("button", name=re.compile("Find the settings")).click()
    page.get_by_role("button", name="Stop").wait_for(timeout=10_000)
    page.get_by_text(re.compile("Settings found: same pairs kept")).wait_for(timeout=30_000)
    run_button(page).first.wait_for(timeout=30_000)
    assert page.get_by_text("Traceback").count() == 0


@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_choices_are_no_steps_of_back_and_stay_with_the_page(page):
    page.get_by_role("tab", name="Choose").click()
    page.get_by_text(re.compile("what was not measured has no rank")).wait_for(timeout=30_000)
    steps = page.evaluate("history.length")
    page.get_by_role("radio", name="Memory").click()
    page.wait_for_url(re.compile("compare_rank=memory"))
    assert page.evaluate("history.length") == steps
    page.get_by_role("link", name="KV cache").click()
    page.get_by_role("heading", name="What must be remembered").wait_for(timeout=30_000)
    assert "compare_" not in page.url
    page.go_back()
    page.get_by_role("heading", name=QUESTION).wait_for(timeout=30_000)
    page.get_by_text(re.compile("needs least")).wait_for(timeout=30_000)


def contrast(one: str, other: str) -> float:
    """Contrast of two CSS colours, as WCAG counts it."""

    def light(css: str) -> float:
        parts = [float(x) / 255 for x in re.findall(r"[\d.]+", css)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
