"""The page Claims with the fake engine."""

from analysis.claims import figure_of
from focus_core.claims import OPEN, claim, claims
from tests.app.opening import engine, said

VIEW = "claims"


def test_the_ledger_is_counted_filtered_and_opened(start):
    at = start(claims_one="sfa-cache-41", claims_method="sfa")
    assert "claims about SFA: " in said(at)
    assert "By the bytes of the live cache with 8 features" in said(at)
    assert "40.6 %" in said(at)
    assert "arXiv 2603.22300" in said(at)
    assert "sfa-cache-41" in at.query_params["claims_one"]
    undecided = next(one for one in claims() if one["verdict"] == OPEN)
    at.selectbox(key="claims_method").set_value(undecided["method"])
    at.selectbox(key="claims_verdict").set_value("open").run()
    assert "Open: " in said(at)
    assert "sfa-cache-41" not in at.query_params["claims_one"]
    at.selectbox(key="claims_method").set_value("mla").run()
    assert "No claim of this method has this verdict." in said(at)
    at.selectbox(key="claims_method").set_value("all").run()
    at.selectbox(key="claims_verdict").set_value("all").run()
    assert f"Of {len(claims())} claims: " in said(at)


def test_a_claim_on_learned_groups_shows_random_ones_beside_them(start):
    told = said(start(claims_one="focus-less-is-more"))
    assert "more with random groups than with learned ones" in told
    for line, what in (
        ("focus-k16&set=served", "with learned groups, over dense"),
        ("random-k16", "the same with random"),
    ):
        (row,) = (m for m in claim("focus-less-is-more")["measured"] if line in str(m.get("keys")))
        assert what in row["what"]
        assert f"{figure_of(row)}** · {row['what']}" in told


def test_a_link_to_what_is_no_claim_is_said(start):
    at = start(claims_one="nobody", claims_verdict="true")
    assert "claim nobody does not exist" in said(at)
    assert "verdict true does not exist" in said(at)


def test_every_claim_can_be_shown(start):
    at = start()
    for one in claims()[::9]:
        at.selectbox(key="claims_one").set_value(one["id"]).run()
        assert one["condition"][:30] in said(at), one["id"]


def test_a_number_is_measured_again_and_stands_beside_the_recorded_one(start, monkeypatch):
    from tests.app import fake

    rows = [
        {"label": "dense", "bytes_per_token": 100.0},
        {"label": "Slim, K-cache", "bytes_per_token": 52.5},
    ]
    monkeypatch.setattr(fake.FakeEngine, "_work", lambda self, kind, request: {"rows": rows})
    at = start(claims_one="slim-half")
    at.button(key="claims_run_0").click().run()
    at.run()
    assert [kind for kind, _ in engine().submitted] == ["cache"]
    assert "52.5 % of dense** now, 50.0 % of dense recorded" in said(at)
    at.button(key="claims_run_0").click().run()
    first, second = (request for _, request in engine().submitted)
    assert second == {**first, "again": 1}
