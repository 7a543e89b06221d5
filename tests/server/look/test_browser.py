"""The page in a browser, Debian's Chromium: by mouse, by keyboard, on a phone, under attack."""

import json
import shutil
from pathlib import Path

import httpx
import pytest

from ...conftest import DATA
from .conftest import ATTACKS, drawn_items, numbers_of, scored_items

playwright = pytest.importorskip("playwright.sync_api", reason="`make test-browser` installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="`make test-browser` installs Chromium"),
]


@pytest.fixture(scope="module")
def browser():
    playwright.expect.set_options(timeout=60_000)  # a busy machine takes seconds
    with playwright.sync_playwright() as runtime:
        browser = runtime.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    context = browser.new_context()
    page = context.new_page()
    yield page
    context.close()


def paths(url: str) -> list[str]:
    """Return the paths of all pages."""
    with httpx.Client(base_url=url) as client:
        return ["/", "/compare", *(f"/record/{number}" for number in numbers_of(client))]


def test_a_person_filters_opens_and_labels_by_mouse(page, serve_page, tmp_path: Path):
    page.goto(serve_page(scored_items("a plum")))
    rows = page.locator("tr[data-n]")
    playwright.expect(rows).to_have_count(6)
    page.locator("select[name=service]").select_option("video")
    playwright.expect(rows).to_have_count(2)
    page.locator("select[name=judge]").select_option("reference")
    playwright.expect(rows).to_have_count(1)
    rows.first.get_by_role("link").click()
    playwright.expect(page.get_by_role("heading", level=1)).to_contain_text("0.25")
    playwright.expect(page.locator("img.frames").first).to_have_js_property("naturalWidth", 320)
    wrong = page.get_by_role("button", name="Wrong")
    wrong.click()
    playwright.expect(wrong).to_have_attribute("aria-pressed", "true")
    page.get_by_role("link", name="Back to the table").click()
    playwright.expect(rows.first).to_contain_text("wrong")
    assert json.loads((tmp_path / "labels.jsonl").read_text())["label"] == "wrong"


def test_a_person_filters_opens_and_labels_by_keyboard(page, serve_page, tmp_path: Path):
    page.goto(serve_page(scored_items("a plum")))
    rows = page.locator("tr[data-n]")
    page.keyboard.press("/")
    page.keyboard.type("it saw")
    page.wait_for_url("**text=it*saw**")
    playwright.expect(rows).to_have_count(2)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    playwright.expect(rows.first).to_have_attribute("aria-current", "true")
    page.keyboard.press("Enter")
    page.wait_for_url("**at=0")  # loaded, with what handles keys
    page.keyboard.press("r")
    playwright.expect(page.get_by_role("button", name="Right")).to_have_attribute(
        "aria-pressed", "true"
    )
    page.keyboard.press("j")  # the next one
    page.wait_for_url("**at=1")
    page.keyboard.press("u")
    playwright.expect(page.get_by_role("button", name="Unclear")).to_have_attribute(
        "aria-pressed", "true"
    )
    page.keyboard.press("Escape")
    playwright.expect(rows).to_have_count(2)
    labels = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [each["label"] for each in labels] == ["right", "unclear"]
    assert len({each["judge"] for each in labels}) == 2


def test_a_person_labels_the_sample_by_keyboard(page, serve_page, tmp_path: Path):
    page.goto(serve_page(drawn_items()))
    page.get_by_role("link", name="To label").click()
    page.wait_for_url("**/to-label")  # loaded, with what handles keys
    playwright.expect(page.locator("main")).to_contain_text("3 scores of a random sample")
    page.keyboard.press("j")  # skips one
    page.wait_for_url("**after=*")
    for left, key in ((2, "s"), (1, "f"), (0, "u")):
        page.keyboard.press(key)
        text = f"{left} score" if left else "No score is to be labeled"
        playwright.expect(page.locator("main")).to_contain_text(text)
        page.wait_for_load_state()  # with what handles keys
    labels = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [each["success"] for each in labels] == [True, False, None]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(browser, serve_page, scheme: str):
    """WCAG AA: 4.5 to 1 for each text, against the background that it is drawn on."""
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    url = serve_page(scored_items("a plum"))
    for path in paths(url):
        page.goto(url + path)
        assert page.evaluate(LOW_CONTRAST) == [], path
    context.close()


def test_a_phone_shows_all_without_scrolling_the_page_sideways(browser, serve_page):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    url = serve_page(scored_items("plum" * 40))
    for path in paths(url):
        page.goto(url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    page.get_by_role("button", name="Right").tap()
    playwright.expect(page.get_by_role("button", name="Right")).to_have_attribute(
        "aria-pressed", "true"
    )
    context.close()


def test_nothing_that_a_policy_wrote_runs_or_loads(page, serve_page):
    url = serve_page([item for attack in ATTACKS for item in scored_items(attack)])
    foreign, happened = [], []
    page.on("request", lambda request: request.url.startswith(url) or foreign.append(request.url))
    page.on("dialog", lambda dialog: (happened.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: message.type == "error" and happened.append(message.text))
    page.on("pageerror", lambda error: happened.append(str(error)))
    for path in paths(url):
        page.goto(url + path)
    assert (foreign, happened) == ([], [])


#: Returns the texts whose contrast is below what WCAG AA asks for.
LOW_CONTRAST = (DATA / "look" / "low_contrast.js").read_text()
