"""What a measurement of caches says: bytes a token, how exact each cache is, and the answer in one sentence.

A result is what ``focus_core.benchmark.caches.measure_caches`` returns, or what of it has arrived so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.numbers import NONE, memory, percent, sig3, times, with_spread

if TYPE_CHECKING:
    import pandas as pd

EXACT, ROUNDING, LOST, APPROXIMATE = "exact", "to rounding", "lost to rounding", "approximate"
GRADES = {
    EXACT: "Decoding gives dense's output to the last bit.",
    ROUNDING: "The same function: in float32 within 0.1 % of dense's output, in this number format within 5 %.",
    LOST: "The same function in exact arithmetic, but this format's rounding grows to 5 % of the output or more.",
    APPROXIMATE: "Another function: off by more than 0.1 % in float32 too.",
}
SAME = 1e-3
"""Error in float32 below which it is the same function, up to rounding."""
GATE = 0.05
"""Error from which on a layer fails, as Slim's authors set it."""
FINEST = "float32"
_LEAST, _COARSE = 1e-8, 1e-5
"""Below the one nothing is told apart, below the other an error has one figure."""
_PARTS: dict[float, str] = {
    2: "half of",
    3: "a third of",
    4: "a quarter of",
    5: "a fifth of",
    6: "a sixth of",
    8: "an eighth of",
}


@dataclass(frozen=True)
class Grade:
    """How exact a cache is in one number format.

    Attributes:
        word: of ``GRADES``.
        error: largest error of a decoded token's attention output in any layer, as a share of dense's; infinite where
            a number overflowed; None unmeasured.
        layer: the layer of that error.
    """

    word: str
    error: float | None
    layer: int = 0


def dense_of(result: dict[str, Any]) -> dict[str, Any] | None:
    """The baseline's row."""
    return next((row for row in result.get("rows", []) if row["variant"] == "dense"), None)


def others(result: dict[str, Any], dtype: str | None = None) -> list[dict[str, Any]]:
    """All rows but dense's, small caches first; of equal ones the most exact first."""
    dtype = dtype or own_format(result)
    rows = [row for row in result.get("rows", []) if row["variant"] != "dense" and "bytes_per_token" in row]
    # What does not grow makes equal caches differ in the fourth figure.
    return sorted(rows, key=lambda row: (float(f"{bytes_in(result, row, dtype):.3g}"), worst(row, dtype)[0] or 0.0))


def own_format(result: dict[str, Any]) -> str:
    """The number format that the model ran in."""
    return str(result.get("about", {}).get("dtype", "float32"))


def bytes_in(result: dict[str, Any], row: dict[str, Any], dtype: str) -> float:
    """Measured bytes a token in a number format: of the model's own cache in its own, else of its layers run again."""
    if dtype == own_format(result) or dtype not in row.get("layers", {}):
        return float(row["bytes_per_token"])
    return float(sum(row["layers"][dtype]["bytes"]))


def dtypes(result: dict[str, Any]) -> list[str]:
    """Number formats in which layers were run again, in the order measured."""
    dense = dense_of(result)
    return list((dense or {}).get("layers", {}))


def worst(row: dict[str, Any], dtype: str) -> tuple[float | None, int]:
    """The largest error over layers and its layer; infinite where it overflowed, None where nothing was measured."""
    errors = row.get("layers", {}).get(dtype, {}).get("error")
    if not errors:
        return None, 0
    values = [math.inf if error is None else error for error in errors]
    layer = max(range(len(values)), key=values.__getitem__)
    return values[layer], layer


def grade(result: dict[str, Any], row: dict[str, Any], dtype: str | None = None) -> Grade | None:
    """How exact a row's cache is, in the model's own number format unless another is named; None unmeasured."""
    dtype = dtype or own_format(result)
    error, layer = worst(row, dtype)
    if error is None:
        return None
    if error == 0:
        return Grade(EXACT, error, layer)
    finest = worst(row, FINEST)[0]
    if finest is None or finest > SAME:
        return Grade(APPROXIMATE, error, layer)
    return Grade(ROUNDING if error < GATE else LOST, error, layer)


def error_text(error: float | None) -> str:
    """An error as per cent, to one figure where it is rounding alone; overflow in words."""
    if error is None:
        return NONE
    if not math.isfinite(error):
        return "overflows"
    if error == 0:
        return "0 %"
    if error < _LEAST:
        return f"< {sig3(100 * _LEAST, 1)} %"
    return percent(error) if error >= _COARSE else f"{sig3(100 * error, 1)} %"


def fraction(parts: float) -> str:
    """One of so many equal parts in words, as in ``a third of``."""
    return _PARTS.get(parts, f"1/{sig3(parts)} of")


def mha_times(about: dict[str, Any]) -> float:
    """How many times dense's cache the model would need with keys and values for every query head (counted)."""
    return float(about["heads"] / about["kv_heads"])


def is_gqa(about: dict[str, Any]) -> bool:
    """Whether query heads share keys and values."""
    return bool(about) and about["kv_heads"] < about["heads"]


def answer(result: dict[str, Any], dtype: str | None = None) -> str:
    """The page's sentence: what dense remembers, the smallest cache that is exact, and the best guess of the others."""
    dtype = dtype or own_format(result)
    dense, about = dense_of(result), result.get("about", {})
    if dense is None or "bytes_per_token" not in dense:
        return "Measure the caches of a model to see what each variant must remember, and whether it is exact."
    size = bytes_in(result, dense, dtype)
    own = f"Dense attention remembers {memory(size)} a token in {dtype}"
    if is_gqa(about):
        own += f", {fraction(mha_times(about))} what a key for every query head would take"
    said = [own + "."]
    graded = [(row, grade(result, row, dtype)) for row in others(result, dtype)]
    graded = [(row, found) for row, found in graded if bytes_in(result, row, dtype) < size]
    sure = [row for row, found in graded if found is not None and found.word in (EXACT, ROUNDING)]
    loose = [row for row, found in graded if found is not None and found.word in (LOST, APPROXIMATE)]
    if sure:
        row = sure[0]
        said.append(_sentence(result, row, dtype, size))
    if loose:
        row = max(loose, key=lambda row: row["agree"])
        said.append(_sentence(result, row, dtype, size))
    if not graded:
        said.append("No other cache has been measured yet.")
    elif not sure:
        said.append("None of the smaller caches measured is exact.")
    return " ".join(said)


def _sentence(result: dict[str, Any], row: dict[str, Any], dtype: str, size: float) -> str:
    found, own = grade(result, row, dtype), bytes_in(result, row, dtype)
    said = f"{row['label']}, keeps {memory(own)} ({percent(own / size)})" if "," in row["label"] else ""
    said = said or f"{row['label']} keeps {memory(own)} ({percent(own / size)})"
    off = error_text(found.error) if found else NONE
    word = "is exact" if found and found.word == EXACT else f"is off by {off} at most"
    if found and found.word == LOST:
        word = f"is lost to rounding ({off})"
    if found and found.word == ROUNDING:
        word = f"is exact to rounding ({off})"
    agree = f"; it says dense's next token {percent(row['agree'])} of the time" if dtype == own_format(result) else ""
    return f"{said} and {word}{agree}."


def table(result: dict[str, Any], *, recorded: bool = False) -> pd.DataFrame:
    """One line a cache, dense first; spreads are the 10th to the 90th percentile."""
    import pandas as pd

    dense = dense_of(result)
    if dense is None or "bytes_per_token" not in dense:
        return pd.DataFrame()
    rows = []
    for row in [dense, *others(result)]:
        rows.append(
            {
                "Variant": row["label"],
                "Badges": _badges(row, recorded=recorded),
                "Bytes a token": memory(row["bytes_per_token"]),
                "Of dense": percent(row["bytes_per_token"] / dense["bytes_per_token"]),
                "Counted": memory(row["counted"]),
                "Does not grow": memory(row["fixed_bytes"]),
                **{f"Error, {d}": _error(result, row, d) for d in dtypes(result)},
                "Same next token": percent(row["agree"]),
                "Same when alone": f"{row['same_tokens']} of {result['about']['decoded']}"
                if "same_tokens" in row
                else NONE,
                "Loss change": "baseline" if row is dense else _signed(row["nll_change"]),
                "Tokens a second": with_spread(row.get("tokens_s"), sig3),
                "Time / dense": with_spread(row.get("ratio"), times) if row is not dense else "baseline",
            }
        )
    return pd.DataFrame(rows)


def _error(result: dict[str, Any], row: dict[str, Any], dtype: str) -> str:
    found = grade(result, row, dtype)
    return f"{error_text(found.error)}, {found.word}" if found else NONE


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{sig3(abs(value))} nats"


def _badges(row: dict[str, Any], *, recorded: bool) -> list[str]:
    return ["recorded" if recorded else "live", *([] if row.get("complete") else ["partial"])]


def layer_table(result: dict[str, Any]) -> pd.DataFrame:
    """The largest error of every cache, layer and number format, with the layer's bytes a token."""
    import pandas as pd

    return pd.DataFrame(
        [
            {"variant": row["label"], "format": dtype, "layer": n, "error": error, "bytes a token": size}
            for row in result.get("rows", [])
            for dtype, found in row.get("layers", {}).items()
            for n, (error, size) in enumerate(zip(found["error"], found["bytes"], strict=True))
        ]
    )
