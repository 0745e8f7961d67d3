"""The ledger: what the documents behind the project claim, and what was measured for each claim.

``data/claims.yaml`` has one entry a claim. A measurement names a file of ``data/results``, where its numbers stand in
it, and what they came to; ``resolve`` reads them again, and a test holds the two against each other.

A place is a path: ``rows[groups=8&config.dim=64].speedup`` takes the one row whose fields are so, ``rows[*].ms`` those
of all, ``rows[*dim=64].ms`` those of every row that fits. A field that a row lacks is ``None``. In a list without
names, ``recall[@own.thresholds=0.9]`` takes what stands where 0.9 does in the document's ``own.thresholds``. The
fourth row, ``rows[3]``, may be another one when the file is recorded anew, so the ledger names rows by their fields.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from focus_core.assets import DATA
from focus_core.errors import InvalidInput

FILE = DATA / "claims.yaml"
RESULTS = DATA / "results"
VERDICTS = ("reproduced", "reproduced in part", "not reproduced", "not testable here")
OPEN = "open"
"""In place of a verdict: what would decide it has not been measured yet."""
METHODS = ("focus", "sfa", "xattention", "slim", "karat", "mla")
FIELDS = ("id", "method", "claim", "source", "paper", "condition", "verdict", "why", "measured")
_PART = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
_WHERE_COMMANDS_ARE = ("", "about", "record")


@lru_cache(maxsize=1)
def claims() -> list[dict[str, Any]]:
    """All claims in the ledger's order; ``verdict`` is one of ``VERDICTS``, or ``open`` while nothing decides it."""
    import yaml

    found = yaml.load(FILE.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [{"why": "", "measured": [], **claim, "verdict": claim.get("verdict") or OPEN} for claim in found]


def claim(name: str) -> dict[str, Any]:
    """One claim by its id.

    Raises:
        InvalidInput: there is none.
    """
    for found in claims():
        if found["id"] == name:
            return found
    raise InvalidInput(f"There is no claim {name[:60]}.", "python -m focus_core claims lists their ids.")


@lru_cache(maxsize=64)
def document(file: str) -> Any:
    """A recorded result.

    Raises:
        InvalidInput: there is no such file.
    """
    path = RESULTS / file
    if not path.is_file() or path.resolve().parent != RESULTS.resolve():
        raise InvalidInput(f"There is no recorded result {file[:80]}.", "data/results has them all.")
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    return json.loads(text)


def at(found: Any, path: str) -> Any:
    """What stands at a path.

    Raises:
        InvalidInput: nothing does, or more than one row fits.
    """
    whole, root, many = path, found, False
    for name, inside in (match.groups() for match in _PART.finditer(path)):
        step: Callable[[Any], Any] = _field(name) if name is not None else _pick(inside, root)
        try:
            found = [step(one) for one in found] if many else step(found)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise InvalidInput(f"The result has nothing at {whole}, from {name or inside} on.") from None
        many = many or (inside or "").startswith("*")
    return found


def _field(name: str) -> Callable[[Any], Any]:
    return lambda value: value[name]


def _pick(inside: str, root: Any) -> Callable[[Any], Any]:
    if inside.lstrip("-").isdecimal():
        return lambda rows: rows[int(inside)]
    if inside.startswith("@"):
        beside, _, text = inside[1:].rpartition("=")
        return lambda values: values[[str(value) for value in at(root, beside)].index(text)]
    asked = [part.split("=", 1) for part in inside.removeprefix("*").split("&") if part]

    def pick(rows: Any) -> Any:
        fits = [row for row in rows if all(str(_of(row, field)) == text for field, text in asked)]
        if inside.startswith("*"):
            return fits
        (one,) = fits
        return one

    return pick


def _of(row: dict[str, Any], field: str) -> Any:
    for name in field.split("."):
        row = (row or {}).get(name)  # type: ignore[assignment]
    return row


def resolve(measured: dict[str, Any], found: Any = None) -> float:
    """The number that a measurement's places give now, unrounded.

    Args:
        measured: with ``file`` and either ``key`` (one place) or ``keys`` (names to places; ``other.json: place`` is of
            another file) and ``formula`` over the names.
        found: a result to read instead of the file, for one that was measured anew.

    Raises:
        InvalidInput: a file or a place is missing, or the formula does not give one number.
    """
    places = measured.get("keys") or {"a": measured["key"]}
    values = {}
    for name, place in places.items():
        file, _, path = place.rpartition(": ")
        values[name] = at(found if found is not None and not file else document(file or measured["file"]), path)
    value = _value(ast.parse(str(measured.get("formula", "a")), mode="eval").body, values)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{places} gives {value!r:.60}, which is no number.")
    return value


def rounded(value: float, digits: int = 3) -> float:
    """To so many significant figures, as the ledger prints it."""
    return float(f"{value:.{digits}g}")


def _flat(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _mean(value: Any) -> float:
    every = list(_flat(value))
    return sum(every) / len(every)


def _each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    return lambda value: [function(one) for one in _flat(value)] if isinstance(value, list) else function(value)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "max": lambda v: max(_flat(v)),
    "min": lambda v: min(_flat(v)),
    "mean": _mean,
    "log": _each(math.log),
    "exp": _each(math.exp),
}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _value(node: ast.AST, names: dict[str, Any]) -> Any:
    """A formula's value: names, numbers, + - * / and max, min, mean, log and exp (natural; of each of a list)."""
    match node:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(inner, names))
    raise InvalidInput(f"A formula cannot have {ast.unparse(node)[:60]}.", "It can add, subtract, multiply and divide.")


def made_by(measured: dict[str, Any]) -> dict[str, Any]:
    """Where a number was measured: ``command``, ``date``, ``device``; None for what its file does not say.

    ``file`` is where the number stands, and ``files`` are all that it is counted from, that one first.
    """
    found = document(measured["file"])
    command = measured.get("command")
    stamp: dict[str, Any] = {}
    time = None
    # A file may hold rows of several commands, so the row's own word comes first.
    for part in (_row_of(measured, found), *(found.get(name) if name else found for name in _WHERE_COMMANDS_ARE)):
        if isinstance(part, dict):
            command = command or part.get("command")
            stamp = stamp or part.get("environment") or {}
            time = time or part.get("time")
    first: Any = next(iter(found.get("rows") or []), {})
    stamp = stamp or (first.get("environment") if isinstance(first, dict) else None) or {}
    time = time or stamp.get("time")
    return {
        "command": command or (first.get("command") if isinstance(first, dict) else None),
        "date": time[:10] if time else None,
        "device": stamp.get("device"),
        "file": f"data/results/{measured['file']}",
        "files": [f"data/results/{name}" for name in files(measured)],
    }


def files(measured: dict[str, Any]) -> list[str]:
    """The results that a number is counted from; the one that holds it, or its first part, comes first."""
    beside = (place.rpartition(": ")[0] for place in (measured.get("keys") or {}).values())
    return list(dict.fromkeys(filter(None, (measured["file"], *beside))))


def _row_of(measured: dict[str, Any], found: Any) -> Any:
    """The row that the first of a measurement's places in its file is of; None where it is of none."""
    for place in (measured.get("keys") or {"a": measured.get("key", "")}).values():
        if ": " not in place and (row := re.match(r"[^\[\]]*\[[^@\]]*\]", place)):
            rows = at(found, row[0])
            return rows[0] if isinstance(rows, list) and rows else rows
    return None
