"""Slim attention: every form and order against attention over keys and values that were made plainly."""

from typing import Any

import pytest
import torch

from focus_core.errors import InvalidInput, NotAvailable
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.slim import slim_attention, slim_from_rotated
from focus_core.kernels.slim_work import SlimWork

B, H, D, N, WIDTH = 2, 3, 8, 37, 24


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


class Case:
    """X, its keys and values, and what each form keeps of them."""

    def __init__(
        self, form: str, dtype: torch.dtype = torch.float64, biased: bool = True, placed: bool = False
    ) -> None:
        x, w_k, w_v = draw(B, N, WIDTH), draw(WIDTH, H * D, seed=1), draw(WIDTH, H * D, seed=2)
        b_k, b_v = draw(H * D, seed=3) * biased, draw(H * D, seed=4) * biased
        self.q = draw(B, H, N, D, seed=5).to(dtype)
        state = {"k": x @ w_k, "v": x @ w_v, "x": x}[form]
        key_weight = {"k": None, "v": torch.linalg.solve(w_v, w_k), "x": w_k}[form]
        value_weight = {"k": torch.linalg.solve(w_k, w_v), "v": None, "x": w_v}[form]
        self.key, self.value = heads(x @ w_k + b_k), heads(x @ w_v + b_v)
        self.given = {"key_weight": key_weight, "value_weight": value_weight, "key_bias": b_k, "value_bias": b_v}
        if placed:
            turn = 1 + torch.arange(N, dtype=torch.float64)[:, None] / N
            self.key = self.key * turn
            self.given["finish"] = lambda key, rows, tokens: key * turn[tokens].to(key.dtype)
        self.given = {k: g.to(dtype) if isinstance(g, torch.Tensor) else g for k, g in self.given.items()}
        self.key, self.value, self.state = (t.to(dtype) for t in (self.key, self.value, state))


@pytest.mark.parametrize("queries", [1, 5, N])
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("form", "kvx")
def test_every_order_is_attention_over_the_keys_and_values(form, placed, queries):
    case, first = Case(form, placed=placed), torch.tensor([0, 11])
    q = case.q[:, :, -queries:]
    for softcap in (None, 2.0):
        options = {"first_key": first, "scale": 0.4, "softcap": softcap, "return_lse": True}
        wanted, lse = dense_attention(q, case.key, case.value, **options)
        for backend, order in (("reference", "auto"), ("cpu", "values"), ("cpu", "weights")):
            out, sums = slim_attention(q, case.state, **case.given, **options, order=order, backend=backend)
            torch.testing.assert_close(out, wanted, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(sums, lse, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("order", ["values", "weights"])
@pytest.mark.parametrize("form", "kvx")
def test_new_tokens_keep_their_own_keys_and_values(form, order):
    """Others than the state's: the last tokens' are read, and never made."""
    case, q = Case(form), Case(form).q[:, :, -4:]
    new_key, new_value = draw(B, H, 4, D, seed=8), draw(B, H, 4, D, seed=9)
    key, value = case.key.clone(), case.value.clone()
    key[:, :, -4:], value[:, :, -4:] = new_key, new_value
    wanted = dense_attention(q, key, value)
    for given in ({"new_key": new_key, "new_value": new_value},):
        for backend in ("reference", "cpu"):
            got = slim_attention(q, case.state, **case.given, **given, order=order, backend=backend)
            torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)
    key[:, :, -4:] = case.key[:, :, -4:]
    got = slim_attention(q, case.state, **case.given, new_value=new_value, order=order)
    torch.testing.assert_close(got, dense_attention(q, key, value), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("order", ["values", "weights"])
def test_another_sequence_is_attended_to_whole(order):
    case, mask = Case("x"), torch.ones(B, N, dtype=torch.bool)
    mask[0, 20:], mask[1] = False, False
    q = case.q[:, :, :3]
    scores = (q @ case.key.transpose(-1, -2) * D**-0.5).masked_fill(~mask[:, None, None], float("-inf"))
    wanted = torch.softmax(scores, -1).nan_to_num(0.0) @ case.value
    got = slim_attention(q, case.state, **case.given, causal=False, key_mask=mask, order=order)
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("order", ["values", "weights"])
def test_a_state_wider_and_narrower_than_the_heads(order):
    for width in (10, 60):
        x, w_k, w_v = draw(B, N, width), draw(width, H * D, seed=1), draw(width, H * 4, seed=2)
        q = draw(B, H, 2, D, seed=5)
        got = slim_attention(q, x, key_weight=w_k, value_weight=w_v, order=order)
        wanted = dense_attention(q, heads(x @ w_k), heads(x @ w_v))
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_other_types(dtype, tolerance):
    case = Case("x", dtype)
    wanted = dense_attention(case.q.double(), case.key.double(), case.value.double())
    for order in ("values", "weights"):
        got = slim_attention(case.q[:, :, -2:], case.state, **case.given, order=order)
        assert got.dtype == dtype
        error = (got.double() - wanted[:, :, -2:]).norm() / wanted[:, :, -2:].norm()
        assert error < tolerance


def test_no_order_holds_every_score(monkeypatch):
    from focus_core.kernels.slim import cpu

    case = Case("k", placed=True)
    wanted = slim_attention(case.q, case.state, **case.given, order="weights")
    monkeypatch.setattr(cpu, "_STRIPE_SCORES", B * H * N * 5)
    monkeypatch.setattr(cpu, "_BLOCK", 7)
    seen = []
    products = cpu._products

    def watched(q, k):
        seen.append(products(q, k))
        return seen[-1]

    monkeypatch.setattr(cpu, "_products", watched)
    got = slim_attention(case.q, case.state, **case.given, order="weights")
    torch.testing.assert_close(got, wanted)
    assert max(s.numel() for s in seen) <= B * H * N * 5


def test_the_order_with_fewer_operations_is_taken():
    common: dict[str, Any] = {"heads": 12, "head_dim": 64, "width": 768, "new_pairs": 0, "values_made": True}
    decode = common | {"queries": 1, "past": 4096, "past_pairs": 4096}
    one = SlimWork(**decode, keys_made=False, placed=True)
    # 2nd(h + 1) in the note, and the matrix of one sum.
    assert one.operations("weights") == 2 * 4096 * 768 * 13 + 2 * 768 * 768
    assert one.operations("values") == 4 * 4096 * 768 + 2 * 4096 * 768 * 768
    assert one.order() == "weights"
    many = SlimWork(**common, queries=512, past=3584, past_pairs=512 * 3584, keys_made=False, placed=True)
    assert many.order() == "values"
    assert many.order("weights") == "weights"
    x = SlimWork(**decode, keys_made=True, placed=False)
    assert x.operations("weights") == 4 * 4096 * 768 * 12 + 4 * 768 * 768
    placed = SlimWork(**decode, keys_made=True, placed=True)
    assert placed.operations("weights") - one.operations("weights") == 2 * 4096 * 768 * 768
    new = SlimWork(**(decode | {"past": 0, "past_pairs": 0, "new_pairs": 10}), keys_made=False, placed=False)
    assert new.operations("weights") == new.operations("values") == 4 * 10 * 768


@pytest.mark.parametrize("cutoff", [0.0, 0.05])
def test_rotations_are_undone_only_where_a_weight_is_worth_it(cutoff):
    case, first, asked = Case("k", biased=False), torch.tensor([0, 11]), []
    turn = 1 + torch.arange(N, dtype=torch.float64)[:, None] / N

    def undo(keys, tokens):
        asked.append(tokens)
        return keys / turn[tokens]

    q, rotated = case.q[:, :, -1:], case.key * turn
    found = slim_from_rotated(q, rotated, case.given["value_weight"], undo, cutoff=cutoff, first_key=first, scale=0.4)
    j = torch.arange(N)
    scores = (q @ rotated.transpose(-1, -2) * 0.4).masked_fill((j < first[:, None])[:, None, None], float("-inf"))
    weights = torch.softmax(scores, -1)
    kept = weights.masked_fill(weights < cutoff, 0)
    torch.testing.assert_close(found.output, kept @ case.value, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.mass, kept.sum(-1))
    for b in range(B):
        rows = (kept[b] > 0).any(0).any(0)
        assert asked[b].tolist() == rows.nonzero()[:, 0].tolist()
        assert found.undone[b] == pytest.approx(rows.sum().item() / (N - int(first[b])))
    assert (found.undone == 1).all() if cutoff == 0 else (found.undone < 0.8).all()


def test_what_does_not_fit_is_refused_with_its_sizes():
    case = Case("k")
    with pytest.raises(InvalidInput, match="the state is the keys, of 24 numbers for 3 heads of 8; it has 20"):
        slim_attention(case.q, case.state[..., :20])
    with pytest.raises(InvalidInput, match=r"value_weight is \(20, 24\) for a state of 24"):
        slim_attention(case.q, case.state, value_weight=case.given["value_weight"][:20])
    with pytest.raises(InvalidInput, match="key_weight makes 12 numbers and queries have 24"):
        slim_attention(case.q, case.state, key_weight=draw(24, 12))
    with pytest.raises(InvalidInput, match="last 1 to 30"):
        slim_attention(case.q, case.state[:, :30])
    with pytest.raises(InvalidInput, match=r"new_key is \(2, 3, 3, 8\)"):
        slim_attention(case.q[:, :, -4:], case.state, new_key=case.key[:, :, -3:])
    with pytest.raises(InvalidInput, match=r"value_bias is \(3,\), not \(24,\)"):
        slim_attention(case.q, case.state, value_bias=draw(3))
    with pytest.raises(InvalidInput, match="key_mask"):
        slim_attention(case.q, case.state, key_mask=torch.ones(B, 3, dtype=torch.bool))
    with pytest.raises(InvalidInput, match="one float type"):
        slim_attention(case.q.float(), case.state)
    with pytest.raises(InvalidInput, match="no order 'best'"):
        slim_attention(case.q, case.state, order="best")
    with pytest.raises(InvalidInput, match=r"cutoff is 1\.5"):
        slim_from_rotated(case.q, case.key, case.state[0, :24], lambda k, t: k, cutoff=1.5)
    with pytest.raises(NotAvailable, match="triton"):
        slim_attention(case.q, case.state, backend="triton")
