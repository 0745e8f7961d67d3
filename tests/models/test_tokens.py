"""Every token's bytes, characters and word, for each kind of tokenizer and script."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from focus_core.errors import InvalidInput
from focus_core.models.tokens import byte_warning, partial_share, tokenize
from tests.tiny import tiny_tokenizer

TEXTS = {
    "english": "The cat sat.  It's on the mat,\nand \tthe dog ran 3.14 miles... ",
    "korean": "안녕하세요 세계, 고양이가 앉았다.",
    "japanese": "東京タワーへ行きました。猫が好きです！",
    "emoji": "hi 👩‍👩‍👧 there 🇰🇷 👍🏽 ok ❤️",
    "arabic": "مرحبا بالعالم، كيف حالك؟",
    "hebrew": "שלום עולם, מה שלומך?",
    "hindi": "हिन्दी में लिखा",
    "combining": "cafe\u0301 na\u0308ive A\u030a",
    "mixed": "a한b\u200bc\u00a0d\u3000e \u2581 <0xE3> <|end|> \r\n end",
    "zeros": "\x00\x01 nul\x00s",
}


def sentencepiece(prefix: bool) -> PreTrainedTokenizerFast:
    """A BPE tokenizer with byte fallback, as LLaMA's (with the space before the first word) and Gemma's (without)."""
    vocab = {"<unk>": 0, "<s>": 1} | {f"<0x{b:02X}>": 2 + b for b in range(256)}
    for piece in ["▁", *"thecadogsnmr.,T", "th", "the", "▁the", "ca", "cat", "▁cat", "한", "é"]:
        vocab.setdefault(piece, len(vocab))
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("c", "a"), ("ca", "t"), ("▁", "cat")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    end = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


def composing() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that first composes characters, as Qwen's."""
    inner = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    inner.normalizer = normalizers.NFC()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")


def trimming() -> PreTrainedTokenizerFast:
    """A word-piece tokenizer that lower-cases and drops white space: only its offsets tell where it is."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(list(TEXTS.values()), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


TOKENIZERS = {
    "byte-level": tiny_tokenizer,
    "llama": lambda: sentencepiece(True),
    "gemma": lambda: sentencepiece(False),
    "composing": composing,
    "trimming": trimming,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_spans_rebuild_the_text(kind, text):
    check(tokenize(TOKENIZERS[kind](), TEXTS[text]), TEXTS[text])


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_spans_rebuild_the_text_with_the_packaged_tokenizer(text, smollm2_tokenizer):
    tokens = tokenize(smollm2_tokenizer, TEXTS[text])
    check(tokens, TEXTS[text])
    assert smollm2_tokenizer.decode(tokens.ids, clean_up_tokenization_spaces=False) == TEXTS[text]


def check(tokens, text):
    data = text.encode()
    assert len(tokens) == len(tokens.ids) == len(tokens.span) == len(tokens.partial) == len(tokens.word)
    assert (tokens.ids.dtype, tokens.span.dtype, tokens.word.dtype) == (np.int32, np.int32, np.int32)
    assert tokens.span[0, 0] == 0
    assert tokens.span[-1, 1] == len(data)
    assert (tokens.span[1:, 0] == tokens.span[:-1, 1]).all()
    assert b"".join(data[a:b] for a, b in tokens.span) == data
    for (a, b), shown, partial, word in zip(tokens.span, tokens.text, tokens.partial, tokens.word, strict=True):
        assert "\ufffd" not in shown
        if a == b:
            assert (shown, partial, word) == ("", False, -1)
            continue
        try:
            whole = data[a:b].decode()
        except UnicodeDecodeError:
            whole = None
        assert partial == (whole is None)
        assert whole is None or shown == whole
        assert data[a:b] in shown.encode()
        assert (word == -1) == (not shown.strip())
    assert list(tokens.word[tokens.word >= 0]) == sorted(tokens.word[tokens.word >= 0])


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma"])
def test_a_character_of_several_tokens(kind):
    tokens = tokenize(TOKENIZERS[kind](), "세계")
    tokens = [(s, tuple(span), p) for s, span, p in zip(tokens.text, tokens.span, tokens.partial, strict=True) if s]
    assert tokens == [("세", (i, i + 1), True) for i in range(3)] + [("계", (i, i + 1), True) for i in range(3, 6)]


def test_a_character_that_is_one_token_is_whole():
    tokens = tokenize(sentencepiece(False), "한é 세")
    assert tokens.text[:3] == ["한", "é", " "]
    assert not tokens.partial[:3].any()
    assert tokens.partial[3:].all()


def test_llama_prefix_space_is_not_in_the_text():
    tokens = tokenize(sentencepiece(True), "the cat")
    assert tokens.text == ["the", " cat"]
    assert tokens.span.tolist() == [[0, 3], [3, 7]]
    assert tokenize(sentencepiece(False), "the cat").text == ["the", " cat"]


def test_composed_characters_take_the_bytes_of_the_text():
    tokens = tokenize(composing(), "e\u0301 x")  # two tokens for the composed character, three bytes in the text
    assert tokens.span.tolist() == [[0, 2], [2, 3], [3, 4], [4, 5]]
    assert tokens.text == ["e\u0301", "\u0301", " ", "x"]
    assert tokens.word.tolist() == [0, 0, -1, 1]


def test_no_beginning_token_is_added():
    tokenizer = sentencepiece(False)
    assert tokenizer.bos_token_id not in tokenize(tokenizer, "the cat").ids


def test_words():
    tokens = tokenize(tiny_tokenizer(), "the cat, don't  go")
    by_word = {}
    for (a, b), word in zip(tokens.span, tokens.word, strict=True):
        by_word[int(word)] = by_word.get(int(word), b"") + b"the cat, don't  go"[a:b]
    assert by_word.pop(-1, b"").strip() == b""
    assert [by_word[i].strip() for i in sorted(by_word)] == [b"the", b"cat", b",", b"don't", b"go"]


def test_partial_share_and_its_warning():
    english, korean = "the cat sat on the mat", "안녕하세요 세계"
    assert partial_share(tokenize(tiny_tokenizer(), english)) == 0
    assert byte_warning(tokenize(tiny_tokenizer(), english).partial, english) is None
    tokens = tokenize(tiny_tokenizer(), korean)
    assert partial_share(tokens) > 0.9
    warning = byte_warning(tokens.partial, korean)
    assert f"{len(tokens) / len(korean):.1f} tokens a character" in warning
    edge = np.array([True] + [False] * 4)
    assert byte_warning(edge, "abcde") is None
    assert byte_warning(np.append(edge[:-1], True), "abcde").startswith("40%")


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_empty_text(text):
    with pytest.raises(InvalidInput, match=f"empty \\({len(text)} characters"):
        tokenize(tiny_tokenizer(), text)


def test_one_token():
    with pytest.raises(InvalidInput, match="has 1 token"):
        tokenize(tiny_tokenizer(), "t")


def test_half_a_surrogate_pair():
    with pytest.raises(InvalidInput, match="character 3 is half"):
        tokenize(tiny_tokenizer(), "abc\ud83d")


def test_limit():
    text = "the cat sat on the mat " * 20
    count = len(tokenize(tiny_tokenizer(), text))
    assert len(tokenize(tiny_tokenizer(), text, limit=count)) == count
    with pytest.raises(InvalidInput, match=f"has {count:,} tokens \\({len(text)} characters\\); the limit is 50"):
        tokenize(tiny_tokenizer(), text, limit=50)


def test_limit_is_found_at_the_beginning_of_a_huge_text():
    seen = []

    class Counting:
        def __init__(self):
            self.inner = tiny_tokenizer()
            self.backend_tokenizer = self.inner.backend_tokenizer

        def __call__(self, text, **options):
            seen.append(len(text))
            return self.inner(text, **options)

    with pytest.raises(InvalidInput, match=r"more than .* \(2,300,000 characters\); the limit is 100") as caught:
        tokenize(Counting(), "the cat sat on the mat " * 100_000, limit=100)
    assert seen == [5000]
    assert "Keep about the first" in caught.value.hint


def test_decoder_state_names_its_kind():
    """What tells byte-level tokenizers from sentencepiece ones is part of the file format."""
    assert json.loads(tiny_tokenizer().backend_tokenizer.decoder.__getstate__())["type"] == "ByteLevel"
