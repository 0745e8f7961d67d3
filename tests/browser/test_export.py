"""Files saved in a real browser, and opened in another one that has no network; light and dark."""

import re

import pytest

from tests.app.fake_vision import write_models
from tests.browser.serving import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address():
    with served(FOCUS_LAB_ENGINE="tests.app.fake_compare:make") as url:
        yield url


@pytest.fixture(params=["light", "dark"])
def page(request, new_page):
    return new_page(request.param, accept_downloads=True)


@pytest.fixture
def offline(new_page, page):
    """A page without a network, in the same theme; it notes what it tried to load."""
    other, tried = new_page(page.scheme, 1200, 900, offline=True), []
    other.on("request", lambda r: tried.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else 0)
    yield other
    assert tried == []


def save(page, area, kind, folder):
    area.get_by_role("button", name="Save").click()
    with page.expect_download(timeout=30_000) as download:
        area.get_by_role("menuitem", name=re.compile(f"^{kind}")).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def size_of(page, path):
    """Width and height of a picture file."""
    page.goto(path.as_uri())
    image = page.locator("img").first
    return image.evaluate("e => e.naturalWidth"), image.evaluate("e => e.naturalHeight")


def dark_of(colour):
    return sum(float(x) for x in re.findall(r"[\d.]+", colour)[:3]) < 380


def test_a_figure_as_picture_page_and_table(page, offline, address, tmp_path):
    page.goto(f"{address}/compare?compare_view=Measure")
    area = page.locator(".st-key-compare_frontier_saveable")
    area.locator(".js-plotly-plot .point").first.wait_for(timeout=60_000)
    shown = area.locator(".js-plotly-plot").bounding_box()
    png = save(page, area, "PNG", tmp_path)
    width, _ = size_of(offline, png)
    assert abs(width - 2 * shown["width"]) < 8
    svg = save(page, area, "SVG", tmp_path)
    text = svg.read_text("utf-8")
    assert "@font-face" in text
    assert "Prefill time" in text
    offline.goto(svg.as_uri())
    assert offline.evaluate("document.documentElement.tagName") == "svg"
    assert dark_of(offline.locator("rect").first.evaluate("e => getComputedStyle(e).fill")) == (page.scheme == "dark")
    html = save(page, area, "HTML", tmp_path)
    assert html.stat().st_size < 6e6
    offline.goto(html.as_uri())
    offline.locator(".js-plotly-plot .point").first.wait_for(timeout=20_000)
    ground = offline.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert dark_of(ground) == (page.scheme == "dark")
    assert offline.get_by_text("window 128 + 4").first.is_visible()
    rows = save(page, area, "CSV", tmp_path).read_text("utf-8").splitlines()
    assert rows[0].startswith("series,")
    assert len(rows) > 4


def test_the_strip_stays_alive_in_its_page(page, offline, address, tmp_path):
    page.goto(f"{address}/?tok=300")
    page.get_by_text("(token 300)").first.wait_for(timeout=60_000)
    area = page.locator(".st-key-overview_strip_saveable")
    html = save(page, area, "HTML", tmp_path)
    offline.goto(html.as_uri())
    offline.get_by_text("(token 300)").first.wait_for()
    offline.locator(".text span.c").nth(40).click()
    assert "(token 300)" not in offline.locator(".say").inner_text()
    assert "sees" in offline.locator(".say").inner_text()
    ground = offline.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert dark_of(ground) == (page.scheme == "dark")
    offline.goto(save(page, area, "SVG", tmp_path).as_uri())
    whole = offline.locator("foreignObject")
    assert "Sir" in whole.text_content()
    width, height = size_of(offline, save(page, area, "PNG", tmp_path))
    assert width > 1000
    assert height > 2000
    rows = save(page, area, "CSV", tmp_path).read_text("utf-8").splitlines()
    assert rows[0].startswith("place,token,id")


def test_a_run_is_saved_and_opened_again_and_its_report_works_offline(page, offline, address, tmp_path):
    page.goto(address)
    page.locator(".fl .text span.c").first.wait_for(timeout=60_000)
    page.get_by_text("live", exact=True).first.wait_for(timeout=20_000)
    page.get_by_role("button", name="Save or open a run").click()
    with page.expect_download(timeout=30_000) as download:
        page.get_by_role("button", name=re.compile("^Trace file")).click()
    trace = tmp_path / download.value.suggested_filename
    download.value.save_as(trace)
    with page.expect_download(timeout=30_000) as download:
        page.get_by_role("button", name=re.compile("^Report")).click()
    report = tmp_path / "report.html"
    download.value.save_as(report)
    offline.goto(report.as_uri())
    offline.get_by_text("What ran").wait_for()
    offline.locator(".fg canvas").first.wait_for(timeout=20_000)
    assert offline.locator(".fm .note").first.inner_text()
    assert offline.locator(".fm").first.bounding_box()["y"] < 900
    offline.locator(".text span.c").nth(40).click()
    assert "sees" in offline.locator("#strip .say").inner_text()
    page.locator("input[type=file]").set_input_files(str(trace))
    page.get_by_text("it needs no model").wait_for(timeout=20_000)
    page.get_by_text("opened", exact=True).first.wait_for()
    wrong = tmp_path / "wrong.npz"
    wrong.write_bytes(b"nothing of the kind")
    page.locator("input[type=file]").set_input_files(str(wrong))
    page.get_by_text("This is not a Trace file").wait_for(timeout=20_000)


def train(page):
    # Tried a second time the run is there already.
    button, curves = (
        page.get_by_role("button", name=re.compile("Train · about|^Train$")),
        page.locator(".st-key-train_curves_saveable"),
    )
    button.or_(curves).first.wait_for(timeout=60_000)
    if not curves.is_visible():
        button.first.click()


def edit(page):
    page.locator(".st-key-edit_try button").click()
    page.locator(".st-key-edit_run button").click()


def card(page):
    page.get_by_text("What it needs on the card").click()


STOPS = {
    "": (["overview_strip"], None),
    "groups": (["groups_map"], None),
    "groups?groups_tab=Groups": (["groups_kinds_keys", "groups_sight"], None),
    "groups?groups_tab=Is+it+grammar%3F": (["groups_agreement"], None),
    "groups?groups_tab=Train": (["train_loads", "train_curves"], train),
    "groups?groups_tab=Collapse": (["collapse_panels", "collapse_parts"], None),
    "groups?groups_tab=Edit": (["edit_mask", "edit_next"], edit),
    "masks": (["masks_canvas", "head_grid"], None),
    "features?layer=1&features_tab=Cost": (["features_codes", "features_bars"], None),
    "xattention?xa_tab=Before+it": (["xattention_canvas", "xattention_before"], None),
    "masks?masks_tab=By+distance": (["by_distance"], None),
    "compare": (["compare_bytes"], card),
    "compare?compare_view=Measure": (["compare_frontier", "compare_speed"], None),
    "compare?compare_view=Frontier": (["compare_pairs"], None),
    "compare?compare_tab=Soft+to+hard+gate": (["gates_figure"], None),
    "compare?compare_tab=Memory": (["compare_memory"], None),
    "vision": (["vision_picture", "vision_curves"], None),
    "vision?vision_tab=All+heads": (["vision_heads"], None),
    "claims?claims_one=xattention-antidiagonal": (["claims_bars", "claims_series"], None),
}
"""Where figures are: the Save menus of each place, and what makes them appear."""
SHOWN = """[...document.querySelectorAll("[class*='_saveable']")].filter((e) => e.checkVisibility())
.map((e) => e.className.match(/st-key-(\\S+)_saveable/)[1])"""


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    models = str(write_models(tmp_path_factory.mktemp("models")))
    engine = "tests.app.fake_every:make"
    with served(FOCUS_LAB_ENGINE=engine, FOCUS_LAB_CACHE=cache, FOCUS_LAB_VISION_MODELS=models) as url:
        yield url


@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_every_save_menu_gives_a_file_of_each_kind(page, offline, every, tmp_path):
    tried = set()
    for stop, (menus, begin) in STOPS.items():
        page.goto(f"{every}/{stop}")
        if begin is not None:
            begin(page)
        for menu in menus:
            area = page.locator(f".st-key-{menu}_saveable")
            area.get_by_role("button", name="Save").wait_for(timeout=60_000)
            area.locator(".js-plotly-plot .main-svg, canvas, .text span.c").first.wait_for(timeout=20_000)
            check_files(page, offline, area, tmp_path)
            tried.add(menu)
        there = page.evaluate(SHOWN)
        assert set(there) <= tried | set(menus), stop


def check_files(page, offline, area, folder):
    """Save an area as each kind, and look at each file as its reader would."""
    png = save(page, area, "PNG", folder)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert min(size_of(offline, png)) > 100
    svg = save(page, area, "SVG", folder)
    offline.goto(svg.as_uri())
    assert offline.evaluate("document.documentElement.tagName") == "svg"
    assert "click to hold" not in svg.read_text("utf-8").lower()
    html = save(page, area, "HTML", folder)
    assert html.stat().st_size < 6e6
    offline.goto(html.as_uri())
    offline.locator(".js-plotly-plot .main-svg, canvas, .text span.c").first.wait_for(timeout=20_000)
    assert offline.locator("footer").inner_text()
    buttons, drawn = (offline.locator(f".js-plotly-plot {part}") for part in (".modebar", ".cartesianlayer .bg"))
    if drawn.count():
        bar = buttons.first.bounding_box()
        assert bar["y"] + bar["height"] <= drawn.first.bounding_box()["y"]
    head, *rows = save(page, area, "CSV", folder).read_text("utf-8").splitlines()
    assert rows
    assert not {"trace", ""} & set(head.split(",")), head
    # A map's coordinates are x and y; the axes of a chart have names.
    assert not (head.startswith("series,") and {"x", "y"} & set(head.split(","))), head
    assert not any(re.match(r"(scatter|bar|heatmap) \d", row) for row in rows)
