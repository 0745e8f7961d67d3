"""A model's keys and values made from a latent, rank by rank, before and after a short healing: ``latent-MODEL.json``.

    python -m data.build.latent --device cuda             the small GPT-2, about a minute on an H200
    python -m data.build.latent --model smollm2 --rotary 32 --weighting activations --ranks 192,128 --device cuda
    python -m data.build.latent --steps 2 --batch 1 --context 128 --heal 16 --windows 1 --out build/latent   on a CPU

Every rank is factorised and measured on *Persuasion*, which neither the factors nor the healing have seen. The ranks of
``--heal`` are then trained a little on the training novels (the language model's loss, and the error against dense
attention) into ``MODEL-latent-rRANK`` under ``--out``; a stopped run goes on. Run from the root of the project.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from focus_core import assets
from focus_core.assets import load_text, training_text, validation_text
from focus_core.evaluation.environment import environment
from focus_core.evaluation.latent_ranks import by_rank, measured
from focus_core.jobs.files import write_json
from focus_core.models.catalog import SMALL
from focus_core.models.loading import load_model
from focus_core.routing.factorise import default_rotary
from focus_core.routing.windows import spread_windows
from focus_core.training.settings import WEIGHTINGS, TrainSettings
from focus_core.training.trainer import train
from focus_core.variants import make

TEXT = "persuasion"
_FITTED = 16


def main() -> None:
    """Factorise, measure, heal, measure again, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMALL)
    parser.add_argument("--ranks", type=_numbers, default=(192, 128, 96, 64, 48, 32, 16, 8))
    parser.add_argument("--heal", type=_numbers, default=(64, 32, 16), help="ranks that are trained, none for 0")
    parser.add_argument(
        "--rotary", type=int, help="rotated numbers of a KV head that are kept; half of them by default"
    )
    parser.add_argument("--weighting", choices=WEIGHTINGS, default="weights", help="what the factors start from")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--windows", type=int, default=40, help="windows that perplexity is measured on")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder of the adapters and the result; data/ by default")
    options = parser.parse_args()
    adapters = options.out or assets.DATA / "adapters"
    results = options.out or assets.DATA / "results"

    loaded = load_model(options.model, device=options.device, dtype="float32")
    training, validation = _ids(loaded, training_text()), _ids(loaded, validation_text())
    fitted = spread_windows(training, options.context, _FITTED)
    scored = _windows(_ids(loaded, load_text(TEXT).text), options.context)[: options.windows]
    rotary = default_rotary(loaded.facts) if options.rotary is None else options.rotary
    ranks = sorted({*options.ranks, *options.heal} - {0}, reverse=True)
    rows = by_rank(loaded, fitted, scored, ranks, rotary=rotary, weighting=options.weighting, partial=print)
    for rank in options.heal:
        if rank:
            healed = _heal(loaded, training, validation, scored, rank, rotary, options, adapters)
            print(healed)
            next(row for row in rows if row["rank"] == rank)["healed"] = healed
    document = {
        "about": {
            "model": loaded.name,
            "text": TEXT,
            "context": options.context,
            "windows": len(scored),
            "weighting": options.weighting,
            "fitted_tokens": fitted.numel(),
            "command": shlex.join(["python", "-m", "data.build.latent", *sys.argv[1:]]),
            "environment": environment(loaded.model.device),
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        },
        "rows": rows,
    }
    write_json(results / f"latent-{options.model}.json", document)


def _heal(
    loaded: Any,
    training: torch.Tensor,
    validation: torch.Tensor,
    scored: torch.Tensor,
    rank: int,
    rotary: int,
    options: Any,
    adapters: Path,
) -> dict[str, Any]:
    """Train the factors of one rank; what is kept is the step that was best on the validation slice."""
    settings = TrainSettings(
        kind="latent",
        rank=rank,
        rotary=rotary,
        weighting=options.weighting,
        steps=options.steps,
        context=options.context,
        batch=options.batch,
        learning_rate=options.learning_rate,
        validate_every=max(1, options.steps // 8),
    )
    name = f"{options.model}-latent-r{rank}"
    texts = "five Austen novels without the validation slice"
    factors = train(loaded, training, validation, settings, adapters / name, texts=texts)
    row = measured(loaded, make("mla", factors.serve), factors, scored)
    record = factors.record
    return {"adapter": name, "ppl": row["ppl"], "step": record["step"], "tokens": record["tokens"]} | {
        "trained_parameters": record["trained_parameters"],
        "seconds": record["seconds"],
    }


def _ids(loaded: Any, text: str) -> torch.Tensor:
    return torch.tensor(loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _windows(ids: torch.Tensor, context: int) -> torch.Tensor:
    return ids[: len(ids) // context * context].view(-1, context)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
