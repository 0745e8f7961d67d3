"""Work on several threads: the same bits as on one, errors that surface, and nothing left changed."""

import os
import signal
import threading
from functools import partial

import pytest
import torch

from focus_core.kernels.focus import focus_attention
from focus_core.kernels.focus.work import conduct, run_all
from tests.kernels.cases import make


def attend(call):
    return focus_attention(*call, window=32, sinks=4, first_key=torch.tensor([0, 70]), backend="cpu", return_lse=True)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads):
    call = make(batch=2, keys=900, groups=4, query_groups=2)
    alone = attend(call)
    torch.set_num_threads(threads)
    for _ in range(3):
        for got, wanted in zip(attend(call), alone, strict=True):
            assert torch.equal(got, wanted)
        assert torch.get_num_threads() == threads


def test_inference_mode_reaches_the_threads():
    call = make(batch=2, keys=900, groups=4)
    wanted = attend(call)[0]
    torch.set_num_threads(2)
    with torch.inference_mode():
        assert torch.equal(attend(call)[0], wanted)
    with torch.no_grad():
        assert torch.equal(attend(call)[0], wanted)


def test_pieces_run_on_other_threads_that_compute_alone():
    torch.set_num_threads(2)
    seen = []

    def look():
        seen.append((threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled()))

    def job():
        look()
        run_all([look] * 8)
        return "done"

    assert conduct(job) == "done"
    assert len(seen) == 9
    assert {s[1:] for s in seen} == {(1, False)}
    lead = seen[0][0]
    assert lead not in {s[0] for s in seen[1:]}
    assert threading.get_ident() not in {s[0] for s in seen}
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == 2


def test_a_piece_that_fails_is_heard():
    def fail():
        raise ValueError("piece")

    for threads in (1, 2):
        torch.set_num_threads(threads)
        with pytest.raises(ValueError, match="piece"):
            conduct(lambda: run_all([lambda: None, fail, lambda: None]))


def test_two_callers_at_once():
    torch.set_num_threads(2)
    calls = [make(batch=2, keys=700, groups=4, seed=s) for s in range(4)]
    wanted = [attend(call)[0] for call in calls]
    got = [None] * 4

    def caller(n):
        got[n] = attend(calls[n])[0]

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_starts_its_own_threads():
    torch.set_num_threads(2)
    job = partial(run_all, [lambda: None, lambda: None])
    conduct(job)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        conduct(job)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
