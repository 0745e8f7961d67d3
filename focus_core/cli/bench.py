"""``bench``: attention kernels beside the strongest dense baseline of the device, in one run."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.options import DTYPES, settings
from focus_core.cli.output import bar, rows
from focus_core.errors import InvalidInput

SUMMARY = "time attention of several variants and lengths beside the strongest dense baseline"
_FORM = "--set VARIANT.FIELD=VALUE"
_RATIOS = ("speedup", "speedup_p10", "speedup_p90", "pair_limit")
_SHARES = ("kept_pairs",)


def configure(parser: argparse.ArgumentParser) -> None:
    """See design.md; the default shape is SmolLM2's."""
    parser.add_argument("--variants", default="focus,window", help="names with commas between (default focus,window)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="VARIANT.FIELD=VALUE", help="a setting; may be repeated"
    )
    parser.add_argument(
        "--lengths", default="1024,4096,8192", metavar="N,N", help="tokens, with commas between (default %(default)s)"
    )
    parser.add_argument("--batch", type=int, default=1, help="sequences (default %(default)s)")
    parser.add_argument("--heads", type=int, default=9, help="query heads (default %(default)s)")
    parser.add_argument("--kv-heads", type=int, default=3, help="key and value heads (default %(default)s)")
    parser.add_argument("--head-dim", type=int, default=64, help="size of a head (default %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--backend", default="auto", help="what computes the variants that offer a choice")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each (default %(default)s)")
    parser.add_argument(
        "--activations",
        default="random",
        metavar="random|MODEL",
        help="random numbers, or a model's own on --text (heads, head size and batch are then the model's)",
    )
    parser.add_argument("--text", help="what the model of --activations reads (default persuasion)")
    parser.add_argument("--phase", default="prefill", choices=("prefill", "decode", "both"), help="default prefill")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All rows, with the environment they were measured in and the hash of the kernels' sources."""
    variants = _variants(args.variants, args.set)
    lengths = _numbers(args.lengths)
    for name in ("batch", "heads", "kv_heads", "head_dim", "repeats"):
        if getattr(args, name) < 1:
            raise InvalidInput(f"--{name.replace('_', '-')} is {getattr(args, name)}.", "It can be 1 or more.")
    if args.heads % args.kv_heads:
        raise InvalidInput(
            f"{args.heads} query heads cannot share {args.kv_heads} KV heads.", "Use a multiple of --kv-heads."
        )
    text = None
    if args.text is not None:
        from focus_core.assets import load_text

        text = load_text(args.text).text

    from focus_core.benchmark.attention import bench
    from focus_core.evaluation.environment import environment
    from focus_core.evaluation.sources import kernel_sources, source_hash
    from focus_core.models.loading import device_of

    device = device_of(args.device)
    phases = ("prefill", "decode") if args.phase == "both" else (args.phase,)
    draw = bar()
    found: list[dict[str, Any]] = []
    for at, phase in enumerate(phases):
        found += bench(
            variants,
            lengths,
            batch=args.batch,
            heads=args.heads,
            kv_heads=args.kv_heads,
            head_dim=args.head_dim,
            dtype=args.dtype or ("float32" if device == "cpu" else "bfloat16"),
            device=device,
            backend=args.backend,
            repeats=args.repeats,
            activations=args.activations,
            text=text,
            phase=phase,
            progress=lambda fraction, message, at=at: draw((at + fraction) / len(phases), message),
        )
    draw(1.0, "Done")
    sources = kernel_sources()
    code = {"sources": sources, "source_hash": source_hash(sources)}
    return {"rows": found, "environment": environment(device), **code}


def table(document: dict[str, Any]) -> str:
    """The ratios first, then what they were measured against."""
    columns = ("variant", "length", "phase", "backend", "ms", "select_ms", "baseline", "baseline_ms", "speedup")
    columns += ("speedup_p10", "speedup_p90", "kept_pairs", "pair_limit", "peak_mb", "max_error")
    body = [[_unit(name, row[name]) for name in columns] for row in document["rows"]]
    lines = [rows(columns, body)]
    losing = [row for row in document["rows"] if row["variant"] != "dense" and row["speedup"] < 1]
    lines += [f"{row['variant']} is slower than {row['baseline']} at {row['length']:,} tokens." for row in losing]
    return "\n".join([*lines, f"Measured on {document['environment']['device']}."])


def _unit(name: str, value: Any) -> Any:
    """A ratio with its x and a share with its percent sign; what the column's name gives the unit of, as it is."""
    if value is None or name not in _RATIOS + _SHARES:
        return value
    return f"{value:.3g}x" if name in _RATIOS else f"{100 * value:.3g} %"


def _variants(names: str, given: list[str]) -> list[Any]:
    from focus_core.variants import make

    chosen: dict[str, dict[str, str]] = {name.strip(): {} for name in names.split(",") if name.strip()}
    if not chosen:
        raise InvalidInput("--variants names none.", "Write names with commas between.")
    for field, value in settings(given, _FORM).items():
        name, dot, setting = field.partition(".")
        if not dot or not setting:
            raise InvalidInput(f"{field!r} names no variant.", f"Write {_FORM}.")
        if name not in chosen:
            raise InvalidInput(f"--set {field} is for a variant that is not timed.", f"Timed: {', '.join(chosen)}.")
        chosen[name][setting] = value
    return [make(name, config) for name, config in chosen.items()]


def _numbers(given: str) -> list[int]:
    try:
        found = [int(part) for part in given.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InvalidInput(f"--lengths is {given!r}.", "Write numbers of tokens with commas between, like 1024,4096.")
    return found
