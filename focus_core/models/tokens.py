"""Byte-true tokens: which bytes of the text each token stands for, also where it is only part of a character."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np

from focus_core.errors import InvalidInput
from focus_core.models.words import word_of_byte

SPACE = "\u2581"
"""What sentencepiece writes for a space."""

PREFIX_CHARACTERS = 50
"""A text this many times longer than the limit is first judged by its beginning."""

WARN_ABOVE = 0.2
"""Share of partial tokens above which a reader is told."""


@dataclass(frozen=True)
class Tokens:
    """A text's tokens.

    Attributes:
        ids: (N,) int32.
        text: what to show for each: the characters that its bytes touch, whole. Tokens that share a character all
            show it; a token that stands for no byte of the text shows nothing.
        span: (N, 2) int32 byte offsets in the UTF-8 text. Spans follow each other without gap or overlap, so the
            bytes they cut out, joined, are the text.
        partial: (N,) bool, whether the token begins or ends inside a character.
        word: (N,) int32, the word that the token's first visible character belongs to; -1 for white space alone.
    """

    ids: np.ndarray
    text: list[str]
    span: np.ndarray
    partial: np.ndarray
    word: np.ndarray

    def __len__(self) -> int:
        return len(self.text)


def tokenize(tokenizer: Any, text: str, limit: int | None = None) -> Tokens:
    """Tokenize a text; no beginning-of-sequence token is added.

    Args:
        tokenizer: a transformers tokenizer that is backed by ``tokenizers``.
        text: the text.
        limit: most tokens that are taken; no limit by default.

    Returns:
        At least two tokens.

    Raises:
        InvalidInput: the text is empty or white space, has fewer than two tokens or more than ``limit``, or holds
            half a surrogate pair.
    """
    if not text.strip():
        raise InvalidInput(f"The text is empty ({len(text)} characters of white space).", "Give at least a sentence.")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"The text is not valid Unicode: character {error.start:,} is half of a pair.", "Save it as UTF-8."
        ) from None
    if limit is not None and len(text) > PREFIX_CHARACTERS * limit:
        beginning = text[: PREFIX_CHARACTERS * limit]
        _check_limit(len(_encode(tokenizer, beginning)[0]), limit, len(beginning), len(text))
    ids, offsets = _encode(tokenizer, text)
    if limit is not None:
        _check_limit(len(ids), limit, len(text), len(text))
    if len(ids) < 2:
        raise InvalidInput(
            f"The text has {len(ids)} token; a model needs at least 2 to predict one from another.",
            "Give at least a sentence.",
        )
    pieces = _pieces(tokenizer, ids)
    edges = _edges_from_pieces(pieces, data)
    if edges is None:
        edges = _edges_from_offsets(offsets, pieces, text, len(data))
    span = np.stack([edges[:-1], edges[1:]], axis=1).astype(np.int32)
    return Tokens(np.asarray(ids, np.int32), *_describe(span, text, data))


def token_texts(tokenizer: Any, ids: list[int]) -> dict[int, str]:
    """What each token writes; a byte that is only part of a character is written as an escape in hex.

    Args:
        tokenizer: as for ``tokenize``.
        ids: token ids, in any order.
    """
    # A vocabulary may be padded with ids that no tokenizer writes.
    written = [i for i in sorted(set(ids)) if tokenizer.convert_ids_to_tokens(i) is not None]
    pieces = _pieces(tokenizer, written)
    if pieces is None:
        known = {i: tokenizer.decode([i]) for i in written}
    else:
        known = {i: piece.decode("utf-8", "backslashreplace") for i, piece in zip(written, pieces, strict=True)}
    return {i: known.get(i, f"<{i}>") for i in ids}


def partial_share(tokens: Tokens) -> float:
    """Share of the tokens that are only part of a character."""
    return float(tokens.partial.mean())


def byte_warning(partial: np.ndarray, text: str) -> str | None:
    """What to tell a reader when over 20 % of a text's tokens are parts of characters; None below that.

    Args:
        partial: (N,) bool, as in ``Tokens`` and in a Trace.
        text: the text.
    """
    share = float(np.mean(partial))
    if share <= WARN_ABOVE:
        return None
    return (
        f"{share:.0%} of the tokens are parts of characters ({len(partial) / len(text):.1f} tokens a character): "
        "groups may reflect bytes rather than words. Try a shipped passage, or a model trained on this language."
    )


def _check_limit(count: int, limit: int, seen: int, characters: int) -> None:
    if count <= limit:
        return
    more = "more than " if seen < characters else ""
    fitting = int(seen * limit / count)
    raise InvalidInput(
        f"The text has {more}{count:,} tokens ({characters:,} characters); the limit is {limit:,}.",
        f"Keep about the first {fitting:,} characters.",
    )


def _encode(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        truncation=False,
        verbose=False,
    )
    return encoded["input_ids"], encoded["offset_mapping"]


def _pieces(tokenizer: Any, ids: list[int]) -> list[bytes] | None:
    """The bytes that each token stands for in the tokenizer's own view; None when it has no such view."""
    decoder = tokenizer.backend_tokenizer.decoder
    kinds = set(_decoder_kinds(json.loads(decoder.__getstate__()))) if decoder is not None else set()
    if "ByteLevel" in kinds:
        read = _byte_level
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        read = _sentencepiece
    else:
        return None
    added = {i: token.content.encode() for i, token in tokenizer.added_tokens_decoder.items()}
    known: dict[int, bytes] = {}
    for i in set(ids):
        known[i] = added[i] if i in added else read(tokenizer.convert_ids_to_tokens(i))
    return [known[i] for i in ids]


def _decoder_kinds(state: dict[str, Any]) -> list[str]:
    return [state["type"], *(kind for inner in state.get("decoders", ()) for kind in _decoder_kinds(inner))]


def _printable_bytes() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes: printable Latin-1 as itself, the rest from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(other)}


_BYTE = _printable_bytes()


def _byte_level(token: str) -> bytes:
    if all(c in _BYTE for c in token):
        return bytes(_BYTE[c] for c in token)
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes([int(match[1], 16)])
    return token.replace(SPACE, " ").encode()


def _edges_from_pieces(pieces: list[bytes] | None, data: bytes) -> np.ndarray | None:
    """(N + 1,) byte edges when the pieces, joined, are the text; None when a normaliser changed it."""
    if pieces is None:
        return None
    joined = b"".join(pieces)
    edges = np.concatenate([[0], np.cumsum([len(p) for p in pieces])])
    if joined == data:
        return edges
    if joined == b" " + data:  # the space that sentencepiece puts before the first word is not in the text
        return np.maximum(edges - 1, 0)
    return None


def _edges_from_offsets(offsets: list[tuple[int, int]], pieces: list[bytes] | None, text: str, size: int) -> np.ndarray:
    """(N + 1,) byte edges from character offsets; tokens that share characters divide their bytes.

    What lies between two tokens goes to the later one, what lies after the last to the last.
    """
    at = np.concatenate([[0], np.cumsum([len(c.encode()) for c in text])])
    count = len(offsets)
    edges = np.zeros(count + 1, np.int64)
    first, end = 0, 0
    while first < count:
        last, stop = first + 1, max(offsets[first][1], end)
        while last < count and offsets[last][0] < stop:
            stop = max(stop, offsets[last][1])
            last += 1
        following = offsets[last][0] if last < count else len(text)
        while stop < following and unicodedata.combining(text[stop]):  # composed into the character before it
            stop += 1
        lengths = [len(pieces[i]) if pieces else 1 for i in range(first, last)]
        begin, finish = at[end], at[stop] if last < count else size
        parts = np.cumsum(lengths) / max(sum(lengths), 1)
        edges[first + 1 : last + 1] = begin + np.round(parts * (finish - begin))
        edges[last] = finish
        first, end = last, stop
    return edges


def _describe(span: np.ndarray, text: str, data: bytes) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """What to show for each token, its span, whether it is part of a character, and its word."""
    raw = np.frombuffer(data, np.uint8)
    starts = np.append(np.flatnonzero((raw & 0xC0) != 0x80), len(data))
    words = word_of_byte(text)
    lower = starts[np.searchsorted(starts, span[:, 0], side="right") - 1]
    upper = starts[np.searchsorted(starts, span[:, 1], side="left")]
    held = span[:, 1] > span[:, 0]
    partial = held & ((lower != span[:, 0]) | (upper != span[:, 1]))
    shown, word = [], np.full(len(span), -1, np.int32)
    for i, (a, b) in enumerate(zip(lower.tolist(), upper.tolist(), strict=True)):
        if not held[i]:
            shown.append("")
            continue
        shown.append(data[a:b].decode())
        visible = words[a:b]
        if len(found := visible[visible >= 0]):
            word[i] = found[0]
    return shown, span, partial, word
