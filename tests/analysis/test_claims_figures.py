"""The ledger's sentence, table and figures."""

from analysis import claims as shown
from focus_core import claims as ledger

ALL = ledger.claims()


def test_the_sentence_counts_every_claim_once():
    found = shown.counts(ALL)
    assert sum(found.values()) == len(ALL)
    said = shown.answer(ALL)
    assert said.startswith(f"Of {len(ALL)} claims: {found['reproduced']} reproduced, ")
    assert f"{found[ledger.OPEN]} still open" in said
    assert shown.answer([one for one in ALL if one["method"] == "mla"], "mla").startswith("Of one claim about MLA: 1 ")
    assert shown.answer([]) == "No claim is so."


def test_numbers_are_read_as_the_ledger_has_them():
    assert shown.figure_of({"value": -4.58, "unit": "%"}) == "−4.58 %"
    assert shown.figure_of({"value": 2.0, "unit": "times"}, 2.34567) == "2.35 times"
    assert shown.figure_of({"value": 66.79, "unit": "", "digits": 4}) == "66.79"


def test_bars_hold_every_claim_and_a_table_every_row():
    bars = shown.verdict_bars(ALL)
    assert sum(sum(bar.x) for bar in bars.data) == len(ALL)
    assert {bar.name for bar in bars.data} == set(shown.VERDICTS)
    assert not shown.verdict_bars([]).data
    assert list(shown.table(ALL)["id"]) == [one["id"] for one in ALL]


def test_a_series_is_the_recorded_one():
    one = ledger.claim("xattention-antidiagonal")
    figure = shown.series_figure(one["measured"])
    assert len(figure.data) == 2
    assert max(figure.data[0].y) == 1
    assert shown.series_figure(ledger.claim("slim-half")["measured"]) is None
    long = shown.series_figure(ledger.claim("focus-speed-1m")["measured"])
    assert long.layout.showlegend
    assert long.data[0].name == "16 groups, against flash-attn-4"
    assert long.layout.xaxis.ticktext[-1] == "1M"
    for claim in ALL:
        drawn = shown.series_figure(claim["measured"])
        assert drawn is None or all(list(line.x) == sorted(line.x) for line in drawn.data)
