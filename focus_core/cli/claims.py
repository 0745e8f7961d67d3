"""``claims``: what was claimed of each method, and what was measured for it."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.output import pairs, rows, show
from focus_core.errors import InvalidInput

SUMMARY = "what was claimed of each method, what was measured for it, and the verdict"


def configure(parser: argparse.ArgumentParser) -> None:
    """Which claims."""
    parser.add_argument("id", nargs="?", help="one claim, shown whole (default: list all)")
    parser.add_argument("--method", metavar="M", help="only those of focus, sfa, xattention, slim, karat or mla")
    parser.add_argument("--verdict", metavar="V", help="only those with this verdict, or open")


def run(args: argparse.Namespace) -> list[dict[str, Any]] | dict[str, Any]:
    """The claims with where each number was measured; one of them when it is named."""
    from focus_core.claims import METHODS, OPEN, VERDICTS, claim, claims

    for name, value, known in (("--method", args.method, METHODS), ("--verdict", args.verdict, (*VERDICTS, OPEN))):
        if value is not None and value not in known:
            raise InvalidInput(f"{name} is {value[:60]}.", f"It can be {', '.join(known)}.")
    if args.id is not None:
        if args.method or args.verdict:
            raise InvalidInput("One claim is named, and a filter too.", "Leave out --method and --verdict.")
        return _whole(claim(args.id))
    return [
        _whole(one)
        for one in claims()
        if args.method in (None, one["method"]) and args.verdict in (None, one["verdict"])
    ]


def _whole(one: dict[str, Any]) -> dict[str, Any]:
    from focus_core.claims import made_by

    return {**one, "measured": [{**m, "made": made_by(m)} for m in one["measured"]]}


def table(document: list[dict[str, Any]] | dict[str, Any]) -> str:
    """A line a claim, or one claim whole."""
    if isinstance(document, list):
        body = [[one["id"], one["verdict"], _figure(one), one["claim"]] for one in document]
        count = "1 claim" if len(document) == 1 else f"{len(document)} claims"
        return rows(["id", "verdict", "measured", "claim"], body) + f"\n{count}; name one to see its sources."
    one = document
    lines = [(name, one.get(name)) for name in ("claim", "source", "paper", "condition", "verdict", "why")]
    for measured in one["measured"]:
        made = measured["made"]
        where = ", ".join(filter(None, (measured["setting"], made["device"], made["date"], *made["files"])))
        lines += [("measured", f"{_number(measured)}: {measured['what']}"), ("  where", where)]
        lines += [("  command", made["command"])] if made["command"] else []
    return pairs(lines)


def _figure(one: dict[str, Any]) -> str:
    return _number(one["measured"][0]) if one["measured"] else "-"


def _number(measured: dict[str, Any]) -> str:
    return f"{show(float(measured['value']))} {measured['unit']}".strip()
