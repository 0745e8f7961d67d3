"""The lines that ``data.build.baselines`` makes: what is trained, what is measured, and by which commands."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORK, SHIPPED, RESULTS = Path("build/baselines"), Path("data/adapters"), Path("data/results")
MODEL, SMALL = "smollm2", "gpt2-novels"
BUDGET = {
    "steps": 200,
    "context": 1024,
    "batch": 4,
    "validate-every": 100,
    "validation-windows": 16,
    "checkpoint-every": 1000,
}
"""0.8 million tokens for everything that is trained."""
FIT = {"context": 1024}
SHORT = (("persuasion", 1024, ("--batch", "4")), ("brown", 1024, ("--batch", "4", "--no-probes")))
NOVEL = (*SHORT, ("persuasion", 4096, ("--no-probes",)))
FULL = (*NOVEL, ("brown", 4096, ("--no-probes",)))
SMALL_HELD_OUT = tuple((text, 1024, ("--batch", "8")) for text in ("brown fiction", "persuasion"))
"""(text, context, options) of a line's results; of the small model, what it was not trained on."""
LORA_RATES, MAP_RATES = (1e-3, 3e-3), (3e-3, 1e-2)
MATCHED = "bigbird window_blocks=2 random_blocks=1"
"""About the pairs of Longformer's 256 nearest and 16 first tokens, at any length."""


@dataclass(frozen=True)
class Line:
    """One line of the comparison.

    Attributes:
        variant: a variant and its settings, as it is measured.
        train: options of ``train`` beside the budget; None for what is not trained.
        rates: learning rates that are tried; none for what is fitted and not trained.
        uses: the line whose adapter is measured.
        adapter: name of a shipped adapter that is measured.
        ships: the adapter's name in data/adapters, where it ships.
        model: the model it is for.
        evaluations: what is measured.
    """

    variant: str
    train: dict[str, Any] | None = None
    rates: tuple[float, ...] = ()
    uses: str = ""
    adapter: str = ""
    ships: str = ""
    model: str = MODEL
    evaluations: tuple[tuple[str, int, tuple[str, ...]], ...] = SHORT


def _lora(through: str, rank: int = 8, rates: tuple[float, ...] = LORA_RATES, reads: str = "", **more: Any) -> Line:
    """LoRA through a variant; ``reads`` names the shipped adapter that this variant reads."""
    options = {"kind": "lora", "through": through, "rank": rank}
    if reads:
        options["through-adapter"] = str(SHIPPED / reads)
    return Line(through, options, rates, **more)


def _maps(features: int, select: str = "features", rates: tuple[float, ...] = MAP_RATES, **more: Any) -> Line:
    options = {"kind": "sfa", "features": features, "select": select, **more}
    return Line(f"sfa features={features} select={select}", options, rates, evaluations=FULL)


def _small_maps(features: int, select: str = "features") -> Line:
    line = _maps(features, select, MAP_RATES[:1])
    return dataclasses.replace(line, model=SMALL, evaluations=SMALL_HELD_OUT)


def _fitted(features: int, select: str = "features") -> Line:
    options = {"kind": "feature_maps", "features": features, "select": select}
    return Line(f"sfa features={features} select={select}", options)


def _latents(
    model: str, ranks: tuple[int, ...], rotary: int, rates: tuple[float, ...], ships: str = "", **more: Any
) -> dict[str, Line]:
    """A latent of each rank in place of keys and values, as factorised and after the budget of training."""
    found = {}
    for rank in ranks:
        variant, options = f"mla rank={rank} rotary={rotary}", {"rank": rank, "rotary": rotary}
        name = f"{model}-r{rank}"
        found[f"latent-fitted-{name}"] = Line(variant, {"kind": "factors", **options}, model=model, **more)
        found[f"latent-{name}"] = Line(variant, {"kind": "latent", **options}, rates, ships=ships, model=model, **more)
    return found


LONGFORMER, WINDOW, FEW = "longformer window=256 sinks=16", "window window=128 sinks=4", "performer features=64"
LINES: dict[str, Line] = {
    "lora-performer-64": _lora(FEW),
    "sfa-k16": _maps(16),
    "short-24": _maps(24, "first"),
    "lora-dense-r8": _lora("dense", rates=(3e-4, *LORA_RATES), evaluations=NOVEL),
    "lora-longformer": _lora(LONGFORMER, evaluations=NOVEL),
    "lora-bigbird-matched": _lora(MATCHED),
    "lora-routing-k16": _lora("routing", reads=f"{MODEL}-routing-k16"),
    "sfa-k8": _maps(8),
    "short-12": _maps(12, "first"),
    "short-16": _maps(16, "first"),
    "short-8": _maps(8, "first"),
    "lora-window-128": _lora(WINDOW, evaluations=NOVEL),
    "lora-dense-r2": _lora("dense", 2),
    "lora-dense-r32": _lora("dense", 32),
    "sfa-k64": _maps(64, rates=MAP_RATES[:1]),
    "sfa-k16-no-output-loss": _maps(16, rates=MAP_RATES[:1], **{"output-weight": 0}),
    **_latents(MODEL, (64, 128), 32, LORA_RATES[:1]),
    **_latents(SMALL, (16, 32), 0, LORA_RATES, evaluations=SMALL_HELD_OUT),
    # At 1e-3 these leave their start, which loses little, and do not come back: 2,636 at rank 64 where dense has 46.7.
    **_latents(SMALL, (96, 128), 0, (1e-4,), evaluations=SMALL_HELD_OUT),
    **_latents(SMALL, (64,), 0, (1e-4,), ships="gpt2-novels-latent-r64", evaluations=SMALL_HELD_OUT),
    "sfa-gpt2-novels-k16": _small_maps(16),
    "short-gpt2-novels-24": _small_maps(24, "first"),
    "sfa-gpt2-novels-k8": _small_maps(8),
    "short-gpt2-novels-12": _small_maps(12, "first"),
    "short-gpt2-novels-16": _small_maps(16, "first"),
    "lora-dense-gpt2-novels": _lora("dense", model=SMALL, evaluations=SMALL_HELD_OUT),
    "dense": Line("dense", evaluations=FULL),
    "window-128": Line(WINDOW, evaluations=NOVEL),
    "longformer": Line(LONGFORMER, evaluations=NOVEL),
    "bigbird": Line("bigbird"),
    "bigbird-matched": Line(MATCHED, evaluations=NOVEL),
    "performer": Line("performer", evaluations=NOVEL),
    "performer-64": Line(FEW),
    "routing-k16": Line("routing", {"kind": "routing", "groups": 16}, ships=f"{MODEL}-routing-k16", evaluations=NOVEL),
    "sfa-zero-k8": Line("sfa features=8"),
    "sfa-zero-k16": Line("sfa features=16", evaluations=FULL),
    "sfa-zero-k32": Line("sfa features=32", evaluations=FULL),
    "sfa-zero-pairs-k16": Line("sfa features=16 select=pairs"),
    "sfa-zero-keys-k16": Line("sfa features=16 sparse=keys"),
    "focus-sfa-k16": Line("focus_sfa features=16", adapter="smollm2-directed-k16", evaluations=NOVEL),
    "xattention": Line("xattention"),
    "xattention-sfa-k16": Line("xattention_sfa features=16"),
    "sfa-fitted-k16": _fitted(16),
    "sfa-fitted-k8": _fitted(8),
    "short-fitted-16": _fitted(16, "first"),
    "short-fitted-24": _fitted(24, "first"),
    "short-fitted-8": _fitted(8, "first"),
    "short-fitted-12": _fitted(12, "first"),
    "lora-dense-r8-in-window-128": Line(WINDOW, uses="lora-dense-r8"),
    "lora-dense-r8-in-longformer": Line(LONGFORMER, uses="lora-dense-r8"),
    "lora-dense-r8-in-bigbird-matched": Line(MATCHED, uses="lora-dense-r8"),
    "lora-dense-r8-in-performer-64": Line(FEW, uses="lora-dense-r8"),
}


def folder(name: str, rate: float | None = None) -> Path:
    """Where a line's adapter lies; of one rate among several, the run's own folder."""
    if rate is not None:
        return WORK / "runs" / f"{name}-{rate:g}"
    return SHIPPED / LINES[name].ships if LINES[name].ships else WORK / f"{LINES[name].model}-{name}"


def train_command(name: str, rate: float | None, budget: dict[str, Any]) -> list[str]:
    """Arguments of ``python -m focus_core`` that train or fit a line."""
    line = LINES[name]
    assert line.train is not None
    options = {**(FIT if rate is None else budget), **line.train}
    if rate is not None:
        options["learning-rate"] = f"{rate:g}"
    given = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    return ["train", "--model", line.model, *given, "--out", str(folder(name, rate))]


def eval_command(name: str, text: str, context: int, options: Sequence[str]) -> list[str]:
    """Arguments of ``python -m focus_core`` that measure a line."""
    line = LINES[name]
    variant, *given = line.variant.split()
    sets = [part for item in given for part in ("--set", item)]
    own = folder(line.uses or name) if line.train or line.uses else line.adapter
    adapter = ["--adapter", str(own)] if own else []
    where = ["--text", text, "--context", str(context), "--dtype", "float32", *options]
    return [
        "eval",
        "--model",
        line.model,
        "--variant",
        variant,
        *sets,
        *adapter,
        *where,
        "--json",
        str(path_of(name, text, context)),
    ]


def path_of(name: str, text: str, context: int) -> Path:
    """The result's file."""
    return RESULTS / f"eval-{name}-{text.replace(' ', '-')}{'' if context == 4096 else f'-{context}'}.json"


def said(arguments: list[str]) -> str:
    """The command as a person types it."""
    return shlex.join(["python", "-m", "focus_core", *arguments])
