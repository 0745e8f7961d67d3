"""The cache and the perplexity of latents by rank, measured from live models."""

from types import SimpleNamespace

import pytest

from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.latent_ranks import by_rank
from focus_core.models.facts import facts_of
from tests.retrofit.helpers import tokens
from tests.tiny import tiny_model


@pytest.mark.parametrize("family, rotary, ranks, dense", [("gpt2", 0, (144, 20), 288), ("llama", 16, (48, 6), 96)])
def test_each_rank_has_its_live_width_and_its_perplexity(family, rotary, ranks, dense):
    model, seen = tiny_model(family), []
    loaded = SimpleNamespace(model=model, facts=facts_of(model))
    rows = by_rank(loaded, tokens(2, 48, seed=5), tokens(2, 40), ranks, rotary=rotary, partial=seen.append)
    assert rows == seen
    assert [row["rank"] for row in rows] == [None, *ranks]
    heads = 9 if family == "gpt2" else 3
    assert [row["numbers"] for row in rows] == [dense, *(rank + heads * rotary for rank in ranks)]
    assert [row["bytes_per_token"] for row in rows] == [row["numbers"] * 3 * 4 for row in rows]
    assert rows[1]["ppl"] == pytest.approx(rows[0]["ppl"], rel=1e-5)
    assert abs(rows[2]["ppl"] / rows[0]["ppl"] - 1) > 0.01
    with pytest.raises(Cancelled):
        by_rank(loaded, tokens(1, 8), tokens(1, 8), ranks, rotary=rotary, cancel=lambda: True)
    with pytest.raises(InvalidInput, match="no token to score"):
        by_rank(loaded, tokens(1, 8), tokens(1, 1), ranks)
