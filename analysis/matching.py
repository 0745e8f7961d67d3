"""What a search for equal settings says; a result is what ``focus_core.benchmark.matching.match`` gives."""

from __future__ import annotations

from typing import Any

from analysis.numbers import memory, percent

QUANTITIES = {
    "pairs": "same pairs kept",
    "perplexity": "same change of perplexity",
    "cache": "same cache bytes a token",
}
ASKED = {
    "pairs": ("Pairs kept, %", 30.0),
    "perplexity": ("Perplexity against dense, %", 0.0),
    "cache": ("Cache a token, kB", 40.0),
}
"""How a number is asked for, and what stands there first."""
_HOW = {"counted": "counted", "measured": "measured", "fixed": "as it is"}


def from_shown(quantity: str, number: float) -> float:
    """The number that a person gave, as the engine takes it."""
    return number * 1e3 if quantity == "cache" else number / 100


def value(quantity: str, number: float) -> str:
    """A value of a quantity as people read it."""
    if quantity == "cache":
        return memory(number)
    return percent(number, signed=quantity == "perplexity")


def headline(found: dict[str, Any]) -> str:
    """What was asked of all."""
    about = found["about"]
    of = f", as {about['of']}" if about.get("of") else ""
    return f"{QUANTITIES[about['quantity']]}, {value(about['quantity'], about['asked'])} asked{of}"


def table(found: dict[str, Any], labels: dict[str, str]) -> list[dict[str, str]]:
    """One line a variant: what it was asked for and what it reached.

    Args:
        found: the search's result, complete or not.
        labels: what people read, by a row's key.
    """
    quantity = found["about"]["quantity"]
    return [
        {
            "Variant": labels[row["key"]],
            "Asked": value(quantity, row["asked"]),
            "Reached": reached(quantity, row),
            "Verdict": verdict(row),
            "Its settings reach": span(quantity, row),
            "How known": _HOW[row["how"]],
            "Settings tried": str(row["tries"]),
            "Trained": f"{row['trained']:,}",
        }
        for row in found["rows"]
    ]


def reached(quantity: str, row: dict[str, Any]) -> str:
    """What a line reached; a variant that computes no pair keeps none."""
    if quantity == "pairs" and not row["computes_pairs"]:
        return "computes none"
    return value(quantity, row["reached"])


def verdict(row: dict[str, Any]) -> str:
    """Whether a line came near."""
    if row["near"]:
        return "matched"
    return "nearest it can" if row["within"] else "cannot be matched"


def span(quantity: str, row: dict[str, Any]) -> str:
    """The least and the most that a line's settings reached."""
    if row["low"] == row["high"]:
        return f"{value(quantity, row['low'])} alone"
    return f"{value(quantity, row['low'])} to {value(quantity, row['high'])}"


def unreached(found: dict[str, Any], labels: dict[str, str]) -> list[str]:
    """A sentence for every line that cannot be matched."""
    quantity = found["about"]["quantity"]
    said = []
    for row in found["rows"]:
        if row["within"]:
            continue
        if not row["knobs"]:
            why = "no setting of it changes this"
        else:
            why = f"by {' and '.join(k.replace('_', ' ') for k in row['knobs'])} it reaches {span(quantity, row)}"
        said.append(f"{labels[row['key']]} cannot be matched and is left out: {why}.")
    return said


def how(about: dict[str, Any]) -> str:
    """Where the values come from."""
    windows = f"{about['windows']} window{'s' if about['windows'] != 1 else ''} of {about['length']:,} tokens"
    where = about.get("environment", {})
    day = str(where.get("time", ""))[:10]
    text = about.get("text") or "your text"
    return (
        f"Measured on {windows} of {text}, {where.get('device')}, {day}; what settings alone decide is counted. The "
        "comparison measures all of it again."
    )
