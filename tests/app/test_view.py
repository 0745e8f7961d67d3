from app.ui.view import SECTIONS, Needs, Page, TextChoice, discover


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
