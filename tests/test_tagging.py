import pytest

from data.build.tagger import unpack
from focus_core import tagging
from focus_core.assets import load_text
from focus_core.tagging import split_words, tag
from focus_core.tags import UNIVERSAL


def words(text: str) -> list[list[str]]:
    return [[word for _, _, word in sentence] for sentence in split_words(text)]


def test_words_are_split_as_the_corpus_splits_them():
    (found,) = words("Mr. Smith didn't pay $1,200.50, or 25%, for the U.S. well-known boys' 30-year bond--yet.")
    expected = "Mr. Smith didn't pay $1,200.50 , or 25% , for the U.S. well-known boys' 30-year bond -- yet ."
    assert found == expected.split()


def test_sentences_end_at_points_quotes_and_empty_lines():
    assert [s[-1] for s in words('"Is it?" she said. J. Smith left. A heading\n\nNext (truly.) Last')] == [
        '"',
        ".",
        ".",
        "heading",
        ")",
        "Last",
    ]


@pytest.mark.parametrize("text", ["", "   \n", "한국어 🙂 ‫שלום‬ naïve", "\tx", "'", "...!?", "a_b __init__"])
def test_every_character_is_in_one_word_at_its_bytes(text):
    raw = text.encode("utf-8")
    found = tag(text)
    assert "".join(word.word for word in found) == "".join(text.split())
    for word in found:
        assert raw[word.byte_start : word.byte_end].decode("utf-8") == word.word
        assert word.universal_tag in UNIVERSAL


def test_tags_of_a_plain_sentence():
    found = [
        (word.word, word.universal_tag) for word in tag("The old man quickly opened “the” door and she can’t see.")
    ]
    assert dict(found) == {
        "The": "DET",
        "old": "ADJ",
        "man": "NOUN",
        "quickly": "ADV",
        "opened": "VERB",
        "“": ".",
        "the": "DET",
        "”": ".",
        "door": "NOUN",
        "and": "CONJ",
        "she": "PRON",
        "can’t": "VERB",
        "see": "VERB",
        ".": ".",
    }


def test_it_tags_as_nltk_does():
    theirs = unpack(tagging.shipped())
    for name in ("persuasion opening", "brown learned", "brown fiction"):
        text = load_text(name).text[:40_000]
        assert tag(text) == tagging.tag_sentences(theirs, text)


def test_accuracy_on_shipped_text_that_the_tagger_never_saw():
    for name in ("brown news", "brown fiction"):
        text = load_text(name)
        assert text.tags is not None
        found = {(word.byte_start, word.byte_end): word.universal_tag for word in tag(text.text)}
        right = sum(found.get((t.byte_start, t.byte_end)) == t.universal_tag for t in text.tags)
        assert right / len(text.tags) > 0.96


def test_the_record_says_what_was_held_out():
    record = tagging.accuracy()
    assert len(record["held_out_files"]) == 50
    assert record["training_files"] == 450
    assert 0.96 < record["accuracy_on_running_text"] < 1
    assert tagging.MODEL_FILE.stat().st_size < 1_500_000


def test_a_missing_file_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(tagging, "MODEL_FILE", tmp_path / "gone.json")
    tagging._tagger.cache_clear()
    try:
        with pytest.raises(tagging.NotAvailable, match=r"gone\.json is missing"):
            tag("one")
    finally:
        tagging._tagger.cache_clear()
