"""The small model that the Collapse tab trains beside its routers, and the recorded experiments.

    python data/build/collapse.py model            data/models/tiny-novels: minutes on two cores, one on a GPU
    python data/build/collapse.py run frozen       data/results/collapse-frozen.json.gz
    python data/build/collapse.py run moving       the model's weights are trained too
    python data/build/collapse.py run late         first the router alone, then everything, as the paper does

A recorded experiment that was stopped goes on at the next balancing. Run from the root of the project.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from focus_core.assets import training_text, validation_text  # noqa: E402
from focus_core.evaluation.environment import environment  # noqa: E402
from focus_core.handlers.collapse import MODEL, load_tiny  # noqa: E402
from focus_core.jobs.files import read_json, write_json  # noqa: E402
from focus_core.training.collapse import ORDER, CollapseSettings, compare_balances  # noqa: E402

VOCAB, CONTEXT = 2048, 256
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "frozen": {},
    "moving": {"moves_from": 0},
    "late": {"moves_from": 150},
}
STEPS = 300


def build_model(device: str, steps: int, batch: int) -> None:
    """Train the tokenizer and the model on the training novels."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator([training_text()], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>")
    ids = torch.tensor(raw.encode(training_text()).ids, device=device)
    held = torch.tensor(raw.encode(validation_text()).ids, device=device)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, bos_token_id=0, eos_token_id=0, pad_token_id=0, **SHAPE))
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95))
    began = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = (
                3e-3 * min(1, (step + 1) / 100) * (0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * step / steps)))
            )
        starts = torch.randint(0, len(ids) - CONTEXT, (batch,), device=device)
        window = ids[starts[:, None] + torch.arange(CONTEXT, device=device)]
        loss = model(input_ids=window, labels=window).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True)
    model = model.eval().to(torch.bfloat16)
    with torch.no_grad():
        windows = held[: len(held) // CONTEXT * CONTEXT].view(-1, CONTEXT)[:64]
        perplexity = math.exp(model.float()(input_ids=windows, labels=windows).loss.item())
    model.to(torch.bfloat16).save_pretrained(MODEL)
    tokenizer.save_pretrained(MODEL)
    about = {
        "texts": "five Austen novels without the validation slice",
        "steps": steps,
        "batch": batch,
        "context": CONTEXT,
        "seconds": round(time.monotonic() - began, 1),
        "validation_ppl": round(perplexity, 3),
        "parameters": sum(p.numel() for p in model.parameters()),
        "command": " ".join(["python", *sys.argv]),
        "environment": environment(device),
    }
    write_json(MODEL / "record.json", about, indent=1)
    print(json.dumps(about, indent=1))


def record(name: str, device: str, steps: int, out: Path) -> None:
    """Run one experiment, a balancing at a time, and write what is there after each."""
    path = out / f"collapse-{name}.json.gz"
    loaded, training, validation = load_tiny(device)
    settings = CollapseSettings(steps=steps, **EXPERIMENTS[name])
    document = read_json(path) or {}
    asked = {**dataclasses.asdict(settings), "balances": list(ORDER)}
    if (document.get("about") or {}).get("settings") != asked:
        document = {"about": {"settings": asked}, "records": [], "complete": False}
    began = time.monotonic()
    done = {r["balance"] for r in document["records"]}
    for balance in ORDER:
        if balance in done:
            continue
        one = dataclasses.replace(settings, balances=(balance,))
        records = compare_balances(SimpleNamespace(**vars(loaded)), training, validation, one, progress=_say)
        document["records"] += records
        document["about"] |= {
            "experiment": name,
            "model": read_json(MODEL / "record.json"),
            "layers": SHAPE["num_hidden_layers"],
            "command": " ".join(["python", *sys.argv]),
            "environment": environment(device),
        }
        document["about"]["seconds"] = round(document["about"].get("seconds", 0) + time.monotonic() - began, 1)
        began = time.monotonic()
        document["complete"] = {r["balance"] for r in document["records"]} == set(ORDER)
        write_json(path, document)
        final = {k: v for k, v in records[-1].items() if k != "load"}
        print(f"\n{name}: {json.dumps(final)}", flush=True)


def _say(fraction: float, message: str) -> None:
    if round(fraction * 1000) % 100 == 0:
        print(f"{fraction:.0%} {message}", flush=True)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["model", "run"])
    parser.add_argument("name", nargs="?", choices=list(EXPERIMENTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "results")
    args = parser.parse_args()
    if args.what == "model":
        build_model(args.device, args.steps or 1000, args.batch)
    elif args.name is None:
        parser.error("name the experiment")
    else:
        record(args.name, args.device, args.steps or STEPS, args.out)


if __name__ == "__main__":
    main()
