"""What a report of one run says: what ran, how to repeat it, and which tokens paid, as tables of plain text."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np

from analysis import overview
from analysis.captions import settings
from analysis.numbers import percent, sig3, signed, spread
from analysis.palette import group_label, groups_of
from focus_core.trace import Trace


def command(trace: Trace) -> str:
    """The command that repeats the run; a text of one's own is named ``text.txt``."""
    p = trace.provenance
    parts = ["python", "-m", "focus_core", "trace", "--model", str(p["model"]), "--variant", str(p["variant"])]
    for name, value in (p.get("config") or {}).items():
        parts += ["--set", f"{name}={value}"]
    if p.get("adapter"):
        parts += ["--adapter", str(p["adapter"])]
    parts += ["--text", str(p.get("text_name") or "text.txt"), "--limit", str(len(trace)), "--out", "run.npz"]
    return shlex.join(parts)


def what_ran(trace: Trace) -> list[tuple[str, str]]:
    """(name, value) of everything that decided the result, and of where it was made."""
    p = trace.provenance
    versions = ", ".join(f"{name} {value}" for name, value in (p.get("versions") or {}).items())
    rows = [
        ("Model", f"{p['model']}, revision {p.get('revision') or 'unknown'}"),
        ("Shape", f"{p['layers']} layers, {p['heads']} query heads, {p['kv_heads']} KV heads"),
        ("Attention", f"{p['variant']}: {settings(p.get('config'), p.get('adapter'))}"),
        ("Trained groups", str(p.get("adapter") or "none")),
        ("Text", f"{p.get('text_name') or 'the user’s own'}, {len(trace):,} tokens, hash {p.get('text_hash')}"),
        ("Where", f"{p.get('device')}, {p.get('dtype')}; {versions}"),
        ("When", f"{p.get('time')}; {float(p.get('seconds') or 0):.1f} s"),
    ]
    if p.get("edits"):
        rows.append(("Edits", f"{len(p['edits'])} groups were changed by hand before the run"))
    return rows


def three_figures(trace: Trace) -> list[tuple[str, str, str]]:
    """(name, figure, what it means) of the run's three figures."""
    found = overview.figures(trace)
    mass = percent(found.mass_kept) if found.mass_kept is not None else "not recorded"
    change = f"{overview.change_text(found.change)} {spread(found.spread)}" if found.judged else "too short to judge"
    return [
        ("Pairs computed", percent(found.kept_pairs), "of all causal query-key pairs, mean over layers and heads"),
        ("Dense attention kept", mass, "of the dense model's attention lies on the computed pairs"),
        (
            "Perplexity against dense",
            change,
            f"{sig3(found.dense_ppl)} dense, {sig3(found.ppl)} with these pairs, {found.scored:,} scored tokens; "
            "± is the standard error over them",
        ),
    ]


def worst_tokens(trace: Trace, layer: int, router: int = 0, count: int = 20) -> list[dict[str, Any]]:
    """The tokens that became least likely, with what came before them and their groups at one layer."""
    rows = []
    for token, change in overview.most_hurt(trace, count):
        row = {
            "Token": _line(trace.tokens[token]),
            "Place": f"{token + 1:,}",
            "Change in nats": signed(change),
            "After": _line("".join(trace.tokens[max(0, token - 8) : token])),
        }
        if "key_bits" in trace.arrays:
            bits = np.asarray(trace.arrays["key_bits"])[layer, router, token]
            row["Groups"] = " ".join(map(group_label, groups_of(int(bits)))) or "–"
        rows.append(row)
    return rows


def _line(text: str) -> str:
    return text.replace("\n", "↵").replace("\t", "⇥")
