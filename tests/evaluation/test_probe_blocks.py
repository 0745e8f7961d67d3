"""A choice by blocks leaks inside them: the probe must cut there, however long the text."""

import pytest

from focus_core.evaluation.probes import _cuts, leak, probe_length
from focus_core.variants import make
from tests.retrofit.helpers import tokens
from tests.tiny import tiny_model


@pytest.mark.parametrize("block", [4, 8, 64, 128])
@pytest.mark.parametrize("tokens", [256, 300, 768, 2048])
def test_it_cuts_inside_a_block(block, tokens):
    variant = make("xattention", {"block": block, "stride": 4})
    assert all(cut % block for cut in _cuts(variant, tokens))
    assert _cuts(make("dense"), tokens) == [tokens // 4, tokens // 2, 3 * tokens // 4]


def test_it_reads_more_than_the_blocks_that_are_always_kept():
    assert probe_length(make("xattention"), 10_000, 1000) == 768
    assert probe_length(make("xattention", {"block": 16}), 10_000, 1000) == 256


def test_the_published_form_is_found_leaking_and_the_served_one_is_not():
    model, ids = tiny_model("llama"), tokens(1, 64)[0]
    settings = {"block": 8, "stride": 4, "threshold": 0.3}
    assert leak(model, make("xattention", settings), None, ids)["leak"] < 1e-5
    assert leak(model, make("xattention", settings | {"voters": "own"}), None, ids)["leak"] > 1e-3
