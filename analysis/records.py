"""What was measured before: every recorded result in a folder, whichever command wrote it, as lines that can be asked.

Three shapes of file are read, told apart by their fields: what ``eval`` writes, what ``bench`` writes, and what
``data.build.comparisons`` writes. Any other file is left aside, so that a new result shows by being there.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.variants import VARIANTS, make

WHOLE, ALONE = "whole model", "attention alone"
"""What was timed: a prefill of the whole model, or one attention layer by itself."""
NOT_SETTINGS = ("backend",)
"""Fields of a config that change how a result is computed and never what it is."""


@dataclass(frozen=True)
class Speed:
    """Times faster than dense in the same run (above 1 is faster), with the 10th and 90th percentile.

    ``what`` is ``WHOLE`` or ``ALONE``; ``phase`` is ``prefill`` or ``decode``; ``baseline`` names dense's kernel.
    """

    faster: float
    low: float
    high: float
    what: str
    phase: str
    baseline: str = "dense"


@dataclass(frozen=True)
class Quality:
    """Change of perplexity against dense on the same tokens, as a share, at two standard errors and over how many."""

    change: float
    low: float | None
    high: float | None
    scored: int
    perplexity: float


@dataclass(frozen=True)
class Record:
    """One variant in one recorded result.

    Attributes:
        file: its name in the folder.
        variant, config, adapter: what ran: settings in full, and the adapter by its own name.
        model: the model that was read; None where random numbers were.
        shape: (heads, kv_heads, head_dim) where no model was read; else None.
        length, batch: tokens of a sequence, and sequences.
        text, device, dtype, date: where it was measured, on what and when; empty where the file does not say.
        served: whether decoding runs this function.
        quality, speed: None where they were not measured.
        kept_pairs: share of the causal pairs; None where it was not counted.
        cache_bytes: measured bytes of cache a token, all layers; None where they were not measured.
        trained: parameters of the adapter; None where the file does not say.
        any_adapter: whether it was timed on a stand-in for what an adapter learns, and so holds for each.
    """

    file: str
    variant: str
    config: dict[str, Any]
    adapter: str | None
    model: str | None
    shape: tuple[int, int, int] | None
    length: int
    batch: int
    text: str
    device: str
    dtype: str
    date: str
    served: bool
    quality: Quality | None = None
    speed: Speed | None = None
    kept_pairs: float | None = None
    cache_bytes: float | None = None
    trained: int | None = None
    any_adapter: bool = False

    def where(self) -> str:
        """Length, text, card and day, as people read them."""
        batch = f"batch {self.batch}" if self.batch > 1 else ""
        parts = (f"{self.length:,} tokens", batch, self.text, self.device, self.date)
        return ", ".join(filter(None, parts))


def is_dense(variant: str, adapter: str | None) -> bool:
    """Whether a line is dense attention as it is, which all others are held against."""
    return variant == "dense" and adapter is None


def read(path: Path) -> dict[str, Any] | None:
    """A JSON object with the name of its file under ``file``; None where there is none that can be read.

    A number that is none (NaN, Infinity) is None: not measured.
    """
    try:
        document = json.loads(path.read_text("utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError):
        return None
    return {**document, "file": path.name} if isinstance(document, dict) else None


def documents(folder: Path, prefix: str = "") -> list[dict[str, Any]]:
    """Every JSON object in a folder whose file's name begins so; what cannot be read is left aside."""
    return list(filter(None, map(read, sorted(folder.glob(f"{prefix}*.json")))))


def records(found: Iterable[dict[str, Any]]) -> list[Record]:
    """The lines of every document whose shape is known; one with a variant or setting that is no more is left out."""
    lines: list[Record] = []
    for document in found:
        for lines_of in (_evaluation, _comparison, _bench):
            try:
                lines += lines_of(document)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                continue
    return lines


def full(variant: str, config: dict[str, Any] | None) -> dict[str, Any] | None:
    """A variant's settings in full, those that change no result left out; None for settings that there are no more."""
    if variant not in VARIANTS:
        return None
    try:
        values = make(variant, config or {}).to_dict()
    except FocusError:
        return None
    return {name: value for name, value in values.items() if name not in NOT_SETTINGS}


def same_line(record: Record, variant: str, config: dict[str, Any], adapter: str | None) -> bool:
    """Whether a record is of this line; what was timed on even groups is so whatever an adapter's groups are."""
    if record.variant != variant or record.config != config:
        return False
    return record.adapter == adapter or record.any_adapter


def of_model(record: Record, model: str, shape: tuple[int, int, int] | None) -> bool:
    """Whether a record tells of this model: measured on it, or on random numbers of its heads' shape."""
    return record.model == model if record.model is not None else shape is not None and record.shape == shape


def nearest(found: Iterable[Record], length: int, batch: int = 1) -> Record | None:
    """The record whose length is nearest (by ratio), then whose batch is, then with the most tokens scored, then the
    latest; None without any.
    """

    def far(record: Record) -> tuple[float, float, int]:
        scored = record.quality.scored if record.quality is not None else 0
        return abs(math.log(record.length / length)), abs(math.log(record.batch / batch)), -scored

    return min(sorted(found, key=lambda r: r.date, reverse=True), key=far, default=None)


def _record(document: dict[str, Any], row: dict[str, Any], where: dict[str, Any], **fields: Any) -> list[Record]:
    config = full(row["variant"], row.get("config"))
    if config is None:
        return []
    return [
        Record(
            file=str(document.get("file", "")),
            variant=row["variant"],
            config=config,
            device=str(where.get("device") or ""),
            date=str(where.get("time") or "")[:10],
            **fields,
        )
    ]


def _evaluation(document: dict[str, Any]) -> list[Record]:
    if not {"variant", "ppl", "nll_diff", "kept_pairs", "context"} <= document.keys():
        return []
    return _record(
        document,
        document,
        document.get("environment") or {},
        adapter=own_name(document.get("adapter_name") or asked_adapter(document)),
        model=document["model"],
        shape=None,
        length=int(document["context"]),
        batch=1,
        text=_text(document.get("text")),
        dtype=str(document.get("dtype", "")),
        served=bool(document.get("served", True)),
        quality=_quality(document["nll_diff"], document.get("nll_se"), document["tokens"], document["ppl"]),
        kept_pairs=document["kept_pairs"],
        trained=document.get("adapter_parameters"),
    )


def _comparison(document: dict[str, Any]) -> list[Record]:
    about = document.get("about")
    if not isinstance(about, dict) or not isinstance(document.get("rows"), list):
        return []
    found: list[Record] = []
    for row in document["rows"]:
        if row.get("ppl") is None:
            continue
        ratio = row.get("ratio")
        speed = Speed(1 / ratio["median"], 1 / ratio["p90"], 1 / ratio["p10"], WHOLE, "prefill") if ratio else None
        found += _record(
            document,
            row,
            about.get("environment") or {},
            adapter=own_name(row.get("adapter")),
            model=about["model"],
            shape=None,
            length=int(row["length"]),
            batch=1,
            text=_text(about.get("text")),
            dtype=str(about.get("dtype", "")),
            served=bool(row.get("served", True)),
            quality=_quality(row["nll_change"], row.get("nll_change_se"), row["scored"], row["ppl"]),
            speed=speed,
            kept_pairs=row["kept_pairs"],
            cache_bytes=row["cache_bytes"] / row["length"] if row.get("cache_bytes") else None,
            trained=row.get("trained"),
        )
    return found


def _bench(document: dict[str, Any]) -> list[Record]:
    rows = document.get("rows")
    if not isinstance(rows, list) or "about" in document:
        return []
    found: list[Record] = []
    for row in rows:
        cls = VARIANTS.get(row["variant"])
        drawn = row.get("activations", "random") == "random"
        ends = (row["speedup_p10"], row["speedup_p90"])
        found += _record(
            document,
            row,
            document.get("environment") or {},
            adapter=None,
            model=None if drawn else row["activations"],
            shape=(row["heads"], row["kv_heads"], row["head_dim"]) if drawn else None,
            length=int(row["length"]),
            batch=int(row.get("batch", 1)),
            text="random numbers" if drawn else "",
            dtype=str(row.get("dtype", "")),
            served=True,
            speed=Speed(row["speedup"], min(ends), max(ends), ALONE, row["phase"], row["baseline"]),
            kept_pairs=row["kept_pairs"],
            any_adapter=cls is not None and cls.adapter_kind is not None and not cls.adapter_optional,
        )
    return found


def _quality(change: float, error: float | None, scored: int, perplexity: float) -> Quality:
    low = high = None
    if error is not None and math.isfinite(error):
        low, high = math.expm1(change - 2 * error), math.expm1(change + 2 * error)
    return Quality(math.expm1(change), low, high, int(scored), perplexity)


def own_name(adapter: str | None) -> str | None:
    """An adapter's own name, where a file gives its folder."""
    return Path(adapter).name if adapter else None


def asked_adapter(document: dict[str, Any]) -> str:
    """The adapter that a result's command names, for what an experiment file measured; empty for none."""
    words = shlex.split(str(document.get("command") or ""))
    return words[words.index("--adapter") + 1] if "--adapter" in words[:-1] else ""


def _text(name: str | None) -> str:
    """A text's name; of a file only its own."""
    return Path(name).name if name else ""
