"""The specification against the contract spelt out pair by pair, and the pattern object against both."""

import numpy as np
import pytest
import torch

from focus_core.errors import FocusError, InvalidInput, NotAvailable
from focus_core.kernels.focus import focus_attention
from focus_core.kernels.focus.reference import kept_mask
from focus_core.pattern import GroupPattern
from tests.kernels.cases import brute_force, make

CASES = [
    {"case": {"keys": 13, "dim": 8, "heads": 4, "kv_heads": 2, "groups": 3}, "window": 2, "sinks": 1},
    {"case": {"keys": 12, "queries": 5, "dim": 8, "heads": 4, "kv_heads": 2, "groups": 3}, "window": 1},
    {"case": {"keys": 11, "dim": 4, "heads": 2, "kv_heads": 1, "batch": 2}, "window": 2, "sinks": 2, "first": [0, 9]},
    {"case": {"keys": 10, "dim": 4, "heads": 3, "kv_heads": 3, "query_groups": 3, "key_groups": 2, "groups": 6}}
    | {"window": 1, "sinks": 0, "softcap": 1.5, "scale": 0.7},
    {"case": {"keys": 9, "dim": 4, "heads": 4, "kv_heads": 2, "routers": 1, "groups": 64, "query_groups": 40}}
    | {"window": 1},
    {"case": {"keys": 1, "dim": 4, "heads": 2, "kv_heads": 1}, "window": 1},
]


@pytest.mark.parametrize("spec", CASES)
def test_reference_is_the_contract(spec):
    spec = dict(spec)
    q, k, v, query_bits, key_bits = make(**spec.pop("case"), dtype=torch.float64)
    first = spec.pop("first", None)
    spec["first_key"] = None if first is None else torch.tensor(first)
    out, lse = focus_attention(q, k, v, query_bits, key_bits, **spec, backend="reference", return_lse=True)
    wanted, wanted_lse, _ = brute_force(q, k, v, query_bits, key_bits, **spec)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-12, atol=1e-12)


def test_bit_63_alone_is_a_group():
    q, k, v, _, _ = make(keys=9, heads=2, kv_heads=1, dim=4)
    bits = torch.zeros(1, 1, 9, dtype=torch.int64)
    bits[..., [1, 8]] = -(1 << 63)
    mask = kept_mask(bits, bits, window=1)
    assert bool(mask[0, 0, 8, 1])
    assert int(mask.sum()) == 9 + 1
    out = focus_attention(q, k, v, bits, bits, window=1, backend="reference")
    torch.testing.assert_close(out.double(), brute_force(q, k, v, bits, bits, window=1)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [None, [0, 30]])
@pytest.mark.parametrize("queries, window, sinks", [(97, 1, 0), (97, 8, 3), (20, 8, 3), (97, 200, 0), (97, 1, 200)])
def test_pattern_agrees_with_the_reference(queries, window, sinks, first):
    shape = {"batch": 2, "keys": 97, "queries": queries, "groups": 5, "query_groups": 2, "key_groups": 2}
    _q, _k, _, query_bits, key_bits = make(**shape)
    first_key = None if first is None else torch.tensor(first)
    mask = kept_mask(query_bits, key_bits, window=window, sinks=sinks, first_key=first_key)
    mask = mask.repeat_interleave(3, dim=1).numpy()
    numpy_first = None if first is None else np.array(first)
    pattern = GroupPattern(query_bits.numpy(), key_bits.numpy(), 9, window, sinks, numpy_first)
    causal = kept_mask(query_bits, key_bits, window=98, first_key=first_key).sum() * 3
    for b in range(2):
        for h in (0, 4, 8):
            tile = pattern.tile(b, h, slice(0, queries), slice(0, 97))
            assert np.array_equal(tile, mask[b, h])
            assert np.array_equal(pattern.tile(b, h, slice(3, 11), slice(5, 50)), mask[b, h, 3:11, 5:50])
            assert np.array_equal(pattern.kept_per_query(b, h), mask[b, h].sum(-1))
    assert pattern.density() == pytest.approx(mask.sum() / int(causal), abs=1e-12)


BAD = [
    ({"q": (1, 9, 100)}, "heads, tokens, dim"),
    ({"q": (2, 9, 100, 64)}, r"\(2, 9, 100, 64\)"),
    ({"q": (1, 8, 100, 64)}, "8 query heads cannot share 3"),
    ({"q": (1, 9, 101, 64)}, "last 1 to 100"),
    ({"q": (1, 9, 100, 32)}, "head size"),
    ({"v": (1, 3, 99, 64)}, "heads or tokens"),
    ({"query_bits": (1, 3, 99)}, r"query_bits \(1, 3, 99\)"),
    ({"query_bits": (1, 1, 100)}, "do not fit"),
    ({"query_bits": (1, 2, 100), "key_bits": (1, 2, 100)}, "2 routers cannot serve 3 key heads"),
]


@pytest.mark.parametrize("shapes, message", BAD)
def test_wrong_shapes_are_refused_with_the_shapes(shapes, message):
    call = dict(zip(("q", "k", "v", "query_bits", "key_bits"), make(), strict=True))
    for name, shape in shapes.items():
        call[name] = torch.zeros(shape, dtype=call[name].dtype)
    with pytest.raises(InvalidInput, match=message):
        focus_attention(**call, window=4)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"window": 0}, "at least 1"),
        ({"sinks": -1}, "sinks is -1"),
        ({"softcap": 0.0}, "softcap is 0.0"),
        ({"first_key": torch.zeros(2, dtype=torch.long)}, r"\(1,\) integers, not \(2,\)"),
        ({"backend": "fast"}, "no backend 'fast'"),
        ({"query_bits": torch.zeros(1, 3, 100, dtype=torch.int32)}, "must be int64"),
    ],
)
def test_wrong_settings_are_refused(change, message):
    call = dict(zip(("q", "k", "v", "query_bits", "key_bits"), make(), strict=True))
    with pytest.raises(InvalidInput, match=message):
        focus_attention(**{**call, "window": 4, **change})


@pytest.mark.parametrize("backend", ["triton", "flash"])
def test_a_backend_that_is_not_here_says_so(backend):
    # The flash backend needs Triton's kernels too, and says so first.
    with pytest.raises(NotAvailable, match="The triton backend needs a GPU") as caught:
        focus_attention(*make(), window=4, backend=backend)
    assert isinstance(caught.value, FocusError)
    assert caught.value.hint
