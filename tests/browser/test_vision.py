"""The Vision page in a real browser, with the synthetic engine and two models by name."""

import io
import re

import pytest
from PIL import Image

from tests.app.fake_vision import write_models
from tests.browser.serving import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    models = str(write_models(tmp_path_factory.mktemp("models")))
    with served(FOCUS_LAB_VISION_MODELS=models) as url:
        yield url


def picture(color, size=(90, 60)):
    image = io.BytesIO()
    Image.new("RGB", size, color).save(image, "PNG")
    return {"name": "shirt.png", "mimeType": "image/png", "buffer": image.getvalue()}


def test_an_image_is_picked_a_patch_clicked_and_a_file_opened(new_page, address):
    page = new_page("dark", 1400)
    page.goto(f"{address}/vision?vision_layer=1")
    page.get_by_role("heading", name="What changes when the softmax is learned?").wait_for(timeout=60_000)
    page.get_by_text(re.compile("Shown an ankle boot, softmax says Sneaker.*KArAt says Ankle boot")).wait_for(
        timeout=30_000
    )
    maps = page.locator(".fv .tile canvas")
    maps.nth(2).wait_for(timeout=20_000)
    assert maps.count() == 3
    # The picture stands on the first screen.
    assert maps.nth(1).bounding_box()["y"] < 500
    box = maps.nth(2).bounding_box()
    maps.nth(2).click(position={"x": box["width"] * 3.5 / 7, "y": box["height"] * 0.5 / 7})
    page.wait_for_url(re.compile("vision_token=4"))
    page.get_by_text("row of the patch in row 1, column 4").wait_for(timeout=20_000)
    maps.nth(2).hover(position={"x": box["width"] * 3.5 / 7, "y": box["height"] * 0.5 / 7})
    page.locator(".fv .tip").get_by_text("KArAt: −").wait_for()
    page.keyboard.press("Tab")
    page.get_by_role("option", name="Trouser, image 21", exact=True).click()
    page.get_by_text("Shown trousers").wait_for(timeout=20_000)
    page.wait_for_url(re.compile("vision_image=21"))
    page.get_by_role("radio", name="Rollout").click()
    page.get_by_text("rollout over all layers").wait_for(timeout=20_000)
    page.get_by_role("button", name="Your own").click()
    page.locator("input[type=file]").set_input_files(picture("white"))
    page.get_by_text(re.compile("scaled from 90 x 60 to 28 x 28 pixels.*its negative")).wait_for(timeout=20_000)
    page.get_by_text("Shown your image").wait_for(timeout=20_000)
    page.locator("input[type=file]").set_input_files(
        {"name": "no.png", "mimeType": "image/png", "buffer": b"nothing of the kind"}
    )
    page.get_by_text("no picture that can be read").wait_for(timeout=20_000)
    assert page.get_by_text("Traceback").count() == 0


def test_two_maps_stay_side_by_side_on_a_narrow_page(new_page, address):
    page = new_page("light", 800)
    page.goto(f"{address}/vision?vision_tab=All+heads&vision_token=99")
    page.get_by_text("patch 99 does not exist").wait_for(timeout=60_000)
    maps = page.locator(".fv .tile canvas:visible")
    page.locator(".fg canvas").first.wait_for(timeout=20_000)
    one, two = (maps.nth(i).bounding_box() for i in range(2))
    assert one["y"] == two["y"]
    assert maps.count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    page.locator(".fg canvas").first.click(position={"x": 30 + 60, "y": 20})
    page.wait_for_url(re.compile("vision_layer=1"))
