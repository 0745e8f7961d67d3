"""The README's pictures, taken from the real app with its real engine: ``python -m scripts.screenshots``.

Needs a Chromium and the prepared default model; waits for the engine, so that no progress bar is in the picture.
"""

from __future__ import annotations

from pathlib import Path

from tests.browser.serving import chromium, served

FOLDER = Path(__file__).resolve().parents[1] / "docs"
SIZE = {"width": 1280, "height": 800}


def main() -> None:
    """Write ``docs``: overview and groups."""
    FOLDER.mkdir(exist_ok=True)
    with served(FOCUS_LAB_ENGINE="focus_core.jobs:Engine") as address, chromium() as browser:
        for name, path in (("overview", "/"), ("groups", "/groups")):
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            page.goto(address + path)
            page.locator("h1").wait_for()
            page.get_by_text("Getting the model ready").first.wait_for(state="hidden", timeout=120_000)
            page.wait_for_timeout(3000)
            page.screenshot(path=FOLDER / f"{name}.png")
            page.close()


if __name__ == "__main__":
    main()
