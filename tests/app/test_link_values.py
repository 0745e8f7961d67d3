"""Every parameter of every page's link, each with a value that cannot be: it is said, and the page stands."""

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import links
from focus_core import assets
from focus_core.vision import models
from tests.app import fake, fake_vision
from tests.app.opening import MAIN, app, said

NONSENSE = "n*o"
VISION = ("tab", "left", "right", "image", "layer", "head", "token", "show", "unit")
SHARED = ("model", "hub", "folder", "text", "variant", "adapter", "set", "layer", "head", "run")
PAGES = {
    "overview": ({}, ("router", "tok", "picture")),
    "groups": ({}, ("groups_tab", "router", "group", "tok", "side", "measure", "routers", "colour", "zoom", "hide")),
    "masks": ({}, ("masks_tab", "router", "pair", "part", "over", "rank", "rank_way")),
    "compare": (
        {"compare_view": "Measure"},
        tuple(
            f"compare_{n}"
            for n in ("tab", "by", "at", "lines", "lengths", "repeats", "novel", "run", "same", "like", "asked")
        ),
    ),
    "choose": (
        {},
        tuple(f"compare_{n}" for n in ("view", "context", "batch", "card", "rank", "numbers", "device", "text")),
    ),
    "gpu": ({"compare_view": "On a GPU"}, ("compare_gpu",)),
    "frontier": ({"compare_view": "Frontier"}, ("compare_pairs_text", "compare_pairs_tokens")),
    "forgotten": (
        {"compare_view": "What is forgotten"},
        tuple(f"compare_{n}" for n in ("prompt", "behind", "ask_run")),
    ),
    "train": (
        {"groups_tab": "Train"},
        (
            "trained",
            *(f"train_{n}" for n in ("groups", "window", "context", "steps", "balance", "form", "source")),
        ),
    ),
    "collapse": ({"groups_tab": "Collapse"}, ("collapse_weights",)),
    "xattention": (
        {},
        tuple(f"xa_{n}" for n in ("tab", "stride", "block", "threshold", "voters", "mode", "block_at", "scope")),
    ),
    "paint": ({"xa_tab": "Paint a pattern"}, ("xa_pattern",)),
    "features": (
        {"features_tab": "Error by k"},
        ("codes", *(f"features_{n}" for n in ("tab", "k", "select", "sparse", "overlap", "by"))),
    ),
    "vision": ({}, tuple(f"vision_{n}" for n in VISION)),
    "cache": ({}, tuple(f"cache_{n}" for n in ("tab", "lines", "prompt", "dtype", "run"))),
    "orders": (
        {"cache_tab": "Two orders", "cache_chip": "Another"},
        tuple(f"cache_{n}" for n in ("width", "batch", "chip", "intensity")),
    ),
    "card": (
        {"cache_tab": "What a card holds"},
        tuple(f"cache_card_{n}" for n in ("shape", "gb", "format", "batch", "length")),
    ),
}
VIEWS = {
    "choose": "compare",
    "gpu": "compare",
    "frontier": "compare",
    "forgotten": "compare",
    "train": "groups",
    "collapse": "groups",
    "paint": "xattention",
    "orders": "cache",
    "card": "cache",
}
"""Pages whose tab is asked for, by the view that has it."""
HEADLESS = ("groups", "train", "collapse", "compare", "choose", "gpu", "frontier", "forgotten")
ALONE = ("hub", "folder", "trained")
"""Where one of these cannot be read, other controls are not there at all."""


def asked_of(page):
    """The parameters that a page reads."""
    shared = SHARED if page in ("overview", "groups", "masks", "compare") else ()
    left_out = {"head"} if page in HEADLESS else set()
    left_out |= {"layer"} if page == "compare" else set()
    return [name for name in (*PAGES[page][1], *shared) if name not in left_out]


def groups_of(names):
    """What is asked for at once: opening a page with several takes as long as with one."""
    rest = [name for name in names if name not in ALONE]
    return [[name] for name in names if name in ALONE] + [rest[at : at + 4] for at in range(0, len(rest), 4)]


ALL = [(page, names) for page in PAGES for names in groups_of(asked_of(page))]


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open a page of the app with a link."""
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "FOLDER", fake_vision.write_models(tmp_path / "vision"))
    with app(monkeypatch):

        def open_page(page: str, **query: str) -> AppTest:
            key = VIEWS.get(page, page)
            code = f"import sys; sys.path.insert(0, {MAIN.rsplit('/app/', 1)[0]!r})\nfrom app.main import main\n"
            at = AppTest.from_string(f"{code}main({key!r})", default_timeout=60)
            for name, value in {**PAGES[page][0], **query}.items():
                at.query_params[name] = value
            return at.run()

        yield open_page


@pytest.mark.parametrize(("page", "names"), ALL, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_a_value_that_cannot_be_is_said_and_breaks_nothing(start, page, names):
    asked = {name: f"{NONSENSE}{place}" for place, name in enumerate(names)}
    at = start(page, **asked)
    words = said(at)
    assert {name: value for name, value in asked.items() if value not in words} == {}
    assert "did not expect" not in words
    assert not at.exception
    at.run()
    assert not at.exception
    for name in {"colour", "zoom", "hide"} & set(names):
        assert NONSENSE not in str(at.query_params.get(name))


def test_the_list_of_parameters_is_whole(start, monkeypatch):
    asked: set[str] = set()
    for name in ("check", "amount", "opening", "restore"):
        real = getattr(links, name)

        def noted(key, *args, real=real, **options):
            asked.add(key)
            return real(key, *args, **options)

        monkeypatch.setattr(links, name, noted)
    for page in PAGES:
        assert not start(page).exception
    known = {name for _, own in PAGES.values() for name in own} | set(SHARED)
    assert asked <= known
    assert known - asked == {"colour", "zoom", "hide"}


@pytest.mark.parametrize(
    ("page", "query", "words"),
    [
        ("masks", {"pair": "5-900"}, "pair 5-900 is a token and a later one, which it never sees"),
        ("masks", {"pair": "900-99999"}, "pair 900-99999 does not exist"),
        ("compare", {"compare_by": "zz"}, "cost zz does not exist; showing Time"),
        ("compare", {"compare_at": "77"}, "shown length 77 does not exist"),
        ("groups", {"groups_tab": "Nope"}, "tab Nope does not exist; showing Map"),
        ("groups", {"zoom": "512-480-5"}, "zoom 512-480-5 does not exist"),
        ("groups", {"hide": "look,zz"}, "hide zz does not exist"),
        ("overview", {"layer": "999"}, "layer 999 does not exist; showing 1"),
        ("overview", {"model": "Another model …"}, "a model that is not in the list, and does not name it"),
        ("overview", {"model": "Another model …", "folder": "tiny-novels"}, "The link means the model “tiny-novels”:"),
    ],
)
def test_what_cannot_be_is_named_as_its_control_is(start, page, query, words):
    assert words in said(start(page, **query))


@pytest.mark.parametrize(
    ("page", "query", "shown"),
    [
        ("overview", {"model": "gpt2-novels", "head": "1"}, {"model": "GPT-2 novels, 3.7 M weights", "head": "Head 1"}),
        ("xattention", {"xa_mode": "oracle", "xa_tab": "speed"}, {"xa_mode": "Oracle", "xa_tab": "Speed"}),
        ("card", {"cache_card_shape": "the chosen model"}, {"cache_card_shape": "The chosen model"}),
        ("xattention", {"xa_mode": "antidiagonal"}, {"xa_mode": None}),
    ],
)
def test_a_value_by_its_short_name_stays_in_the_address(start, page, query, shown):
    at = start(page, **query)
    assert {name: at.query_params.get(name) for name in shown} == shown
    assert "does not exist" not in said(at)


@pytest.mark.parametrize(
    ("value", "words"), [("0", ""), ("1", ""), ("0.50", ""), ("2", "cannot be 2"), ("nan", "0 to 1")]
)
def test_every_way_to_write_a_threshold_is_read(start, value, words):
    at = start("xattention", xa_threshold=value)
    assert at.slider(key="xa_threshold").value == (0.9 if words else float(value))
    assert words in said(at)
    assert bool(at.warning) == bool(words)


def test_what_was_said_of_a_model_goes_with_it(start):
    at = start("overview", model="gpt2-novels", layer="29")
    assert "layer 29 does not exist" in said(at)
    at.selectbox(key="model").select("smollm2").run()
    assert "does not exist" not in said(at)
    at.selectbox(key="model").select("gpt2-novels").run()
    at.slider(key="layer").set_value(5).run()
    at.selectbox(key="model").select("smollm2").run()
    assert "This model has 4 layers: layer 5 does not exist; showing 3." in said(at)
    at.selectbox(key="model").select("gpt2-novels").run()
    assert "does not exist" not in said(at)


def test_two_parts_of_a_page_may_each_find_a_fault_in_a_link(start):
    at = start("features", features_by="zz", layer="999")
    assert "measure of size zz" in said(at)
    assert "layer 999" in said(at)
    assert "did not expect" not in said(at)


@pytest.mark.parametrize("value", ["Kmeans", "kmeans", "k-means", "K-MEANS"])
def test_the_attention_is_taken_however_it_is_spelt(start, value):
    at = start("overview", variant=value)
    assert at.sidebar.selectbox(key="variant").value == "kmeans"
    assert "k-means" in at.sidebar.selectbox(key="variant").options


def test_a_map_that_was_made_before_is_shown_at_once(start):
    at = start("groups")
    at.button(key="umap_now").click().run()
    again = start("groups", run=at.query_params["run"])
    assert "means nothing" in said(again)
    assert again.button(key="umap_turn")


def test_the_maps_zoom_and_hidden_marks_are_taken_from_the_link(start):
    at = start("groups", zoom="512-480-25", hide="look,centroids", colour="part")
    assert at.session_state["_map_look"] == {"view": [0.512, 0.48, 2.5], "show": [True, False, False]}
    assert not at.warning


def test_the_menu_of_routers_is_not_there_where_it_means_nothing(start):
    assert [box for box in start("groups").selectbox if box.key == "router"]
    for page in ("train", "collapse"):
        assert not [box for box in start(page).main.selectbox if box.key == "router"]


def test_examples_say_how_many_of_all_they_are(start):
    assert " of " in next(c.value for c in start("groups", group="C").caption if c.value.startswith("8 of "))


def test_a_text_that_the_groups_were_learned_from_is_marked(start, monkeypatch):
    entry = fake.shipped()["directed-k16"]
    entry["config"]["record"] = {"texts": "five Austen novels without the validation slice"}
    monkeypatch.setattr(assets, "adapters", lambda: {"directed-k16": entry})
    for page in ("overview", "groups"):
        assert "trained on" not in said(start(page))
        at = start(page, text="pride and prejudice opening")
        at.button(key="run_now").click().run()
        assert "trained on" in said(at)
