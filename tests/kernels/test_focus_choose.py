"""What ``auto`` takes, and that it says why."""

import pytest
import torch

from focus_core.kernels.focus import choose_backend, focus_attention
from tests.kernels.cases import make


def choice(window=128, sinks=4, **case):
    q, k, _, query_bits, key_bits = make(**case)
    return choose_backend(q, k, query_bits, key_bits, window=window, sinks=sinks)


def test_short_texts_are_dense_by_definition():
    short = choice(keys=128)
    assert short.backend == "dense"
    assert "128 keys" in short.reason


def test_skipping_must_pay():
    assert choice(keys=2048, dim=8).backend == "cpu"
    short = choice(keys=140, dim=8)
    assert short.backend == "chunked"
    assert "140 tokens" in short.reason
    kept = choice(keys=2048, dim=8, groups=16, query_groups=12, key_groups=8)
    assert kept.backend == "chunked"
    assert "too many pairs" in kept.reason


def test_one_new_token_gathers():
    assert choice(keys=4096, queries=1, dim=8).backend == "cpu"
    assert choice(keys=600, queries=1, dim=8).backend == "chunked"


def test_sharing_everything_is_dense():
    one = choice(keys=600, dim=8, groups=1)
    assert one.backend == "dense"
    assert "shares a group" in one.reason
    # One query without a group is enough to be not dense, wherever it is.
    q, k, v, query_bits, key_bits = make(keys=600, dim=8, groups=1)
    query_bits[0, 1, 333] = 0
    assert choose_backend(q, k, query_bits, key_bits, window=8).backend != "dense"
    out = focus_attention(q, k, v, query_bits, key_bits, window=8)
    wanted = focus_attention(q, k, v, query_bits, key_bits, window=8, backend="reference")
    torch.testing.assert_close(out, wanted, rtol=0, atol=2e-6)


def test_training_takes_the_form_with_a_backward():
    q, k, _, query_bits, key_bits = make(keys=2048, dim=8)
    assert choose_backend(q.requires_grad_(), k, query_bits, key_bits, window=8).backend == "chunked"
    with torch.no_grad():
        assert choose_backend(q, k, query_bits, key_bits, window=8).backend == "cpu"


def test_the_share_of_work_is_near_the_kept_share():
    case = choice(keys=4096, dim=8, heads=3)
    assert case.share == pytest.approx(0.125, abs=0.05)
