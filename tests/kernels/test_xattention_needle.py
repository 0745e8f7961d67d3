"""What XAttention's strided means see of a key that many queries look for, by the specification."""

import math

import pytest
import torch

from focus_core.kernels.xattention import causal_block_mask, xattention_block_mask

BLOCK, STRIDE, TOKENS, DIM = 32, 16, 1024, 16
ASKS, PLACE = slice(TOKENS - BLOCK, TOKENS), 5 * BLOCK


def planted(keys, rows=ASKS):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, TOKENS, DIM, generator=generator) for _ in range(2))
    toward = torch.nn.functional.normalize(torch.ones(DIM), dim=0)
    q[0, 0, rows] += 6 * toward
    # Blocks that the queries look at a little, all of them: as texts have.
    k[0, 0, 10 * BLOCK : 14 * BLOCK] += 2.5 * math.sqrt(DIM) / 6 * toward
    whole = float((q[0, 0, ASKS] @ k[0, 0].T / math.sqrt(DIM)).logsumexp(-1).mean())
    k[0, 0, PLACE : PLACE + keys] = toward * (whole + 3 - math.log(keys)) * math.sqrt(DIM) / 6
    return q, k


def weight(q, k, keys):
    scores = q[0, 0, ASKS] @ k[0, 0].T / math.sqrt(DIM)
    later = torch.arange(TOKENS) > torch.arange(TOKENS)[ASKS, None]
    return float(scores.masked_fill(later, -math.inf).softmax(-1)[:, PLACE : PLACE + keys].sum(-1).mean())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_one_key_is_thinned_by_the_stride_and_a_run_of_keys_is_not(backend):
    settings = {"block_size": BLOCK, "stride": STRIDE, "threshold": 0.5, "backend": backend}
    kept = {}
    for keys in (1, STRIDE):
        q, k = planted(keys)
        assert weight(q, k, keys) > 0.8
        kept[keys] = bool(xattention_block_mask(q, k, **settings)[0, 0, -1, PLACE // BLOCK])
    assert kept == {1: False, STRIDE: True}


def test_what_only_the_last_block_looks_for_is_seen_by_the_published_form_alone():
    q, k = planted(STRIDE)
    both = planted(STRIDE, slice(TOKENS - 2 * BLOCK, TOKENS))
    settings = {"block_size": BLOCK, "stride": STRIDE, "threshold": 0.5}
    place = (0, 0, -1, PLACE // BLOCK)
    assert xattention_block_mask(q, k, **settings)[place]
    assert not causal_block_mask(q, k, TOKENS, **settings)[place]
    assert causal_block_mask(*both, TOKENS, **settings)[place]
