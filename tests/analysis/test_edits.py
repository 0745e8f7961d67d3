import numpy as np
import pytest

from analysis import edits
from analysis.group_figures import NAMES, agreement_curve, kinds_heatmap, sight_heatmap
from analysis.groups import kinds_by_group, who_sees_whom
from analysis.masks import overlay
from analysis.numbers import percent
from analysis.parts import KINDS, parts_of
from app.ui.groups.edited import mask_sentence, sentence
from focus_core import assets
from tests.app.fake_groups import apply_edits
from tests.app.synthetic import make_trace

TEXT = assets.load_text("persuasion opening").text
MERGE = {"layer": 1, "router": 0, "merge": [2, 5]}
MOVE = {"layer": 1, "router": 0, "token": 17, "to": 5}


def pair(*changes: dict):
    before, after = (make_trace(TEXT, limit=400, window=16) for _ in range(2))
    apply_edits(after, list(changes))
    return before, after


def test_the_effect_is_the_difference_of_the_two_runs():
    before, after = pair(MERGE)
    found = edits.effect(before, after, [1])
    kept = [t.pattern(1).density() for t in (before, after)]
    assert found.kept_here == pytest.approx(kept, abs=1e-6)
    assert found.kept_here[1] > found.kept_here[0]
    difference = (after.arrays["nll"].astype(float) - before.arrays["nll"]).mean()
    assert found.change == pytest.approx(np.exp(difference) - 1)
    assert found.ppl[1] / found.ppl[0] - 1 == pytest.approx(found.change)
    assert found.noticed == 40
    assert found.change_of[0] == 0
    assert found.change_of[1] == pytest.approx(-0.2, abs=1e-5)
    assert set(found.most_changed(8)) <= set(range(1, 400, 10))
    assert "points more pairs in the edited layer" in sentence(found)


def test_the_masks_before_and_after_are_told_apart_in_one_sentence():
    before, after = pair(MERGE)
    found = overlay(before.pattern(1), after.pattern(1), 0, 0)
    assert found.second > 0
    assert mask_sentence(found) == (
        f"{percent(found.both)} of all pairs are kept before and after, {percent(found.first)} only before the edits, "
        f"{percent(found.second)} only after them."
    )
    same = overlay(before.pattern(1), before.pattern(1), 0, 0)
    assert mask_sentence(same) == f"the same pairs as before, {percent(same.both)} of all."


def test_the_next_tokens_are_bars_and_a_table():
    before, after = pair(MOVE)
    rows = edits.next_tokens(before, after, 10)
    drawn = edits.next_figure(rows, ["<b>"] * len(rows))
    assert [bar.name for bar in drawn.data] == ["before", "after"]
    assert set(drawn.layout.yaxis.ticktext) == {"&lt;b&gt;"}
    assert list(drawn.data[0].x) == [100 * (row.before or 0) for row in rows]
    table = edits.next_table(rows, rows[0].text)
    assert list(table.columns) == ["token", "before", "after", "follows"]
    assert table["follows"].tolist()[0]


def test_no_change_is_said():
    before = make_trace(TEXT, limit=300)
    found = edits.effect(before, before, [1])
    assert found.most_changed() == []
    assert sentence(found).startswith("Nothing moved")


def test_edits_in_words():
    tokens = make_trace(TEXT, limit=50).tokens
    assert edits.say(MERGE, tokens) == "merge C into F (layer 1, router 0)"
    assert edits.say(MOVE, tokens) == f"move “{tokens[17].strip()}” (token 18) to F (layer 1, router 0)"


def test_next_tokens_before_and_after():
    before, after = pair(MOVE)
    rows = edits.next_tokens(before, after, 0)
    assert rows == sorted(rows, key=lambda row: -max(row.before or 0, row.after or 0))
    true = next(row for row in rows if row.text == before.top_text[int(before.arrays["top_ids"][0, 0])])
    assert true.after == pytest.approx(true.before / 2, rel=1e-2)
    del after.arrays["top_ids"]
    assert edits.next_tokens(before, after, 0) == []


def test_figures_draw_what_they_are_given():
    trace = make_trace(TEXT, limit=400)
    parts = parts_of(trace)
    counts = kinds_by_group(trace, 1, 0, parts)
    heat = kinds_heatmap(counts, 3).data[0]
    present = np.flatnonzero(counts.sum(0))
    np.testing.assert_allclose(heat.z, 100 * counts[:, present] / counts.sum(1, keepdims=True))
    assert list(heat.x) == [KINDS[i] for i in present]
    sight = who_sees_whom(trace, 1, 0)
    np.testing.assert_allclose(sight_heatmap(sight).data[0].z, 100 * sight.may)
    assert len(kinds_heatmap(np.zeros((4, len(KINDS)), int)).layout.annotations) == 1
    from analysis.agreement import agreement

    found = agreement(trace, parts, bootstraps=20)
    lines = {line.name: line for line in agreement_curve(found, "purity", 1).data if line.name}
    np.testing.assert_allclose(lines["Learned groups"].y, found.curves["purity"]["groups"].value)
    assert set(lines) == {name for key, name in NAMES.items() if key != "kmeans"}
