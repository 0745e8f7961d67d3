"""A Trace of a variant that keeps whole blocks: every figure belongs to the blocks that were served."""

import numpy as np
import pytest

from focus_core.capture import capture_trace
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.trace_files import open_trace
from focus_core.variants import make
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = "the cat and the dog sat on the mat while another one ran there and then the rain ended in the morning. " * 4


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_blocks_are_kept_with_what_they_hold(family, tmp_path):
    model = tiny_model(family)
    loaded = Loaded(model, tiny_tokenizer(), facts_of(model, "tiny"), "tiny")
    variant = make("xattention", {"block": 8, "stride": 4, "threshold": 0.5})
    trace = open_trace(capture_trace(loaded, variant, None, TEXT).save(tmp_path / "t.npz"))
    n, p = len(trace), trace.provenance
    assert (p["block_size"], p["window"], p["sinks"], p["groups"]) == (8, 0, 0, None)
    assert trace.has_blocks
    assert not p["dense_by_definition"]
    for layer, own in enumerate(p["native"]):
        pattern = trace.pattern(layer)
        densities = [pattern.density(0, h) for h in range(9)]
        assert trace.arrays["kept_pairs"][layer] == pytest.approx(densities, abs=1e-6)
        if own is not None:
            assert f"block_mask.{layer}" not in trace.arrays
            continue
        assert len({tuple(pattern.kept[0, h].ravel()) for h in range(9)}) > 1
        mass = np.zeros(9)
        rows = range((n - 1) % -(-n // 256), n, -(-n // 256))
        for h in range(9):
            kept = pattern.tile(0, h, slice(0, n), slice(0, n))
            mass[h] = np.mean([trace.dense_mass(layer, i, [h])[kept[i, : i + 1]].sum() for i in rows])
        # Queries and keys are kept in half precision.
        assert trace.arrays["mass_kept"][layer] == pytest.approx(mass, abs=2e-3)
