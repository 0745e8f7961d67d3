"""Focus Lab: ``streamlit run app/main.py``."""

import sys
from pathlib import Path

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
            url_path=view.key,
            default=view.key == start,
        )
        pages[view.key] = page
        sections.setdefault(view.section, []).append(page)
    asked = links.asked_page()
    chosen = st.navigation(sections)
    if asked and asked not in pages:
        links.keep_notices([f"There is no page /{asked[:60]}; showing {chosen.title}."])
    if (wanted := st.session_state.pop("_go", None)) in pages and pages[wanted] != chosen:
        st.switch_page(pages[wanted])
    chosen.run()
    links.send_again(chosen.url_path)


def _draw(view: View) -> None:
    view.render(sidebar.select(view))


if __name__ == "__main__":
    main()
