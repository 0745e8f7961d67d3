"""Words by Unicode's categories."""

from __future__ import annotations

import pytest

from focus_core.models.words import word_of_byte

CASES = {
    "Hello, world!": ["Hello", ",", "world", "!"],
    "It's 3.14 -- don’t…": ["It's", "3.14", "--", "don’t", "…"],
    "end. Then 1,000.": ["end", ".", "Then", "1,000", "."],
    "'quoted' word": ["'", "quoted", "'", "word"],
    "well-known snake_case": ["well", "-", "known", "snake_case"],
    "안녕하세요 세계": ["안녕하세요", "세계"],
    "東京タワーへ行きました。": ["東", "京", "タワー", "へ", "行", "きました", "。"],
    "人々と": ["人", "々", "と"],
    "हिन्दी में": ["हिन्दी", "में"],
    "cafe\u0301 A\u030a": ["cafe\u0301", "A\u030a"],
    "مرحبا بالعالم، כן": ["مرحبا", "بالعالم", "،", "כן"],
    "a 👩‍👩‍👧 b": ["a", "👩‍👩‍👧", "b"],
    "🇰🇷🇯🇵": ["🇰🇷", "🇯🇵"],
    "👍🏽👍🏽": ["👍🏽", "👍🏽"],
    "❤️x": ["❤️", "x"],
    "f(x) = x+1": ["f", "(", "x", ")", "=", "x", "+", "1"],
    "می‌خواهم": ["می‌خواهم"],
}


@pytest.mark.parametrize("text", CASES)
def test_words(text):
    data, words = text.encode(), word_of_byte(text)
    assert len(words) == len(data)
    found = [bytes(b for b, w in zip(data, words, strict=True) if w == i).decode() for i in range(words.max() + 1)]
    assert found == CASES[text]
    assert all(w == -1 for c, w in zip(data.decode("latin-1"), words, strict=True) if c in " \t\n")


def test_white_space_alone_has_no_word():
    assert word_of_byte(" \t\u3000\n").tolist() == [-1] * 6


def test_every_kind_of_space_divides():
    assert word_of_byte("a\u3000b\u00a0c").tolist() == [0, -1, -1, -1, 1, -1, -1, 2]
