"""The tables of the frontier in ``docs/results.md``, from recorded results.

python -m data.build.frontier
"""

from __future__ import annotations

import json
import math
from typing import Any

from analysis.frontier_marks import PREFIX, Mark, marks, of
from analysis.records import documents
from focus_core.assets import DATA
from focus_core.jobs.files import read_json

PAGE = DATA.parent / "docs" / "results.md"
MARKS = "<!-- made by python -m data.build.frontier -->", "<!-- end of the frontier -->"
TEXTS = ("persuasion", "brown-fiction", "python_code", "python_reference")
CONTEXTS = (4096, 8192)
SHIPPED = "shipped-directed-k16"
LINES = (
    ("2 groups a query", f"{SHIPPED}-q2", 4096, "allocate-4096", "query_topk 2"),
    ("2 groups a query, trained on", "directed-k16-q2-trained", 4096, None, None),
    ("table", "directed-k16-looks", 4096, "allocate-4096", "best"),
    ("table, trained on", "directed-k16-looks-trained", 4096, None, None),
    ("table of no group or all 16", "", 4096, "allocate-4096-zero-or-all", "best"),
    ("table for a router trained with 2 groups a query", "", 4096, "allocate-4096-k16-4096", "best"),
    ("1 group a query", f"{SHIPPED}-q1", 8192, "allocate-8192", "query_topk 1"),
    ("2 groups a query", f"{SHIPPED}-q2", 8192, "allocate-8192", "query_topk 2"),
    ("table", "directed-k16-looks", 8192, "allocate-8192", "best"),
    ("table, trained on", "directed-k16-looks-trained", 8192, None, None),
    ("trained on at rate 0.002, then table", "directed-k16-gently-looks", 8192, "allocate-8192-k16-gently", "best"),
    ("window of 64, table", "", 8192, "allocate-8192-window-64", "best"),
    ("window of 64, trained on at rate 0.01, then table", "", 8192, "allocate-8192-k16-on", "best"),
    ("32 groups, trained with 8 a query; window of 64, table", "", 8192, "allocate-8192-k32", "best"),
)
"""Name, the results' name, tokens a window, and where the line was compared on the validation slice, as what."""


def recorded() -> list[Mark]:
    """Every recorded line of the frontier."""
    return marks(documents(DATA / "results", PREFIX))


def result(line: str, text: str, context: int) -> dict[str, Any] | None:
    """What was measured of a line on a text; None where nothing was."""
    return read_json(DATA / "results" / f"{PREFIX}{line}-{text}-{context}.json") if line else None


def lost(found: dict[str, Any]) -> str:
    """The pairs kept, and the change of perplexity against dense on the same tokens."""
    change = f"{100 * found['kept_pairs']:.1f} %, {100 * math.expm1(found['nll_diff']):+.1f} %"
    # Two windows have no spread worth a number.
    return change + (f" ± {100 * found['nll_se']:.1f}" if found["windows"] > 2 else "")


def slice_(file: str | None, what: str | None) -> str:
    """A line on the novels' validation slice, where tables were chosen."""
    if file is None:
        return "–"
    search = read_json(DATA / "results" / f"{file}.json.gz")
    dense = search["rivals"][0]
    row = search["tables"][search["best"]] if what == "best" else next(r for r in search["rivals"] if r["what"] == what)
    return f"{100 * row['kept_pairs']:.1f} %, {100 * math.expm1(row['nll'] - dense['nll']):+.1f} %"


def table() -> str:
    """The rows of the shipped router and what was made of it, in Markdown."""
    lines = [
        "| tokens | groups looked into | validation slice | *Persuasion* | Brown fiction | code | technical prose |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, line, context, file, what in LINES:
        found = [result(line, text, context) for text in TEXTS]
        cells = [lost(each) if each else "–" for each in found]
        lines.append(f"| {context:,} | {name} | {slice_(file, what)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def patterns() -> str:
    """The rows of every pattern that needs no training here, fewest pairs first, both lengths in a cell."""
    rows = [
        f"| attention, at {' and '.join(f'{n:,}' for n in CONTEXTS)} tokens | pairs kept, % "
        "| *Persuasion* | Brown fiction | code | technical prose |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    found = recorded()
    novel = of(found, TEXTS[0], CONTEXTS[0])
    for first in (mark for mark in novel if mark.method != "tables"):
        cells = [[one(found, first.line, text, n) for n in CONTEXTS] for text in TEXTS]
        kept = " and ".join(_pairs([cell[at] for cell in cells]) for at in range(len(CONTEXTS)))
        rows.append(f"| {first.name} | {kept} | {' | '.join(', '.join(map(_change, cell)) for cell in cells)} |")
    return "\n".join(rows)


def short() -> str:
    """The shipped router at 1,024 tokens, as a sentence."""
    found = recorded()
    told = []
    for looks in range(1, 5):
        line = f"{SHIPPED}-q{looks}"
        novel, code = (one(found, line, text, 1024) for text in ("persuasion", "python_code"))
        pairs = f"{100 * novel.kept:.1f} and {100 * code.kept:.1f} %"
        told.append(f"{looks}: {pairs}, {_change(novel)} and {_change(code)} %")
    return (
        "At 1,024 tokens only the shipped router was measured; groups a query, pairs kept and change on *Persuasion* "
        f"and on code: {'; '.join(told)}."
    )


def sees() -> str:
    """Who is ahead of whom, as a list; ``tests/test_frontier_record.py`` holds its words to the records."""
    found = recorded()

    def told(line: str, text: str = "persuasion", context: int = 4096) -> str:
        mark = one(found, line, text, context)
        return f"{_change(mark)} ({100 * mark.kept:.1f})"

    one_, two, three = (f"{SHIPPED}-q{looks}" for looks in (1, 2, 3))
    random = {text: one(found, "random-k16-q2", text, 4096) for text in TEXTS}
    names = dict(zip(TEXTS, ("*Persuasion*", "Brown's fiction", "code", "technical prose"), strict=True))
    compared = "; ".join(
        f"{names[text]} {100 * math.expm1(at_pairs(found, text, 4096, mark.kept)):+.1f} and {100 * mark.change:+.1f}"
        for text, mark in random.items()
    )
    far = ". ".join(
        f"{name}: two groups {told(two, text)}, nearest 512 {told('window-512', text)}; three groups "
        f"{told(three, text)}, XAttention {told('xattention', text)}"
        for text, name in (("python_code", "Code"), ("python_reference", "Technical prose"))
    )
    lines = (
        f"*Persuasion*, 4,096 tokens: two groups a query stand where dense does, {told(two)}. Random groups "
        f"{told('random-k16-q2')}, BigBird {told('bigbird-plain')}, k-means groups {told('kmeans-k16-q2')}, the "
        f"nearest 512 tokens {told('window-512')}, Longformer {told('longformer-512')}, XAttention "
        f"{told('xattention')}.",
        f"At 8,192 tokens: two groups {told(two, context=8192)}, three {told(three, context=8192)}; random groups "
        f"{told('random-k16-q2', context=8192)}, the nearest 1,024 tokens {told('window-1024', context=8192)}, "
        f"XAttention {told('xattention', context=8192)}.",
        f"With one group a query less is left of the lead: {told(one_)}; the nearest 256 tokens {told('window-256')}, "
        f"the Routing Transformer {told('routing-k16')}. On Brown's fiction nothing is: {told(one_, 'brown-fiction')} "
        f"and {told('window-256', 'brown-fiction')}.",
        f"On code and technical prose the nearest tokens and XAttention are far ahead of Focus. {far}.",
        "What the router learned from five novels of one author helps on another of hers and on other fiction, and not "
        "there: with as many pairs as random groups of two a query have, on a straight line between one group and two, "
        f"Focus and the random groups come to: {compared}.",
        "k-means groups of two a query, with more pairs, are behind such random ones on every text at both lengths. On "
        "*Persuasion* either shared router is behind the directed one with four groups, with more pairs.",
    )
    return "\n".join(f"- {line}" for line in lines)


def at_pairs(found: list[Mark], text: str, context: int, kept: float) -> float:
    """The shipped router's change of nll for a share of the pairs, on a straight line between one group and two."""
    ends = [one(found, f"{SHIPPED}-q{looks}", text, context) for looks in (1, 2)]
    (low, a), (high, b) = [(mark.kept, math.log1p(mark.change)) for mark in ends]
    return a + (b - a) * (kept - low) / (high - low)


def one(found: list[Mark], line: str, text: str, context: int) -> Mark:
    """The mark of a line."""
    return next(mark for mark in found if (mark.line, mark.text, mark.context) == (line, text, context))


def _pairs(cell: list[Mark]) -> str:
    shares = [f"{100 * share:.1f}" for share in (min(m.kept for m in cell), max(m.kept for m in cell))]
    return shares[0] if shares[0] == shares[1] else " to ".join(shares)


def _change(mark: Mark) -> str:
    return f"{100 * mark.change:+.1f}" + ("" if mark.error is None else f" ± {100 * mark.error:.1f}")


def main() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text("utf-8")
    head, rest = text.split(MARKS[0])
    tail = rest.split(MARKS[1])[1]
    about = (
        "Every pattern as it is or as it ships, in the same frozen model on the same tokens (`python -m focus_core run "
        "experiments/frontier-plain.toml`): change of perplexity in % at either length; pairs from the text that keeps "
        "fewest to the one that keeps most. Below it, change in % and in brackets the pairs kept in %."
    )
    made = "\n\n".join((table(), about, patterns(), f"{sees()}\n- {short()}"))
    PAGE.write_text(f"{head}{MARKS[0]}\n\n{made}\n\n{MARKS[1]}{tail}", "utf-8")
    print(json.dumps({"page": str(PAGE), "rows": len(LINES)}))


if __name__ == "__main__":
    main()
