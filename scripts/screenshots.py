"""The README's pictures, taken from the real app with its real engine: ``python -m scripts.screenshots``.

Needs a Chromium and the prepared default model; waits for the engine, so that no progress bar is in the picture.
"""

from __future__ import annotations

from pathlib import Path

from tests.browser.serving import chromium, served

FOLDER = Path(__file__).resolve().parents[1] / "docs"
SIZE = {"width": 1280, "height": 800}
TOKEN = 300


def main() -> None:
    """Write ``docs``: overview, held (a token held, dark), groups, masks (dark) and compare."""
    FOLDER.mkdir(exist_ok=True)
    with served(FOCUS_LAB_ENGINE="focus_core.jobs:Engine") as address, chromium() as browser:
        for name, path, scheme in (
            ("overview", "/", "light"),
            ("held", "/", "dark"),
            ("groups", "/groups", "light"),
            ("masks", "/masks", "dark"),
            ("compare", "/compare", "light"),
        ):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(address + path)
            page.locator("h1").wait_for()
            page.get_by_text("Getting the model ready").first.wait_for(state="hidden", timeout=120_000)
            if name == "compare":
                page.locator(".scatterlayer").first.wait_for(timeout=60_000)
            if name == "held":
                page.locator(".fl .text span.c").nth(TOKEN).click()
                page.get_by_text("Where its dense attention went").wait_for()
                page.mouse.move(0, 0)
                page.evaluate("() => scrollTo(0, 0)")
            page.wait_for_timeout(3000)
            page.screenshot(path=FOLDER / f"{name}.png")
            page.close()


if __name__ == "__main__":
    main()
