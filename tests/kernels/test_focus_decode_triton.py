"""Focus's decoding by lists of each group's keys, interpreted on the CPU: alone and inside ``generate()``."""

import pytest
import torch

from benchmarks.gpu_focus_decode_checks import check_all
from focus_core.cache import Memo
from focus_core.kernels.focus.listed import listed_attention
from tests.kernels.cases import make
from tests.kernels.interpreted_lists import CASES, ROUTERS
from tests.kernels.interpreting import interpreted

IN_MODELS = ("greedy", "beams", "turns and a cut", "dense in room", "lists in room")


@pytest.fixture(scope="module")
def results():
    return interpreted("interpreted_lists")


@pytest.mark.parametrize("name", CASES)
def test_a_step_agrees_with_the_reference_and_appends_what_a_new_list_would_hold(results, name):
    assert results[name]["good"], results[name]


def test_lists_grow_over_their_pages_while_the_number_of_tokens_is_read_on_the_device(results):
    assert results["steps"]["good"], results["steps"]


def test_too_many_groups_or_too_little_room_give_no_number(results):
    assert results["limits"]["good"], results["limits"]


@pytest.mark.parametrize("name", IN_MODELS)
def test_models_decode_by_lists_as_by_the_reference(results, name):
    assert results[name]["served"] > 0
    assert results[name]["good"], results[name]


@pytest.mark.parametrize("name", ROUTERS)
def test_few_tokens_are_routed_as_in_a_long_text(results, name):
    assert results[name]["good"], results[name]


def test_a_cpu_keeps_no_lists():
    memo = Memo()
    call = make(keys=60, queries=1)
    settings = {"groups": 16, "members": (1, 1), "window": 8, "sinks": 2, "scale": 0.1}
    assert listed_attention(memo, *call, **settings) is None
    assert memo.tensors is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; the interpreter covers it elsewhere")
def test_every_case_on_a_gpu():
    assert all(row["good"] for row in check_all(4))
