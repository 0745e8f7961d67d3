"""Reads the ledger's numbers again after a result was recorded anew: ``python -m data.build.claims``.

It writes the new numbers into ``data/claims.yaml`` and prints each that changed, since a verdict and its reason may no
longer follow from it.
"""

from __future__ import annotations

import re
import sys

from focus_core import claims as ledger

_VALUE = re.compile(r'(\bvalue: )("\?"|[^,}]+)')


def main() -> int:
    """Write what changed; gives the exit status."""
    measured = [(one["id"], each) for one in ledger.claims() for each in one["measured"]]
    text = ledger.FILE.read_text("utf-8")
    if len(_VALUE.findall(text)) != len(measured):
        print(f"{ledger.FILE} has another number of values than of measurements.", file=sys.stderr)
        return 1
    waiting = iter(measured)

    def anew(found: re.Match[str]) -> str:
        name, each = next(waiting)
        value = ledger.rounded(ledger.resolve(each), each.get("digits", 3))
        if value == each["value"]:
            return found[0]
        print(f"{name}: {each['what']}: {each['value']} is now {value:g}")
        # Without a point YAML would take an exponent for a word.
        shown = f"{value:.15g}"
        return found[1] + (shown if "e" not in shown or "." in shown else shown.replace("e", ".0e"))

    new = _VALUE.sub(anew, text)
    ledger.FILE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
