"""Controls of what a router learns: what ``experiments/controls.toml`` measured, and one that is no variant.

python -m focus_core run experiments/controls.toml --results build/controls
python -m data.build.controls         data/results/controls-gpt2-novels.json, from build/controls, and what is below
python -m data.build.controls table   docs/results.md: the table of them

The published soft gate balances groups over a whole sequence, so that a token's groups depend on later ones. Its causal
form, measured here, balances over what came before: a token's groups are those that the same rule gives it when the
text ends with it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from focus_core import assets
from focus_core.adapter import load_adapter
from focus_core.evaluation.environment import environment
from focus_core.evaluation.perplexity import evaluate
from focus_core.experiments.plan import read_plan
from focus_core.jobs.files import read_json, write_json
from focus_core.models.loading import load_model
from focus_core.routing.router import PAPER_ITERATIONS, PAPER_TEMPERATURE
from focus_core.variants.base import Prepared
from focus_core.variants.focus import Focus

PLAN, RECORD = Path("experiments/controls.toml"), Path("data/results/controls-gpt2-novels.json")
WORK, RESULTS = Path("build/experiments"), Path("build/controls")
KEPT = (
    *("command", "variant", "config", "served", "ppl", "ppl_se", "nll_diff", "nll_se", "dense_ppl", "tokens"),
    *("kept_pairs", "context", "windows", "text", "dtype"),
)
LINES = {
    "learned": "learned groups",
    "frozen-centroids": "learned groups around centroids that stay where they were drawn",
    "random-k16-q4": "random groups",
    "far-temperature": "all, one learned temperature a layer",
    "paper-leaking": "all, the published soft gate, which leaks from later tokens",
    "paper-causal": "all, the same gate, balanced over earlier tokens alone",
    "paper-served": "the same router's groups, served",
}
"""Lines of the table, and what they are called there."""
PAGE = Path("docs/results.md")
START, END = "<!-- made by python -m data.build.controls table -->", "<!-- end of the controls -->"
TRAINED = ("command", "tokens", "seconds", "trained_parameters", "served_validation_ppl", "dense_validation_ppl")
_PREFIXES = 64


def sinkhorn_of_prefixes(logits: torch.Tensor) -> torch.Tensor:
    """For every token, ``sinkhorn_over_sequence``'s shares of it in the text that ends with it.

    Args:
        logits: (B, R, N, K), divided by the temperature already, of rows without pads.

    Returns:
        (B, R, N, K), each row summing to one; a row does not depend on later ones.
    """
    length, found = logits.shape[2], torch.empty_like(logits)
    for start in range(0, length, _PREFIXES):
        ends = torch.arange(start, min(start + _PREFIXES, length), device=logits.device)
        # Axis 2 is the prefix, axis 3 its tokens.
        q = logits[:, :, None, : int(ends[-1]) + 1].expand(-1, -1, len(ends), -1, -1)
        later = (torch.arange(q.shape[3], device=logits.device) > ends[:, None])[..., None]
        for _ in range(PAPER_ITERATIONS):
            q = q - q.masked_fill(later, -torch.inf).logsumexp(3, keepdim=True)
            q = q.log_softmax(-1)
        found[:, :, ends] = q[:, :, torch.arange(len(ends), device=logits.device), ends].exp()
    return found


@dataclass(frozen=True)
class CausalPaper(Focus):
    """The paper's soft gate with groups that do not depend on later tokens; has no name, since it is no variant."""

    @property
    def leaks(self) -> bool:
        """False: every token's groups are balanced over those before it."""
        return False

    def prepare(
        self, hidden: torch.Tensor, layer: int, positions: torch.Tensor, adapter: Any, first_key: torch.Tensor | None
    ) -> Prepared:
        """See Variant.prepare."""
        key_logits, _ = adapter.logits(layer, hidden)
        shares = sinkhorn_of_prefixes(key_logits / PAPER_TEMPERATURE)
        return Prepared(shares, shares)


def rows_of(path: Path = PLAN) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The rows that are there, and where the first was measured."""
    rows, where = [], None
    for task in read_plan([path], WORK, RESULTS):
        found = read_json(task.place) if task.asked is None else None
        if found is None:
            continue
        where = where or found["environment"]
        line = task.name.removeprefix("controls-").removesuffix(f"-{found['text'].replace(' ', '-')}-1024")
        row = {"line": line} | {name: found[name] for name in KEPT if name in found}
        if "training" in found:
            row["training"] = {name: found["training"][name] for name in TRAINED if name in found["training"]}
        rows.append(row)
    return rows, where


def causal(model: str, folder: Path, texts: list[str], windows: int, **settings: Any) -> list[dict[str, Any]]:
    """The paper's gate of an adapter as it is published and in its causal form."""
    loaded, rows = load_model(model, dtype="float32"), []
    adapter = load_adapter(folder, loaded.model)
    for text in texts:
        for line, variant in (("leaking", Focus), ("causal", CausalPaper)):
            asked = variant(gate="paper", query_topk=1, key_topk=1, groups=4, **settings)
            words = assets.load_text(text).text
            found = evaluate(loaded, asked, adapter, words, context=1024, windows=windows, probes=False)
            row = {"line": f"paper-{line}", "model": model, "text": text, "command": "python -m data.build.controls"}
            rows.append({name: found[name] for name in KEPT if name in found} | row)
    return rows


def cell(rows: list[dict[str, Any]], line: str, text: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of a line, one a seed, and what the table says of their change of perplexity against dense."""
    seeds = re.compile(rf"{line}(-s\d+)?")
    found = [row for row in rows if seeds.fullmatch(row["line"]) and row["text"] == text and "model" not in row]
    if not found:
        found = [row for row in rows if row["line"] == line and row["text"] == text and row["model"] == "gpt2-novels"]
    changes = [100 * (row["ppl"] / row["dense_ppl"] - 1) for row in found]
    spread = f" ± {stdev(changes):.1f}" if len(changes) > 1 else ""
    return found, f"{fmean(changes):+.1f} %{spread}"


def table(rows: list[dict[str, Any]]) -> str:
    """The table of docs/results.md."""
    out = ["| far pairs | seeds | pairs kept | *Persuasion* | Brown fiction |", "| --- | --- | --- | --- | --- |"]
    for line, title in LINES.items():
        found, novel = cell(rows, line, "persuasion")
        kept = f"{100 * fmean(row['kept_pairs'] for row in found):.0f} %"
        out.append(f"| {title} | {len(found)} | {kept} | {novel} | {cell(rows, line, 'brown fiction')[1]} |")
    return "\n".join(out)


def main() -> None:
    """See the module's text."""
    if sys.argv[1:] == ["table"]:
        page = PAGE.read_text("utf-8")
        start, end = page.index(START) + len(START), page.index(END)
        made = table(read_json(RECORD)["rows"])
        PAGE.write_text(f"{page[:start]}\n\n{made}\n\n{page[end:]}", "utf-8")
        return
    rows, where = rows_of()
    rows = [row for row in rows if row["line"] != "paper-leaking"]
    rows += causal("gpt2-novels", WORK / "gpt2-novels-paper", ["persuasion", "brown fiction"], 16)
    rows += causal("smollm2", assets.DATA / "adapters/smollm2-paper-k4", ["persuasion"], 4)
    about = f"python -m focus_core run {PLAN} --results {RESULTS}"
    write_json(RECORD, {"command": about, "environment": where or environment("cpu"), "rows": rows}, indent=1)


if __name__ == "__main__":
    main()
