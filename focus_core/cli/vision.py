"""``vision``: a vision transformer whose attention is a variant; trained, tested, looked at, listed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from focus_core.cli.output import adapter_folder, bar, pairs, rows, stop_request
from focus_core.errors import InvalidInput
from focus_core.vision.config import (
    BASES,
    PRESETS,
    PROJECTIONS,
    SCOPES,
    AttentionConfig,
    ViTConfig,
    operator_count,
    parameter_count,
)

if TYPE_CHECKING:
    from focus_core.vision.models import VisionModelInfo

SUMMARY = "a vision transformer with softmax, KArAt or XAttention: train, eval, look, table"
_BATCH = 250


def configure(parser: argparse.ArgumentParser) -> None:
    """See the README."""
    parser.add_argument("action", choices=("train", "eval", "look", "table"), help="what to do")
    parser.add_argument("--model", help="a shipped vision model (eval, look)")
    parser.add_argument("--image", metavar="FILE|N", help="a picture, or the number of a shipped test image (look)")
    parser.add_argument("--size", choices=sorted(PRESETS), default="digits", help="shape to train (default digits)")
    parser.add_argument("--attention", choices=("softmax", "karat", "xattention"), default="softmax")
    parser.add_argument("--basis", choices=BASES, default="fourier")
    parser.add_argument("--grid", type=int, default=3, help="G (default 3)")
    parser.add_argument("--rank", default="12", help="r, or full (default 12)")
    parser.add_argument("--scope", choices=SCOPES, default="block")
    parser.add_argument("--projection", choices=PROJECTIONS, default="none", help="onto the simplex")
    parser.add_argument("--threshold", type=float, default=0.9, help="XAttention's (eval, look)")
    parser.add_argument("--warm-up", type=int, default=0, help="first layers that stay dense under XAttention")
    parser.add_argument("--data", metavar="DIR", help="Fashion-MNIST's files; default where Debian puts them")
    parser.add_argument("--epochs", type=int, help="of training")
    parser.add_argument("--limit", type=int, help="take only the first N training images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", metavar="DIR", help="folder of the trained model (train)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """One action's document."""
    return {"train": _train, "eval": _eval, "look": _look, "table": _table}[args.action](args)


def table(document: dict[str, Any]) -> str:
    """The document for a person."""
    if "models" in document:
        shapes = rows(
            ("shape", "attention", "parameters", "of operators"),
            [(r["shape"], r["attention"], r["parameters"], r["operator_parameters"]) for r in document["shapes"]],
        )
        models = rows(
            ("model", "title", "data", "accuracy", "parameters"),
            [(m["name"], m["title"], m["data"], m["accuracy"], m["parameters"]) for m in document["models"]],
        )
        return f"{models}\n\n{shapes}"
    return pairs([(k.replace("_", " "), v) for k, v in document.items() if not isinstance(v, (dict, list))])


def _attention(args: argparse.Namespace) -> AttentionConfig:
    try:
        rank = None if args.rank == "full" else int(args.rank)
    except ValueError:
        raise InvalidInput(f"--rank is {args.rank!r}.", "It can be a number, or full.") from None
    return AttentionConfig(
        args.attention,
        args.basis,
        args.grid,
        rank,
        args.scope,
        args.projection,
        threshold=args.threshold,
        warm_up=args.warm_up,
    )


def _lens(args: argparse.Namespace, info: VisionModelInfo) -> AttentionConfig | None:
    """What a trained model is tested or looked at under; None for its own attention."""
    if args.attention == "karat" and info.config.attention.kind != "karat":
        raise InvalidInput(f"{info.name} was not trained with KArAt, and cannot change to it.", "Name a KArAt model.")
    return _attention(args) if args.attention == "xattention" else None


def _train(args: argparse.Namespace) -> dict[str, Any]:
    import dataclasses

    from focus_core.models.loading import device_of
    from focus_core.vision.data import digits, fashion_mnist
    from focus_core.vision.models import save_vision_model
    from focus_core.vision.training import DIGITS_RECIPE, Images, Recipe, train

    if not args.out:
        raise InvalidInput("train needs --out, the folder of the model.")
    if args.size.startswith("vit-"):
        raise InvalidInput(f"{args.size} is there to be counted.", "Train digits, tiny, small or long.")
    if not 0 <= args.seed < 2**32:
        raise InvalidInput(f"--seed is {args.seed}.", "It can be 0 to 4294967295.")
    if args.limit is not None and args.limit < 1:
        raise InvalidInput(f"--limit is {args.limit}.", "It can be 1 or more.")
    device, out = device_of(args.device), adapter_folder(args.out, "the model")
    small = args.size == "digits"
    held = digits() if small else (*fashion_mnist("train", args.data), *fashion_mnist("test", args.data))
    images = Images(*held)
    if args.limit is not None:
        images = dataclasses.replace(
            images, train=images.train[: args.limit], train_labels=images.train_labels[: args.limit]
        )
    recipe = dataclasses.replace(DIGITS_RECIPE if small else Recipe(), seed=args.seed)
    if args.epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=args.epochs)
    if recipe.epochs < 1:
        raise InvalidInput(f"--epochs is {recipe.epochs}.", "It can be 1 or more.")
    if len(images.train) < 2 * recipe.validation:
        recipe = dataclasses.replace(
            recipe, validation=len(images.train) // 5, batch=min(recipe.batch, max(len(images.train) // 4, 1))
        )
    config = dataclasses.replace(PRESETS[args.size], attention=_attention(args))
    with stop_request() as cancel:
        model, document = train(config, images, recipe, out / "training.ckpt", device, bar(), cancel)
    save_vision_model(
        model,
        out,
        title=f"{args.size}, {args.attention}",
        data="digits" if small else "fashion",
        seed=args.seed,
        accuracy=document["accuracy"],
        epochs=recipe.epochs,
    )
    (out / "training.ckpt").unlink(missing_ok=True)
    return {"out": str(out), **document}


def _named(args: argparse.Namespace) -> str:
    from focus_core.vision.models import vision_models

    if not args.model:
        names = ", ".join(model.name for model in vision_models())
        raise InvalidInput(f"{args.action} needs --model.", f"It can be {names}.")
    return args.model


def _eval(args: argparse.Namespace) -> dict[str, Any]:
    import statistics

    import torch

    from focus_core.vision.data import digits, fashion_mnist, shipped_images
    from focus_core.vision.models import load_vision_model, vision_models
    from focus_core.vision.records import maps_record
    from focus_core.vision.training import accuracy

    model = load_vision_model(_named(args))
    info = next(m for m in vision_models() if m.name == args.model)
    if info.data == "digits":
        _, _, images, labels = digits()
    elif args.data:
        images, labels = fashion_mnist("test", args.data)
    else:
        images, labels, _ = shipped_images()
    x, y = torch.tensor(images), torch.tensor(labels)
    counts: list[float] = []
    lens = _lens(args, info)
    how = {"attention": lens, "counts": counts} if lens else {}
    right = accuracy(model, x, y, _BATCH, **how)
    sizes = [len(part) for part in x.split(_BATCH) for _ in range(info.config.depth)]
    return {
        "model": args.model,
        "images": len(x),
        "accuracy": right,
        "recorded_accuracy": info.accuracy,
        "kept_pairs": statistics.fmean(counts, weights=sizes) if counts else 1.0,
        "maps": maps_record(model, x[:400]),
    }


def _look(args: argparse.Namespace) -> dict[str, Any]:
    from focus_core.vision.data import DIGITS, NAMES, digits, normalise, prepare_image, shipped_images
    from focus_core.vision.look import look
    from focus_core.vision.models import load_vision_model, vision_models

    model = load_vision_model(_named(args))
    info = next(m for m in vision_models() if m.name == args.model)
    names = DIGITS if info.data == "digits" else NAMES
    truth = None
    given = args.image or "0"
    if given.isdecimal():
        stored, labels = digits()[2:] if info.data == "digits" else shipped_images()[:2]
        if int(given) >= len(stored):
            raise InvalidInput(f"There is no image {given}.", f"There are 0 to {len(stored) - 1}.")
        image, truth = normalise(stored[int(given)][None]), names[labels[int(given)]]
        if image.shape[-1] != model.config.image:
            raise InvalidInput(f"The model takes images of {model.config.image} pixels, not {image.shape[-1]}.")
    else:
        from PIL import Image

        try:
            with Image.open(given) as picture:
                image = prepare_image(picture, model.config.image)
        except FileNotFoundError:
            raise InvalidInput(f"There is no picture {given}.") from None
        except InvalidInput:
            raise
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            raise InvalidInput(f"{given} is no picture that can be read.", "Give a PNG or JPEG.") from None
    seen = look(model, image, _lens(args, info))
    best = int(seen.probabilities.argmax())
    return {
        "model": args.model,
        "prediction": names[best],
        "confidence": float(seen.probabilities[best]),
        "truth": truth,
        "object_mass": float(seen.object_mass.mean()),
        "rollout_mass": seen.rollout_mass,
        "uniform_mass": seen.uniform_mass,
        "negative_share": float(seen.negative_share.mean()),
        "kept_pairs": float(seen.kept.mean()),
        "probabilities": dict(zip(names, seen.probabilities.tolist(), strict=True)),
    }


def _table(args: argparse.Namespace) -> dict[str, Any]:
    from focus_core.vision.models import vision_models

    arms: dict[str, dict[str, Any]] = {
        "softmax": {},
        "G1B": {"kind": "karat", "grid": 1},
        "G3B": {"kind": "karat"},
        "G3U": {"kind": "karat", "scope": "universal"},
    }
    configs: list[tuple[str, str, ViTConfig]] = [
        (name, arm, shape.with_attention(**changes)) for name, shape in PRESETS.items() for arm, changes in arms.items()
    ]
    return {
        "models": [
            {"name": m.name, "title": m.title, "data": m.data, "seed": m.seed, "accuracy": m.accuracy}
            | {"parameters": parameter_count(m.config)}
            for m in vision_models()
        ],
        "shapes": [
            {
                "shape": name,
                "attention": arm,
                "parameters": parameter_count(c),
                "operator_parameters": operator_count(c),
            }
            for name, arm, c in configs
        ],
    }
