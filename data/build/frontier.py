"""The table of the frontier in ``docs/results.md``, from recorded results.

python -m data.build.frontier
"""

from __future__ import annotations

import json
import math
from typing import Any

from focus_core.assets import DATA
from focus_core.jobs.files import read_json

PAGE = DATA.parent / "docs" / "results.md"
MARKS = "<!-- made by python -m data.build.frontier -->", "<!-- end of the frontier -->"
TEXTS = ("persuasion", "brown-fiction", "python_code", "python_reference")
LINES = (
    ("2 groups a query", "q2", 4096, "allocate-4096", "query_topk 2"),
    ("2 groups a query, trained on", "q2-trained", 4096, None, None),
    ("table", "looks", 4096, "allocate-4096", "best"),
    ("table, trained on", "looks-trained", 4096, None, None),
    ("table of no group or all 16", "zero-or-all", 4096, "allocate-4096-zero-or-all", "best"),
    ("table for a router trained with 2 groups a query", "k16-4096", 4096, "allocate-4096-k16-4096", "best"),
    ("1 group a query", "q1", 8192, "allocate-8192", "query_topk 1"),
    ("2 groups a query", "q2", 8192, "allocate-8192", "query_topk 2"),
    ("table", "looks", 8192, "allocate-8192", "best"),
    ("table, trained on", "looks-trained", 8192, None, None),
)
"""Name, the results' name, tokens a window, and where the line was compared on the validation slice, as what."""


def result(line: str, text: str, context: int) -> dict[str, Any] | None:
    """What was measured of a line on a text; None where nothing was."""
    return read_json(DATA / "results" / f"frontier-directed-k16-{line}-{text}-{context}.json")


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
    """The rows, in Markdown."""
    lines = [
        "| tokens | groups looked into | validation slice | *Persuasion* | Brown fiction | code | technical prose |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, line, context, file, what in LINES:
        found = [result(line, text, context) for text in TEXTS]
        cells = [lost(each) if each else "–" for each in found]
        lines.append(f"| {context:,} | {name} | {slice_(file, what)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Put the table into the page."""
    text = PAGE.read_text("utf-8")
    head, rest = text.split(MARKS[0])
    tail = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{head}{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}{tail}", "utf-8")
    print(json.dumps({"page": str(PAGE), "rows": len(LINES)}))


if __name__ == "__main__":
    main()
