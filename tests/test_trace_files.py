"""Trace files from elsewhere: what a run writes opens; what does not fit is refused with the part that is wrong."""

import io
import json
import zipfile

import numpy as np
import pytest

from focus_core import trace_files
from focus_core.assets import DATA
from focus_core.capture import capture_trace
from focus_core.edits import Move, parse
from focus_core.errors import FocusError, InvalidInput, TooLarge
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.routing.kmeans import KMeansCentroids, KMeansConfig
from focus_core.trace import Trace
from focus_core.trace_arrays import is_known
from focus_core.trace_files import open_trace
from focus_core.variants import make
from tests.app.synthetic import HEADS, KV_HEADS, LAYERS, make_dense, make_trace
from tests.jobs.test_capture import load
from tests.jobs.test_capture_arrays import of_router
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = "The small town slept under snow, and “nobody” saw the light. " * 8


@pytest.fixture
def trace():
    return make_trace(TEXT, maps=True)


def opened(trace, tmp_path, **options):
    return open_trace(trace.save(tmp_path / "t.npz", **options))


# ---- what must open ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((DATA / "traces").glob("*.npz")), ids=lambda path: path.stem)
def test_what_ships_opens(path):
    assert len(open_trace(path)) > 1000


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_gives_back_what_was_saved(trace, tmp_path, compress):
    back = opened(trace, tmp_path, compress=compress)
    assert back.provenance == trace.provenance
    assert (back.text, back.tokens, back.top_text) == (trace.text, trace.tokens, trace.top_text)
    assert back.arrays.keys() == trace.arrays.keys()
    assert all(np.array_equal(back.arrays[name], array) for name, array in trace.arrays.items())


def test_an_old_trace_a_dense_one_and_one_of_two_tokens_open(tmp_path):
    opened(make_trace(TEXT, extras=False, points=False), tmp_path)
    opened(make_trace(TEXT, limit=2), tmp_path)
    dense = make_trace(TEXT, variant="dense")
    make_dense(dense)
    opened(dense, tmp_path)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("dense", {}),
        ("window", {"window": 8}),
        ("random", {"window": 8, "groups": 4}),
        ("xattention", {"block": 8, "stride": 4}),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_a_run_records_opens(name, settings, family, tmp_path):
    model = tiny_model(family)
    loaded = Loaded(model, tiny_tokenizer(), facts_of(model, "tiny"), "tiny")
    edits = [{"layer": 1, "router": 0, "token": 9, "to": 2}] if name == "random" and family == "llama" else None
    back = opened(capture_trace(loaded, make(name, settings), None, TEXT, edits=parse(edits)), tmp_path)
    assert ("edits" in back.provenance) == (edits is not None)
    assert back.pattern(1).density(0, 0) > 0


@pytest.mark.parametrize("form", ["directed", "shared"])
def test_what_a_trained_router_records_opens(form, tmp_path):
    edit = Move(layer=1, router=2, token=9, to=3)
    back = opened(of_router(load(), form, edits=[edit]), tmp_path)
    assert back.provenance["edits"] == [edit.document()]
    assert back.routing_points(1) is not None


def test_what_kmeans_records_opens(tmp_path):
    loaded = load()
    facts = loaded.facts
    adapter = KMeansCentroids(KMeansConfig(facts.layers, loaded.model.config.hidden_size, groups=4))
    back = opened(capture_trace(loaded, make("kmeans", {"window": 8, "groups": 4}), adapter, TEXT), tmp_path)
    assert back.provenance["groups"] == 4


# ---- the archive ---------------------------------------------------------------------------------------------------


def parts(trace, tmp_path):
    with zipfile.ZipFile(trace.save(tmp_path / "whole.npz")) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts, path, packing=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, raw in parts.items():
            archive.writestr(name, raw)
    return path


def npy(array, shape=None):
    out = io.BytesIO()
    shape = array.shape if shape is None else shape
    descr = np.lib.format.dtype_to_descr(array.dtype)
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue() + array.tobytes()


@pytest.fixture
def unread(monkeypatch):
    """Fails when an array is read."""
    monkeypatch.setattr(trace_files.Trace, "load", lambda path: pytest.fail("an array was read"))


@pytest.mark.parametrize("size", [1 << 20, 300 << 20])
def test_an_unknown_array_of_zeros_is_refused_unread(trace, tmp_path, unread, size):
    made = parts(trace, tmp_path) | {"junk.npy": npy(np.zeros(size, np.uint8))}
    with pytest.raises(FocusError, match=r"'junk\.npy' is no array of a Trace|Unpacked, the file has 3"):
        open_trace(packed(made, tmp_path / "bomb.npz"))


@pytest.mark.parametrize("name", ["junk", "queries", "nll.1", "queries.01", "queries.-1", "queries.1.2", "../nll", ""])
def test_names_that_no_trace_has(name):
    assert not is_known(name)


@pytest.mark.parametrize("shape", [(1 << 45,), (1 << 30,), (-5,), (3, -2), ()])
def test_a_header_that_says_other_than_the_bytes_behind_it(trace, tmp_path, unread, shape):
    made = parts(trace, tmp_path) | {"entropy.npy": npy(np.zeros(2), shape)}
    with pytest.raises(InvalidInput, match=r"entropy does not hold|entropy has no header"):
        open_trace(packed(made, tmp_path / "t.npz"))


def test_a_known_array_that_is_too_large_is_refused_unread(trace, tmp_path, unread):
    made = parts(trace, tmp_path) | {"similar.npy": npy(np.zeros((4000, 4000), np.float16))}
    with pytest.raises(InvalidInput, match=r"similar has the shape \(4000, 4000\), not \(24, 24\)"):
        open_trace(packed(made, tmp_path / "t.npz"))


def test_the_document_is_no_longer_than_its_tokens_need(trace, tmp_path):
    trace = make_trace(TEXT, limit=50)
    trace.provenance["note"] = "x" * (2 << 20)
    with pytest.raises(TooLarge, match="those of 50 tokens take 1"):
        opened(trace, tmp_path, compress=True)


def test_archives_that_are_odd(trace, tmp_path):
    made, path = parts(trace, tmp_path), tmp_path / "t.npz"
    with pytest.raises(InvalidInput, match="packed in a way"):
        open_trace(packed(made, path, zipfile.ZIP_LZMA))
    packed(made, path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("nll.npy", made["nll.npy"])
    with pytest.raises(InvalidInput, match="nll is there twice"):
        open_trace(path)
    whole = packed(made, path, zipfile.ZIP_STORED).read_bytes()
    at = whole.index(made["nll.npy"]) + len(made["nll.npy"]) - 1
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(InvalidInput, match="damaged"):
        open_trace(path)
    for raw in (b"", b"x" * 5000, whole[: len(whole) // 2]):
        path.write_bytes(raw)
        with pytest.raises(InvalidInput, match=r"no \.npz archive"):
            open_trace(path)
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(20_000):
            archive.writestr(f"{i}.npy", b"")
    with pytest.raises(InvalidInput, match="more arrays than a Trace has"):
        open_trace(path)


@pytest.mark.parametrize(
    "document, why",
    [
        (b"[" * 100_000, "cannot be read"),
        (b"{", "cannot be read"),
        (b"[]", "holds no provenance"),
        (b'{"format": 9}', "format 9"),
        (b'{"format": 1}', "are missing"),
    ],
)
def test_documents_that_are_none(trace, tmp_path, document, why):
    made = parts(trace, tmp_path) | {"document.npy": npy(np.frombuffer(document, np.uint8))}
    with pytest.raises(InvalidInput, match=why):
        open_trace(packed(made, tmp_path / "t.npz"))


def test_no_refusal_names_a_folder(trace, tmp_path):
    made = parts(trace, tmp_path)
    for broken in ({"format": 9}, {"format": 1}, None):
        raw = npy(np.frombuffer(json.dumps(broken).encode(), np.uint8))
        with pytest.raises(InvalidInput) as found:
            open_trace(packed(made | {"document.npy": raw}, tmp_path / "t.npz"))
        assert str(tmp_path) not in str(found.value)


# ---- what the document says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value",
    [
        *[("config", value) for value in ("abc", [1], 3)],
        *[("adapter", value) for value in ({"a": 1}, [1], 5, "", "a\nb")],
        *[("text_name", value) for value in ({"a": 1}, 7)],
        *[("model", value) for value in (None, 5, [], "", "a\0b", "a" * 3000)],
        *[("variant", value) for value in (None, 5, {"a": 1})],
        *[("layers", value) for value in (0, -1, True, 2.0, "4", 1 << 20)],
        *[("heads", value) for value in (0, 5, "x", None)],
        *[("kv_heads", value) for value in (0, 4, [])],
        *[("window", value) for value in (None, "x", -1, 1.5, 1 << 40)],
        *[("sinks", value) for value in (None, "x", -1, [4])],
        *[("native", value) for value in (["x"] * LAYERS, [-5] * LAYERS, [0] * LAYERS, [None], None, "none")],
        *[("groups", value) for value in ("x", 0, 65, 1.5)],
        *[("seconds", value) for value in ("x", [1], float("nan"), float("inf"))],
        *[("scale", value) for value in ("x", 0, -1.0, float("nan"), None)],
        *[("softcap", value) for value in ("x", 0)],
        *[("versions", value) for value in ("x", [1])],
        *[("edits", value) for value in ("x", 3, [1])],
        *[(name, 5) for name in ("device", "dtype", "time", "note", "revision", "text_hash", "similar_how")],
        ("head_dim", "x"),
        ("recorded", "x"),
    ],
)
def test_a_fact_of_the_wrong_kind_is_named(trace, tmp_path, name, value):
    trace.provenance[name] = value
    with pytest.raises(InvalidInput, match=name if name != "kv_heads" else "kv_heads|KV heads") as found:
        opened(trace, tmp_path)
    assert found.value.message.count("\n") == 0
    assert len(found.value.message) < 200


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"text": "\ud800" + TEXT}, "text holds half of a character"),
        ({"tokens": ["\ud800"] + ["x"] * 9}, "tokens holds half of a character"),
        ({"top_text": {1: "\udfff"}}, "top_text holds half of a character"),
        ({"tokens": ["x"]}, "it has 1 tokens"),
        ({"tokens": ["x", 5]}, "a token in it is no text"),
        ({"tokens": ["x"] * 10}, "nll has the shape"),
        ({"text": "short"}, "byte_span ends at byte"),
        ({"text": 5}, "are missing"),
        ({"top_text": {"x": "y"}}, "top_text does not"),
        ({"top_text": {1: 5}}, "top_text does not"),
    ],
)
def test_texts_and_tokens(trace, tmp_path, changed, why):
    whole = {name: getattr(trace, name) for name in ("provenance", "text", "tokens", "arrays", "top_text")} | changed
    with pytest.raises(InvalidInput, match=why):
        opened(Trace(**whole), tmp_path)


# ---- how arrays fit ------------------------------------------------------------------------------------------------


def cast(name, dtype):
    return name, lambda a: a.astype(dtype)


def filled(name, value, dtype=None):
    return name, lambda a: np.full(a.shape, value, dtype or a.dtype)


def shaped(name, *shape):
    return name, lambda a: np.zeros(shape, a.dtype)


def gone(name):
    return name, None


@pytest.mark.parametrize(
    "name, change",
    [
        *[gone(name) for name in ("nll", "dense_nll", "kept_pairs", "query_bits", "key_bits", "top_p", "top_ids")],
        *[gone(name) for name in ("queries.1", "keys.1", "centroids.0", "key_points.1")],
        *[cast(name, np.float32) for name in ("key_bits", "query_bits", "kmeans_bits", "byte_span", "word", "partial")],
        *[cast(name, np.int32) for name in ("key_bits", "query_bits", "top_p", "map.0", "queries.1")],
        *[cast(name, complex) for name in ("nll", "dense_nll", "kept_pairs", "entropy")],
        *[cast(name, ">i8") for name in ("key_bits",)],
        *[cast(name, "U3") for name in ("nll", "token_ids")],
        *[shaped(name, LAYERS, 0, 9) for name in ("key_bits", "query_bits", "kmeans_bits")],
        ("key_bits", lambda a: a[:, :2]),
        ("query_bits", lambda a: a[:, :1]),
        ("query_bits", lambda a: a[..., :-1]),
        ("key_bits", lambda a: a << 20),
        *[shaped(name, 2, 2) for name in ("kept_pairs", "mass_kept", "entropy", "sink_mass", "similar", "byte_span")],
        *[shaped(name, 3) for name in ("partial", "word", "token_ids", "top_ids", "top_p", "nll", "kept_pairs")],
        *[shaped(name, 1, 2) for name in ("map.0", "map_centroids.0", "key_points.0", "centroids.0", "queries.1")],
        *[(name, lambda a: a[:1]) for name in ("map.2", "map_centroids.0", "key_points.3", "centroids.0", "keys.2")],
        ("map.0", lambda a: np.concatenate([a, a[:, :1]], 1)),
        ("map_centroids.0", lambda a: a[:, :-1]),
        ("centroids.1", lambda a: a[..., :-1]),
        ("top_p", lambda a: a[:, :0]),
        ("top_ids", lambda a: a[:, :-1]),
        *[filled(name, np.nan) for name in ("nll", "dense_nll", "kept_pairs", "mass_kept", "entropy", "sink_mass")],
        *[filled(name, np.inf) for name in ("mass_kept", "similar", "map.1", "map_centroids.1", "key_points.1")],
        *[filled(name, np.nan) for name in ("centroids.1", "queries.1", "keys.2", "top_p", "dense_top_p")],
        *[filled(name, 1e30) for name in ("nll", "dense_nll", "kept_pairs")],
        *[filled(name, -1) for name in ("kept_pairs", "entropy", "top_p", "top_ids", "token_ids", "byte_span")],
        filled("byte_span", 10**9),
        ("byte_span", lambda a: a[::-1].copy()),
        ("byte_span", lambda a: a[:, ::-1].copy()),
    ],
)
def test_an_array_that_does_not_fit_is_named(trace, tmp_path, name, change):
    if change is None:
        del trace.arrays[name]
    else:
        trace.arrays[name] = change(trace.arrays[name])
    # A pair that does not agree is named by one of the two.
    named = {"top_p": "top_p|top_ids", "top_ids": "top_ids|top_p", "key_bits": "key_bits|query_bits"}.get(name, name)
    if name.split(".")[0] in ("centroids", "key_points"):
        named = rf"{name}|points\.|centroids\."
    with pytest.raises(InvalidInput, match=named) as found:
        opened(trace, tmp_path)
    assert len(found.value.message) < 200


def test_arrays_of_layers_that_are_not_there(trace, tmp_path):
    for name in ("map.2", "keys.1", "centroids.1"):
        head = name.split(".")[0]
        made = Trace(trace.provenance, trace.text, trace.tokens, {**trace.arrays, f"{head}.{LAYERS}": np.zeros(1)})
        with pytest.raises(InvalidInput, match=f"{head}.{LAYERS} belongs to no layer"):
            opened(made, tmp_path)


def test_one_router_may_serve_every_head(trace, tmp_path):
    heads = {"key_bits", "query_bits"}
    by_layer = ("key_points", "query_points", "centroids", "map", "map_centroids")
    for name, array in trace.arrays.items():
        if name in heads:
            trace.arrays[name] = array[:, :1]
        elif name.split(".")[0] in by_layer:
            trace.arrays[name] = array[:1]
    back = opened(trace, tmp_path)
    assert back.arrays["key_bits"].shape[1] == 1 < KV_HEADS < HEADS
