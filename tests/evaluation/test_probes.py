from dataclasses import dataclass

import pytest
import torch

from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.probes import in_dtype, leak, parity, partition, probe_length
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.focus import focus_attention
from focus_core.pattern import GroupPattern
from focus_core.variants import Prepared, Variant, make
from tests.tiny import VOCAB, tiny_model


@dataclass(frozen=True)
class Everything(Variant):
    """Dense, in the shape that the variants below change."""

    def attend(self, call):
        return dense_attention(
            call.query, call.key, call.value, first_key=call.first_key, scale=call.scale, softcap=call.softcap
        )

    def pattern(self, call):
        batch, heads, queries, _ = call.query.shape
        return GroupPattern.without_groups(batch, queries, call.key.shape[2], heads, call.key.shape[2])


@dataclass(frozen=True)
class SeesTheFuture(Everything):
    def attend(self, call):
        share = call.query.shape[1] // call.value.shape[1]
        return super().attend(call) + 0.01 * call.value.mean(2, keepdim=True).repeat_interleave(share, 1)


@dataclass(frozen=True)
class Grouped(Variant):
    window: int = 4
    sinks: int = 1

    def sets(self, hidden):
        return 1 << (hidden.sum(-1) > 0).long()

    def prepare(self, hidden, layer, positions, adapter, first_key):
        bits = self.sets(hidden)[:, None]
        return Prepared(bits, bits)

    def attend(self, call):
        options = {"window": self.window, "sinks": self.sinks, "scale": call.scale, "backend": "reference"}
        return focus_attention(call.query, call.key, call.value, call.fresh, call.cached, **options)

    def pattern(self, call):
        bits = call.fresh.numpy(), call.cached.numpy()
        return GroupPattern(*bits, call.query.shape[1], self.window, self.sinks)


@dataclass(frozen=True)
class GroupedByTheFuture(Grouped):
    def sets(self, hidden):
        score = hidden.sum(-1)
        return 1 << (score > score.mean(-1, keepdim=True)).long()


@dataclass(frozen=True)
class GroupedOnTheEdge(Grouped):
    """Causal, but its rounding depends on later tokens and its groups on rounding."""

    def sets(self, hidden):
        return 1 << ((hidden.sum(-1) * 1e5).floor().long() % 2)

    def attend(self, call):
        factor = call.value.abs().sum()
        return super().attend(call) * factor / factor


@dataclass(frozen=True)
class LeaksBehindRounding(GroupedOnTheEdge):
    """The same, and the last layer reads one token ahead, where no later group can show it."""

    def attend(self, call):
        out = super().attend(call)
        if call.layer < 1:
            return out
        share = call.query.shape[1] // call.value.shape[1]
        return out + call.value.roll(-1, 2).repeat_interleave(share, 1)


@dataclass(frozen=True)
class ForgetsTheCache(Grouped):
    """Decodes with sets that are not those of the prefill."""

    def prepare(self, hidden, layer, positions, adapter, first_key):
        bits = self.sets(hidden + positions[:, :1, None])[:, None]
        return Prepared(bits, bits)


@dataclass(frozen=True)
class CountsTwice(Grouped):
    def attend(self, call):
        far = focus_attention(
            call.query, call.key, call.value, call.fresh, call.cached, window=1, scale=call.scale, backend="reference"
        )
        return (super().attend(call) + far) / 2


@pytest.fixture
def model():
    return tiny_model("llama", layers=2)


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (60,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("variant", [Everything(), Grouped()], ids=lambda v: type(v).__name__)
def test_causal_variants_pass(family, variant, ids):
    if family == "gemma2" and isinstance(variant, Grouped):
        variant = Everything()
    found = leak(tiny_model(family, layers=2), variant, None, ids)
    assert found["leak"] < 1e-4
    assert found["leaked_memberships"] == 0
    assert found["cuts"] == [15, 30, 45]


def test_a_leaking_output_is_found(model, ids):
    assert leak(model, SeesTheFuture(), None, ids)["leak"] > 1e-3


def test_a_leaking_membership_is_a_leak_and_not_rounding(model, ids):
    found = leak(model, GroupedByTheFuture(), None, ids)
    assert found["leak"] > 0.05
    assert found["leaked_memberships"] > 0


def test_rounding_is_counted_as_flips_and_not_called_a_leak(model, ids):
    found = leak(model, GroupedOnTheEdge(), None, ids)
    assert found["flips"] > 0
    assert found["leaked_memberships"] == 0
    assert found["leak"] < 0.01


def test_a_leak_behind_the_first_membership_that_rounding_moved_is_found(model, ids):
    found = leak(model, LeaksBehindRounding(), None, ids)
    assert found["flips"] > 0
    assert found["leaked_memberships"] == 0
    assert found["leak"] > 0.5


def test_the_last_token_alone_can_leak(model, ids):
    found = leak(model, SeesTheFuture(), None, ids, cuts=[59], seeds=[5])
    assert found["leak"] > 1e-4


@pytest.mark.parametrize("cuts", [[0], [60], [5, 99]])
def test_cuts_outside_the_text_are_refused(model, ids, cuts):
    with pytest.raises(InvalidInput, match="60 tokens"):
        leak(model, Everything(), None, ids, cuts=cuts)


def test_parity_of_prefill_chunks_and_decode(model, ids):
    found = parity(model, Grouped(), None, ids, decode=59)
    assert max(found["chunked"], found["decode"]) < 1e-4
    assert found["flips"] == found["moved_memberships"] == 0


def test_memberships_that_bf16_moves_are_counted_apart(model, ids):
    found = parity(model, ForgetsTheCache(), None, ids)
    assert found["bf16_memberships"] == 2 * 60
    assert 0 < found["bf16_flips"] <= 120
    assert parity(model, Everything(), None, ids)["bf16_flips"] == 0


def test_parity_finds_a_cache_that_does_not_continue_the_prefill(model, ids):
    found = parity(model, ForgetsTheCache(), None, ids, decode=10)
    assert found["moved_memberships"] > 0
    assert found["decode"] > 0.05
    assert found["chunked"] > 0.05


def test_partition_holds_and_a_pair_counted_twice_is_found(model, ids):
    assert partition(model, Grouped(), None, ids) < 1e-5
    assert partition(model, make("window", {"window": 5, "sinks": 2}), None, ids) < 1e-5
    assert partition(model, CountsTwice(), None, ids) > 1e-2


def test_cancel_stops_between_runs(model, ids):
    with pytest.raises(Cancelled):
        leak(model, Everything(), None, ids, cancel=lambda: True)
    with pytest.raises(Cancelled):
        parity(model, Everything(), None, ids, cancel=lambda: True)


def test_another_dtype_leaves_the_very_same_weights():
    model = tiny_model("gemma3", layers=2, dtype=torch.bfloat16)
    before = {name: (p.data_ptr(), p.dtype) for name, p in model.named_parameters()}
    buffers = {name: b.dtype for name, b in model.named_buffers()}

    def fail():
        with in_dtype(model, torch.float32):
            assert {p.dtype for p in model.parameters()} == {torch.float32}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {name: (p.data_ptr(), p.dtype) for name, p in model.named_parameters()} == before
    assert {name: b.dtype for name, b in model.named_buffers()} == buffers


def test_a_bf16_model_is_probed_in_fp32(ids):
    model = tiny_model("llama", layers=2, dtype=torch.bfloat16)
    assert leak(model, Everything(), None, ids)["leak"] < 1e-4


def test_a_probe_reaches_beyond_window_and_sinks():
    variant = Grouped(window=200, sinks=4)
    assert probe_length(variant, 4096, VOCAB) == 612
    assert probe_length(variant, 500, VOCAB) == 500
    assert probe_length(Grouped(), 4096, VOCAB) == 256
    assert probe_length(variant, 4096, 256_000) == 524
