"""The mask canvas's own functions, run in Chromium, against the pattern that the kernels are tested with."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

import numpy as np
import pytest

from app.ui.mask import HERE
from app.ui.mask.data import blocks_term, terms_of
from focus_core.pattern import GroupPattern
from tests.app.synthetic import make_trace

pytestmark = pytest.mark.browser

GROUP, WINDOW, SINK, BLOCK, PAIR = 1, 2, 4, 8, 16
EXACT = """(job) => { const m = openMask(job.mask), out = [];
  for (let i = job.i0; i < job.i1; i++) for (let j = job.j0; j < job.j1; j++) out.push(whyKept(m, i, j));
  return out; }"""
POOLED = """(job) => { const m = openMask(job.mask);
  return Array.from(poolMask(m, job.i0, job.j0, job.step, job.rows, job.columns)); }"""
SHARES = """(job) => { const m = openMask(job.mask), o = job.other ? openMask(job.other) : null;
  const found = shareMask(m, o, job.i0, job.j0, job.step, job.rows, job.columns);
  return [found.planes.map((p) => Array.from(p)), found.exact]; }"""


@dataclass
class Case:
    name: str
    pattern: GroupPattern
    head: int = 0
    batch: int = 0


def random_sets(rng, shape, groups: int, most: int) -> np.ndarray:
    bits = np.zeros(shape, np.uint64)
    for _ in range(most):
        chosen = np.uint64(1) << rng.integers(0, groups, shape).astype(np.uint64)
        bits |= np.where(rng.random(shape) < 0.7, chosen, np.uint64(0))
    return bits.view(np.int64)


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1, 2, 7, 33, 90, 150]))
    routers = int(rng.choice([1, 3]))
    groups = int(rng.choice([1, 4, 16, 33, 64]))
    batch = int(rng.choice([1, 2]))
    queries = random_sets(rng, (batch, routers, n), groups, int(rng.integers(1, 4)))
    keys = random_sets(rng, (batch, routers, n), groups, int(rng.integers(1, 3)))
    first = rng.integers(0, n, batch) if rng.random() < 0.4 else None
    window, sinks = int(rng.integers(1, n + 1)), int(rng.integers(0, 5))
    pattern = GroupPattern(queries, keys, 6, window, sinks, first)
    return Case(f"seed {seed}", pattern, int(rng.integers(0, 6)), int(rng.integers(0, batch)))


def named_cases() -> list[Case]:
    top = np.full((1, 1, 40), np.int64(-(1 << 63)))
    native = make_trace("one two three four five six " * 9, native=[None, 7, None, None], window=5, query_topk=1)
    return [
        *map(random_case, range(40)),
        Case("bit 63", GroupPattern(top, top, 2, 1)),
        Case("one token", GroupPattern.without_groups(1, 1, 1, 2, 1, 4)),
        Case("dense", GroupPattern.without_groups(1, 50, 50, 2, 50)),
        Case("window alone", GroupPattern.without_groups(1, 50, 50, 2, 3)),
        Case("a native sliding layer", native.pattern(1), 4),
        Case("a layer with one router a KV head", native.pattern(2), 4),
    ]


@pytest.fixture(scope="module")
def page(browser):
    opened = browser.new_page()
    opened.add_script_tag(content=(HERE / "cells.js").read_text("utf-8"))
    yield opened
    opened.close()


def cells(page, mask, i0, i1, j0, j1) -> np.ndarray:
    job = {"mask": mask, "i0": i0, "i1": i1, "j0": j0, "j1": j1}
    return np.array(page.evaluate(EXACT, json.loads(json.dumps(job)))).reshape(i1 - i0, j1 - j0)


def pooled(page, mask, i0, j0, step, rows, columns) -> np.ndarray:
    job = {"mask": mask, "i0": i0, "j0": j0, "step": step, "rows": rows, "columns": columns}
    return np.array(page.evaluate(POOLED, job)).reshape(rows, columns)


def blocks_of(full: np.ndarray, i0: int, j0: int, step: int, rows: int, columns: int, how) -> np.ndarray:
    out = np.zeros((rows, columns))
    for r in range(rows):
        for c in range(columns):
            part = full[i0 + r * step : i0 + (r + 1) * step, j0 + c * step : j0 + (c + 1) * step]
            out[r, c] = how(part) if part.size else 0
    return out


def views(n: int, rng) -> list[tuple[int, int, int, int, int]]:
    """(i0, j0, step, rows, columns): the whole, and parts of it that do and do not begin at a whole cell."""
    found = [(0, 0, step, -(-n // step), -(-n // step)) for step in (1, 2, 3, 5, 16)]
    for _ in range(4):
        step = int(rng.integers(1, 9))
        i0, j0 = (int(rng.integers(0, n)) for _ in range(2))
        found.append((i0, j0, step, int(rng.integers(1, 1 + -(-n // step))), int(rng.integers(1, 1 + -(-n // step)))))
    return found


@pytest.mark.parametrize("case", named_cases(), ids=lambda case: case.name)
def test_cells_and_pooled_cells_are_the_patterns(page, case):
    pattern, n = case.pattern, case.pattern.keys
    mask = terms_of(pattern, case.head, case.batch)
    full = pattern.tile(case.batch, case.head, slice(0, n), slice(0, n))
    assert ((cells(page, mask, 0, n, 0, n) != 0) == full).all()
    first = 0 if pattern.first_key is None else int(pattern.first_key[case.batch])
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    pairs = (j <= i) & (j >= first)
    # Each reason alone, by taking the others away from the pattern.
    alone = {
        WINDOW: pairs & (i - j < pattern.window),
        SINK: pairs & (j - first < pattern.sinks),
        GROUP: GroupPattern(pattern.query_bits, pattern.key_bits, pattern.heads, 0, 0, pattern.first_key).tile(
            case.batch, case.head, slice(0, n), slice(0, n)
        ),
        PAIR: pairs,
    }
    for view in views(n, np.random.default_rng(n)):
        got = pooled(page, mask, *view)
        assert ((got & ~PAIR != 0) == (blocks_of(full, *view, np.max) > 0)).all(), view
        for flag, part in alone.items():
            assert ((got & flag != 0) == (blocks_of(part, *view, np.max) > 0)).all(), (view, flag)


@pytest.mark.parametrize("seed", range(6))
def test_shares_of_small_cells_are_exact_and_of_large_ones_near(page, seed):
    one, two = random_case(100 + seed).pattern, None
    n = one.keys
    rng = np.random.default_rng(seed)
    two = GroupPattern(random_sets(rng, (1, 1, n), 8, 1), random_sets(rng, (1, 1, n), 8, 1), 2, 2, 1)
    a = one.tile(0, 0, slice(0, n), slice(0, n))
    b = two.tile(0, 0, slice(0, n), slice(0, n))
    first = 0 if one.first_key is None else int(one.first_key[0])
    pairs = np.tril(np.ones((n, n), bool)) & (np.arange(n) >= first)[None, :]
    job = {"mask": terms_of(one), "other": terms_of(two), "i0": 0, "j0": 0}
    for step in (1, 2, 4):
        size = -(-n // step)
        planes, exact = page.evaluate(SHARES, {**job, "step": step, "rows": size, "columns": size})
        assert exact
        count = np.maximum(blocks_of(pairs, 0, 0, step, size, size, np.sum), 1)
        for got, part in zip(planes, (a & b, a & ~b, b & ~a & pairs), strict=True):
            want = blocks_of(part, 0, 0, step, size, size, np.sum) / count
            assert np.abs(np.array(got).reshape(size, size) / 255 - want).max() <= 0.5 / 255 + 1e-9
    size = -(-n // 5)
    assert page.evaluate(SHARES, {**job, "step": 5, "rows": size, "columns": size})[1] is False


def test_the_share_of_one_cell_counts_all_its_pairs(page):
    case = random_case(7)
    pattern, n = case.pattern, case.pattern.keys
    full = pattern.tile(case.batch, case.head, slice(0, n), slice(0, n))
    first = 0 if pattern.first_key is None else int(pattern.first_key[case.batch])
    pairs = np.tril(np.ones((n, n), bool)) & (np.arange(n) >= first)[None, :]
    mask, share = terms_of(pattern, case.head, case.batch), "([m, ...at]) => cellShare(openMask(m), ...at)"
    for step in (1, 3, 5):
        for i in range(0, n, 2 * step):
            for j in range(0, n, 3 * step):
                part = slice(i, i + step), slice(j, j + step)
                want = full[part].sum() / max(1, pairs[part].sum())
                assert page.evaluate(share, [mask, i, j, step]) == pytest.approx(want)


def test_a_mask_of_blocks_is_one_more_term(page):
    rng = np.random.default_rng(3)
    n, size = 50, 8
    kept = rng.random((7, 7)) < 0.4
    full = np.kron(kept, np.ones((size, size), bool))[:n, :n] & np.tril(np.ones((n, n), bool))
    mask = {"count": n, "first": 0, "terms": [blocks_term(kept, size)]}
    assert (cells(page, mask, 0, n, 0, n) == np.where(full, BLOCK, 0)).all()
    for view in views(n, rng):
        assert ((pooled(page, mask, *view) & BLOCK != 0) == (blocks_of(full, *view, np.max) > 0)).all(), view
    near = {"kind": "window", "size": 3}
    both = cells(page, {**mask, "terms": [*mask["terms"], near]}, 0, n, 0, n)
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    assert ((both != 0) == (full | ((j <= i) & (i - j < 3)))).all()


def test_a_row_is_counted_by_the_first_reason_that_holds(page):
    trace = make_trace("the quick brown fox jumps over the lazy dog " * 20, window=16, sinks=2)
    mask = terms_of(trace.pattern(1), 3)
    kept = trace.pattern(1).kept_per_query(0, 3)
    count = "(job) => { const m = openMask(job.mask); return job.rows.map((i) => countRow(m, i)); }"
    rows = [0, 1, 5, 40, len(trace) - 1]
    found = page.evaluate(count, {"mask": mask, "rows": rows})
    assert [f["all"] for f in found] == [int(kept[i]) for i in rows]
    assert [f["near"] for f in found] == [min(i + 1, 16) for i in rows]
    assert [f["sink"] for f in found] == [min(2, max(0, i + 1 - 16)) for i in rows]


def test_sets_travel_as_words_with_their_highest_bit(page):
    bits = np.array([1, 1 << 31, 1 << 32, -(1 << 63)], np.int64)[None, None]
    mask = terms_of(GroupPattern(bits, bits, 1, 1))
    low, high = mask["terms"][-1]["q"]
    assert np.frombuffer(base64.b64decode(low), np.uint32).tolist() == [1, 1 << 31, 0, 0]
    assert np.frombuffer(base64.b64decode(high), np.uint32).tolist() == [0, 0, 1, 1 << 31]
    shared = page.evaluate("(mask) => [0, 1, 2, 3].map((t) => sharedGroups(openMask(mask), t, t))", mask)
    assert shared == [[0], [31], [32], [63]]
