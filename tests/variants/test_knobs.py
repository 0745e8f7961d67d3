"""The settings that every variant names as what trades cost for quality."""

import dataclasses

import pytest

from focus_core.models.facts import ModelFacts
from focus_core.variants import VARIANTS, Shape, make

FACTS = ModelFacts("tiny", "llama", 2, 4, 2, 16, 64, 1024, 100, (None, None), None, False, 0.25, "float32", "", "", 16)
SHAPE = Shape(1, 4, 2, 16, 512)
KNOBS = [(name, knob) for name, cls in sorted(VARIANTS.items()) for knob in cls.knobs]


@pytest.mark.parametrize(("name", "knob"), KNOBS, ids=lambda x: x if isinstance(x, str) else x.field)
def test_a_larger_value_costs_more_of_what_the_knob_moves(name, knob):
    variant = make(name)
    low, high = variant.knob_range(knob, SHAPE.length, FACTS)
    assert low < high
    kind = type(getattr(variant, knob.field))
    few, many = (dataclasses.replace(variant, **{knob.field: kind(v)}).cost(SHAPE) for v in (low, high))
    assert (few.kv_bytes_per_token < many.kv_bytes_per_token) == (knob.moves == "cache")
    assert few.flops < many.flops
    assert knob.moves in ("pairs", "cache", "")


def test_what_is_named_is_found_by_the_variants_own_names():
    assert {k.field for k in VARIANTS["focus"].knobs} == {"query_topk", "window"}
    assert make("focus", {"groups": 4}).knob_range(VARIANTS["focus"].knobs[0], 512, FACTS) == (1, 4)
    assert not VARIANTS["dense"].knobs
