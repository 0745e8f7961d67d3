from app.ui.view import SECTIONS, Needs, Page, TextChoice, discover


def test_a_change_in_a_part_of_a_page_may_concern_the_whole():
    from streamlit.testing.v1 import AppTest

    def page():
        import streamlit as st

        from app.ui.guard import fragment, wholly

        st.session_state["drawn"] = st.session_state.get("drawn", 0) + 1
        change = st.session_state.update

        def part():
            st.button("all", on_click=wholly, args=(change, {"seen": 1}))
            st.button("part", on_click=change, args=({"seen": 2},))

        fragment(part)

    at = AppTest.from_function(page).run()
    for place, seen, drawn in ((0, 1, 3), (1, 2, 4)):
        at.button[place].click().run()
        assert (at.session_state["seen"], at.session_state["drawn"]) == (seen, drawn)


def test_every_view_has_an_address_of_its_own_a_section_and_known_needs():
    views = discover()
    assert len({view.key for view in views}) == len(views) > 0
    assert views[0].key == "overview"
    for view in views:
        assert view.section in SECTIONS
        assert isinstance(view.needs, Needs)
        assert view.icon.startswith(":material/")
        assert callable(view.render)


def test_a_request_names_a_shipped_text_and_carries_ones_own():
    shipped = Page(None, "", "m", TextChoice("emma", "Emma", "It was"), "focus", {"window": 4}, "a").request()
    assert (shipped["text_name"], shipped["text"]) == ("emma", None)
    assert "limit" not in shipped
    own = Page(None, "", "m", TextChoice(None, "Your text", "mine", 100)).request(layers=[1])
    assert (own["text_name"], own["text"], own["limit"], own["layers"]) == (None, "mine", 100, [1])
