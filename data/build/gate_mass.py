"""What the published soft gate takes from far pairs of different groups: ``python -m data.build.gate_mass``.

It writes ``data/results/gate-mass-smollm2.json``. A gate multiplies a far pair's score before the softmax. For every
layer of the shipped adapter in the paper's form: the least gate and the mean gate of far pairs whose strongest groups
differ, and the share of attention that those pairs have with the gate, and without it on the same scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from focus_core import assets
from focus_core.adapter import load_adapter
from focus_core.evaluation.environment import environment
from focus_core.evaluation.likelihood import token_nll
from focus_core.evaluation.perplexity import windows_of
from focus_core.jobs.files import write_json
from focus_core.models.loading import load_model
from focus_core.retrofit import retrofit
from focus_core.variants.base import AttentionCall
from focus_core.variants.focus import Focus

ADAPTER, WINDOWS, CONTEXT = "smollm2-paper-k4", 2, 1024


@dataclass(frozen=True)
class GateMass(Focus):
    """The paper's gate, every pair computed; keeps what it takes from the pairs that it is meant to take it from."""

    def __post_init__(self) -> None:
        """Check the fields, and start a list of rows."""
        super().__post_init__()
        object.__setattr__(self, "rows", [])

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        heads, length = call.query.shape[1], call.key.shape[2]
        assert call.cached is not None
        key, value, groups = (x.repeat_interleave(heads // x.shape[1], 1) for x in (call.key, call.value, call.cached))
        scores = (
            call.query @ key.transpose(-1, -2) * (call.query.shape[-1] ** -0.5 if call.scale is None else call.scale)
        )
        gate = torch.sigmoid(call.adapter.sharpness[call.layer] * (groups @ groups.transpose(-1, -2)))
        rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
        later = columns > rows
        far = (rows - columns >= self.window) & (columns >= self.sinks)
        other = far & (groups.argmax(-1)[..., None] != groups.argmax(-1)[..., None, :])
        plain, gated = (
            one.masked_fill(later, -torch.inf).softmax(-1) for one in (scores, torch.where(far, scores * gate, scores))
        )
        asks = far.any(-1)
        self.rows.append(  # type: ignore[attr-defined]
            {
                "layer": call.layer,
                "least_gate": float(gate[other].min()),
                "mean_gate": float(gate[other].mean()),
                "largest_gate": float(gate[far.expand_as(gate)].max()),
                "share": float((gated * other).sum(-1)[..., asks].mean()),
                "share_without": float((plain * other).sum(-1)[..., asks].mean()),
            }
        )
        return gated @ value


def main() -> None:
    """Measure and write."""
    loaded = load_model("smollm2", dtype="float32")
    adapter = load_adapter(assets.DATA / "adapters" / ADAPTER, loaded.model)
    variant = GateMass(gate="paper", groups=4, query_topk=1)
    tokens, _ = windows_of(loaded.tokenizer, assets.load_text("persuasion").text, CONTEXT, WINDOWS)
    with torch.no_grad(), retrofit(loaded.model, variant, adapter):
        for ids in tokens:
            token_nll(loaded.model, torch.from_numpy(ids)[None])
    rows: list[dict[str, Any]] = variant.rows  # type: ignore[attr-defined]
    layers = [
        {name: sum(row[name] for row in rows if row["layer"] == layer) / WINDOWS for name in rows[0]}
        for layer in range(loaded.facts.layers)
    ]
    document = {
        "command": "python -m data.build.gate_mass",
        "adapter": ADAPTER,
        "context": CONTEXT,
        "windows": WINDOWS,
        "environment": environment("cpu"),
        "layers": layers,
    }
    write_json(assets.DATA / "results/gate-mass-smollm2.json", document, indent=1)


if __name__ == "__main__":
    main()
