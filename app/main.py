"""Focus Lab: ``streamlit run app/main.py``."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402

from app.ui import links, sidebar  # noqa: E402
from app.ui.guard import guarded  # noqa: E402
from app.ui.theme import apply_theme  # noqa: E402
from app.ui.view import View, discover  # noqa: E402


def main(start: str = "overview") -> None:
    """Draw the navigation, the sidebar controls that the selected view needs, and the view.

    Args:
        start: key of the view that the bare address opens.
    """
    st.set_page_config(page_title="Focus Lab", page_icon=str(ROOT / "app" / "ui" / "icon.svg"), layout="wide")
    apply_theme()
    sections: dict[str, list] = {}
    pages = {}
    for view in discover():
        page = st.Page(
            lambda view=view: guarded(lambda: _draw(view)),
            title=view.title,
            icon=view.icon,
            url_path="" if view.key == start else view.key,
            default=view.key == start,
        )
        pages[view.key] = page
        sections.setdefault(view.section, []).append(page)
    asked = links.asked_page()
    unknown = _nowhere(asked) if asked not in pages or asked == start else None
    chosen = st.navigation({**sections, "": [unknown]} if unknown else sections)
    if asked and asked not in pages:
        links.keep_notices([f"There is no page /{asked[:60]}; showing {pages[start].title}."])
    if unknown and chosen == unknown:
        st.switch_page(pages[start], query_params=st.query_params.to_dict())
    if (wanted := st.session_state.pop("_go", None)) in pages and pages[wanted] != chosen:
        st.switch_page(pages[wanted])
    chosen.run()
    links.send_again(chosen.url_path)


def _nowhere(asked: str) -> Any:
    """A page for an address that has none, hidden in the navigation: without one Streamlit says so in a dialog too.

    The first page's own name is such an address: Streamlit knows that page by the bare address alone.
    """
    usable = asked and asked == asked.strip() and "/" not in asked
    return st.Page(lambda: None, title="-", url_path=asked, visibility="hidden") if usable else None


def _draw(view: View) -> None:
    view.render(sidebar.select(view))


if __name__ == "__main__":
    main()
