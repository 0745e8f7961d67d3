"""The small GPT-2 that ships: multi-head attention, learned positions, its own tokenizer, trained on the shipped texts.

    python -m data.build.small_gpt2 --device cuda            data/models/gpt2-novels, three minutes on an H200
    python -m data.build.small_gpt2 --steps 2 --batch 2 --validate-every 1 --out build/model      tried on a CPU

Trained on five novels and seven sections of Brown. *Persuasion* and Brown's fiction are held out; the step that is
kept is chosen on the validation slice of a training novel. Run from the root of the project.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from focus_core.assets import load_text, text_names, training_text, unwrap, validation_text
from focus_core.evaluation.environment import environment
from focus_core.jobs.files import write_json
from focus_core.models.catalog import SMALL_FOLDER

END = "<|end|>"
HELD_OUT = ("persuasion", "brown fiction")
CHECKED: dict[str, Any] = {"text": "persuasion", "context": 256, "windows": 2}
"""A slice so short that a test can measure it again."""


@dataclass(frozen=True)
class Recipe:
    """Shape and training; ``steps`` of ``batch`` windows of ``context`` tokens, the rate warmed up, then a cosine."""

    vocab: int = 4096
    layers: int = 6
    heads: int = 3
    width: int = 192
    context: int = 1024
    steps: int = 4000
    batch: int = 16
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    dropout: float = 0.2
    warmup: int = 200
    validate_every: int = 250
    seed: int = 0


def documents() -> list[str]:
    """What it is trained on. Novels stand in two forms: with the lines of the book, and unwrapped as passages are."""
    novels = training_text()
    sections = [name for name in text_names("tagged") if name.startswith("brown ") and name not in HELD_OUT]
    return [novels, unwrap(novels), *(load_text(name).text for name in sections)]


def train_tokenizer(texts: list[str], vocab: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text can be written with it, and each character of a token stands for one byte."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=END, eos_token=END, pad_token=END)


def encode(tokenizer: Any, text: str) -> torch.Tensor:
    """(T,) ids, nothing added."""
    return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def new_model(recipe: Recipe) -> GPT2LMHeadModel:
    """Untrained."""
    torch.manual_seed(recipe.seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=recipe.vocab,
            n_positions=recipe.context,
            n_embd=recipe.width,
            n_layer=recipe.layers,
            n_head=recipe.heads,
            resid_pdrop=recipe.dropout,
            embd_pdrop=recipe.dropout,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


@torch.no_grad()
def perplexity(model: Any, ids: torch.Tensor, sizes: torch.Tensor, context: int, windows: int | None) -> dict[str, Any]:
    """Of windows that do not overlap, N - 1 tokens of each scored, by token and by byte.

    Args:
        model: in eval mode.
        ids: (T,) of a text.
        sizes: (V,) bytes of every token.
        context: N.
        windows: how many; None for all whole ones.
    """
    whole = len(ids) // context
    count = whole if windows is None else min(windows, whole)
    device = model.device
    total, scored, size = 0.0, 0, 0
    for window in ids[: count * context].view(count, context):
        logits = model(input_ids=window[None].to(device), use_cache=False).logits[0, :-1].float()
        total += F.cross_entropy(logits, window[1:].to(device), reduction="sum").double().item()
        scored += context - 1
        size += int(sizes[window[1:]].sum())
    return {
        "ppl": round(math.exp(total / scored), 5),
        "bits_per_byte": round(total / math.log(2) / size, 5),
        "ppl_per_byte": round(math.exp(total / size), 5),
        "tokens": scored,
        "bytes": size,
        "context": context,
        "windows": count,
    }


def train(model: Any, ids: torch.Tensor, held: torch.Tensor, sizes: torch.Tensor, recipe: Recipe) -> dict[str, Any]:
    """Train in place; the model ends as it was at the step with the best validation perplexity."""
    device = model.device
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(recipe.seed)
    ids = ids.to(device)
    offsets = torch.arange(recipe.context, device=device)
    best, log = None, []
    for step in range(1, recipe.steps + 1):
        ramp = min(1.0, step / max(1, recipe.warmup))
        share = 0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * (step - 1) / recipe.steps))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * ramp * share
        starts = torch.randint(0, len(ids) - recipe.context + 1, (recipe.batch,), generator=generator).to(device)
        window = ids[starts[:, None] + offsets]
        model.train()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(input_ids=window, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % recipe.validate_every == 0 or step == recipe.steps:
            found = perplexity(model.eval(), held, sizes, recipe.context, 32)["ppl"]
            log.append({"step": step, "loss": round(loss.item(), 4), "validation_ppl": found})
            print(json.dumps(log[-1]), flush=True)
            if best is None or found < best[0]:
                best = found, step, {n: t.detach().cpu().clone() for n, t in model.state_dict().items()}
    assert best is not None
    model.load_state_dict(best[2])
    model.eval()
    return {"best_step": best[1], "log": log}


def build(recipe: Recipe, texts: list[str], held: str, evaluations: dict[str, str], device: str, out: Path) -> None:
    """Train tokenizer and model, measure what is saved, and write the folder with its card."""
    began = time.monotonic()
    tokenizer = train_tokenizer(texts, recipe.vocab)
    recipe = dataclasses.replace(recipe, vocab=len(tokenizer))
    ids = torch.cat([part for text in texts for part in (encode(tokenizer, text), torch.tensor([0]))])
    tokens = [tokenizer.convert_ids_to_tokens(i) for i in range(recipe.vocab)]
    sizes = torch.tensor([0 if token == END else len(token) for token in tokens])
    model = new_model(recipe).to(device)
    trained = train(model, ids, encode(tokenizer, held), sizes, recipe)
    seconds = time.monotonic() - began
    # What is saved is what is measured: weights of 16 bits, computed in 32.
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    model.float()
    figures = {
        name: perplexity(model, encode(tokenizer, text), sizes, recipe.context, None)
        for name, text in {"validation slice": held, **evaluations}.items()
    }
    short = encode(tokenizer, evaluations.get(CHECKED["text"], held))
    few = min(CHECKED["context"], recipe.context)
    record = {
        "texts": "five Austen novels without the validation slice, as printed and unwrapped; Brown without its fiction",
        "held_out": list(HELD_OUT),
        "training_bytes": sum(len(text.encode()) for text in [texts[0], *texts[2:]]),
        "training_tokens": len(ids) - len(encode(tokenizer, texts[1])) if len(texts) > 1 else len(ids),
        "tokens_seen": trained["best_step"] * recipe.batch * recipe.context,
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": dataclasses.asdict(recipe),
        **trained,
        "perplexity": figures,
        "check": {**CHECKED, **perplexity(model, short, sizes, few, CHECKED["windows"])},
        "seconds": round(seconds, 1),
        "command": shlex.join(["python", "-m", "data.build.small_gpt2", *sys.argv[1:]]),
        "environment": environment(device),
    }
    write_json(out / "record.json", record, indent=1)
    print(json.dumps({k: v for k, v in record.items() if k not in ("log", "environment")}, indent=1))


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Recipe):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=SMALL_FOLDER)
    args = parser.parse_args()
    recipe = Recipe(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Recipe)})
    evaluations = {name: load_text(name).text for name in HELD_OUT}
    build(recipe, documents(), validation_text(), evaluations, args.device, args.out)


if __name__ == "__main__":
    main()
