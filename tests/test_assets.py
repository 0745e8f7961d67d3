import hashlib
import itertools
import json
from types import SimpleNamespace

import pytest

from focus_core import assets
from focus_core.assets import DATA, Text, adapters, decode_text, load_text, text_names, training_text, validation_text
from focus_core.errors import InvalidInput
from focus_core.tags import UNIVERSAL, universal_tag

NOVELS = {"emma", "mansfield park", "northanger abbey", "persuasion", "pride and prejudice", "sense and sensibility"}


def tagged() -> list[Text]:
    return [text for text in map(load_text, text_names()) if text.tags is not None]


def test_every_listed_text_loads_and_is_long_enough_to_be_sparse():
    assert set(text_names("novel")) == NOVELS
    for name in text_names():
        text = load_text(name)
        assert text.name == name == name.lower()
        assert text.tokens is not None
        assert text.tokens >= 1_024
        assert 2.5 < len(text.text) / text.tokens < 5.5, "the recorded token count is of another text"
        assert "\r" not in text.text
        assert "\N{REPLACEMENT CHARACTER}" not in text.text


def test_the_catalogue_names_every_file_with_its_hash():
    listed = {e["file"]: e for e in assets.catalog()["texts"] if "file" in e}
    assert {f"texts/{path.name}" for path in (DATA / "texts").glob("*.txt")} == set(listed)
    for file, entry in listed.items():
        assert hashlib.sha256((DATA / file).read_bytes()).hexdigest() == entry["sha256"]


def test_short_passages_come_first_and_fit_the_default_limit():
    names = text_names()
    passages = text_names("passage")
    assert names[: len(passages)] == passages
    assert "persuasion opening" in passages
    assert any(load_text(name).tags for name in passages)
    for name in passages:
        text = load_text(name)
        assert text.tokens is not None
        assert 1_024 < text.tokens < 1_200
        assert "\n" not in text.text.replace("\n\n", ""), "a passage still has broken lines"
        assert text.text[0] not in " \n"


def test_tags_lie_on_their_words_and_cover_the_text():
    texts = tagged()
    assert len([t for t in texts if t.name.startswith("brown ")]) >= 4
    for text in texts:
        assert text.tags is not None
        raw = text.text.encode("utf-8")
        end = 0
        for tag in text.tags:
            assert raw[end : tag.byte_start].decode().strip() == "", f"untagged text in {text.name}"
            assert raw[tag.byte_start : tag.byte_end].decode() == tag.word
            assert tag.universal_tag == universal_tag(tag.brown_tag)
            end = tag.byte_end
        assert raw[end:].strip() == b""


def test_brown_reads_like_ordinary_text():
    text = load_text("brown news").text
    assert text.startswith("The Fulton County Grand Jury said Friday an investigation of Atlanta's recent primary")
    assert 'produced "no evidence" that' in text
    for odd in ("``", "''", " ,", " .", "( ", " )", ";;", "..\n"):
        assert odd not in text


def test_the_held_out_novel_and_the_validation_slice_are_never_trained_on():
    training, validation = training_text(), validation_text()
    held_out = load_text("persuasion")
    assert {role.role for role in held_out.roles} == {"held-out"}
    for text in (held_out.text, validation):
        for start in range(0, len(text) - 400, 20_000):
            assert text[start : start + 400].strip() not in training
    for start in range(0, len(held_out.text) - 400, 20_000):
        assert held_out.text[start : start + 400].strip() not in validation
    assert len(training) > 3_000_000
    counted = [r for e in assets.catalog()["texts"] for r in e["roles"] if r["role"] == "validation"]
    assert [65_536 <= role["tokens"] < 72_000 for role in counted] == [True]


def test_roles_partition_the_novels():
    for name in NOVELS:
        text = load_text(name)
        edges = [(role.start, role.end) for role in text.roles]
        assert edges[0][0] == 0
        assert edges[-1][1] == len(text.text)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))


def test_names_are_found_in_any_case_and_close_ones_are_suggested():
    assert load_text("  Persuasion ") is load_text("persuasion")
    with pytest.raises(InvalidInput, match='Did you mean "persuasion"') as caught:
        load_text("persuasoin")
    assert "persuasoin" in caught.value.message
    with pytest.raises(InvalidInput, match=r"Shipped texts: .*emma"):
        load_text("zzzz")


def test_a_file_is_read_with_its_line_ends_made_plain(tmp_path):
    path = tmp_path / "own.txt"
    path.write_bytes("\ufeffHéllo\r\nworld 한국어\r".encode())
    text = load_text(path)
    assert (text.text, text.title, text.tags, text.tokens) == ("Héllo\nworld 한국어\n", "own.txt", None, None)


@pytest.mark.parametrize(
    "raw, says",
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "zero bytes"),
        (bytes(range(1, 32)) * 9, "control characters"),
        ("naïve".encode("latin-1") + b" text", "not UTF-8: byte 3 is 0xef"),
        ("text".encode("utf-16"), "UTF-16"),
        (b"a" * 1_001, "more than the limit"),
    ],
)
def test_what_is_not_a_text_is_refused_with_the_reason(raw, says, tmp_path):
    path = tmp_path / "upload.txt"
    path.write_bytes(raw)
    for attempt in (lambda: load_text(path, max_bytes=1_000), lambda: decode_text(raw, "upload.txt", max_bytes=1_000)):
        with pytest.raises(InvalidInput, match=says) as caught:
            attempt()
        assert caught.value.message.startswith("upload.txt")
        assert caught.value.hint


def test_a_folder_is_not_a_text(tmp_path):
    with pytest.raises(InvalidInput, match="is a folder"):
        load_text(tmp_path)


@pytest.mark.parametrize(
    "brown, universal",
    [
        ("nn-tl-hl", "NOUN"),
        ("np$", "NOUN"),
        ("ppss+bem", "PRON"),
        ("bedz*", "VERB"),
        ("*", "ADV"),
        ("wdt", "DET"),
        ("wrb", "ADV"),
        ("wps", "PRON"),
        ("to", "PRT"),
        ("fw-nn", "X"),
        ("nil", "X"),
        ("``", "."),
        ("--", "."),
        ("CD", "NUM"),
    ],
)
def test_brown_tags_fold_to_universal_ones(brown, universal):
    assert universal_tag(brown) == universal
    assert universal in UNIVERSAL


def test_adapters_are_found_by_their_folder_and_by_the_models_shape(tmp_path, monkeypatch):
    shape = {"family": "llama", "layers": 30, "hidden_size": 576, "heads": 9, "kv_heads": 3, "vocab": 49_152}
    folder = tmp_path / "adapters" / "mine"
    folder.mkdir(parents=True)
    (folder / "focus_config.json").write_text(json.dumps({"model": {**shape, "weights": "0"}}))
    (tmp_path / "adapters" / "half-written").mkdir()
    monkeypatch.setattr(assets, "DATA", tmp_path)
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    assert list(adapters()) == ["mine"]
    assert adapters()["mine"]["path"] == folder
    assert list(assets.adapters_for(SimpleNamespace(**shape))) == ["mine"]
    assert assets.adapters_for(SimpleNamespace(**{**shape, "layers": 12})) == {}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A cache folder of its own, and a finished adapter elsewhere."""
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "made"
    made.mkdir()
    (made / "focus_config.json").write_text(json.dumps({"kind": "router", "model": {"layers": 2}}))
    (made / "focus_adapter.safetensors").write_bytes(b"weights")
    (made / "checkpoint.safetensors").write_bytes(b"much more")
    return made


def test_an_adapter_of_the_users_own_is_kept_listed_last_and_deleted(own):
    shipped = list(adapters())
    place = assets.keep_adapter("mine", own)
    assert place == assets.user_adapters_folder() / "mine"
    assert {p.name for p in place.iterdir()} == {"focus_config.json", "focus_adapter.safetensors"}
    assert list(adapters()) == [*shipped, "mine"]
    assert adapters()["mine"]["user"]
    assert not any(adapters()[name]["user"] for name in shipped)
    assets.delete_adapter("mine")
    assert list(adapters()) == shipped
    assert list(assets.user_adapters_folder().iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".x", "Mine", "x" * 61, "a b", None, 3])
def test_a_name_that_leads_elsewhere_is_refused(own, name):
    with pytest.raises(InvalidInput, match="cannot be kept"):
        assets.keep_adapter(name, own)
    assert not assets.user_adapters_folder().exists()


def test_no_adapter_is_replaced_and_no_shipped_one_is_deleted(own):
    assets.keep_adapter("mine", own)
    for name in ("mine", "smollm2-directed-k16"):
        with pytest.raises(InvalidInput, match="already"):
            assets.keep_adapter(name, own)
    with pytest.raises(InvalidInput, match="of your own"):
        assets.delete_adapter("smollm2-directed-k16")
    assert (DATA / "adapters" / "smollm2-directed-k16").is_dir()


def test_a_run_without_an_adapter_yet_is_not_kept(own):
    (own / "focus_adapter.safetensors").unlink()
    with pytest.raises(InvalidInput, match="no trained adapter yet"):
        assets.keep_adapter("mine", own)
    assert "mine" not in adapters()


def test_a_broken_folder_among_the_users_own_is_left_out(own):
    shipped = list(adapters())
    for name, text in (("cut", "{"), ("list", "[]"), ("none", "{}"), ("smollm2-directed-k16", '{"model": {}}')):
        folder = assets.user_adapters_folder() / name
        folder.mkdir(parents=True)
        (folder / "focus_config.json").write_text(text)
    assert list(adapters()) == shipped
    assert not adapters()["smollm2-directed-k16"]["user"]
