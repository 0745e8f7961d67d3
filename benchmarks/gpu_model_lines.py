"""The models and the attentions that ``benchmarks.gpu_models`` runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from focus_core import assets, compat
from focus_core.adapter import load_adapter
from focus_core.benchmark.prefill import Stopwatch, watched
from focus_core.errors import FocusError
from focus_core.kernels.block_sparse import block_sparse_attention
from focus_core.models.loading import load_model
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.routing.sets import random_groups
from focus_core.variants import make
from focus_core.variants.base import Prepared
from focus_core.variants.focus import Focus

NAME = "focus_lab_dense_kernel"
WINDOW, SINKS, GROUPS = 128, 4, 16
SOURCES = (
    "focus_core/kernels/focus",
    "focus_core/kernels/focus/triton",
    "focus_core/variants",
    "focus_core/retrofit.py",
)
Attention = Callable[[Any, Any, Any, float], Any]


@dataclass(frozen=True, eq=False)
class Line:
    """One attention of a model: dense by one kernel, or a variant."""

    name: str
    kernels: tuple[str, str] = ("", "")
    """Dense alone: the kernel that computes the prefill, and the one that decodes."""
    variant: Any = None
    adapter: Any = None
    about: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def inside(self, model: Any, watch: Stopwatch, recorder: Any = None) -> Iterator[None]:
        """The model with this attention, timed."""
        if self.variant is None:
            with dense_by(model, *self.kernels, watch):
                yield
        else:
            with retrofit(model, watched(self.variant, watch), self.adapter, recorder):
                yield


@dataclass
class Subject:
    """A model, what it reads, and its lines.

    ``ids`` (1, N) holds the longest length and what is decoded after it; ``stretch`` prepares the model for a length
    and says how. ``reads`` says whether pairs are counted on what the model reads, or on the groups that were drawn.
    """

    name: str
    model: Any
    ids: Any
    lines: list[Line]
    about: dict[str, Any]
    stretch: Callable[[Any, int], str]
    reads: bool

    @property
    def shape(self) -> dict[str, Any]:
        """Sizes of the model, and the type of its numbers, as rows name them."""
        config = self.model.config
        heads, dim = config.num_attention_heads, getattr(config, "head_dim", None)
        return {
            "layers": config.num_hidden_layers,
            "heads": heads,
            "kv": config.num_key_value_heads,
            "dim": dim or config.hidden_size // heads,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }


def by_torch(kernel: SDPBackend | None) -> Attention:
    """Dense attention by one of torch's kernels; by the one that torch takes where none is named."""

    def attend(q: Any, k: Any, v: Any, scale: float) -> Any:
        with contextlib.nullcontext() if kernel is None else sdpa_kernel(kernel):
            causal = q.shape[2] > 1
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)

    return attend


def by_flash_attn_4(q: Any, k: Any, v: Any, scale: float) -> Any:
    """Dense attention by flash-attn-4."""
    from flash_attn.cute import flash_attn_func

    out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=scale, causal=q.shape[2] > 1)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


KERNELS: dict[str, Attention] = {
    "torch": by_torch(None),
    "math": by_torch(SDPBackend.MATH),
    "cudnn": by_torch(SDPBackend.CUDNN_ATTENTION),
    "fa2": by_torch(SDPBackend.FLASH_ATTENTION),
    "fa4": by_flash_attn_4,
}


@contextlib.contextmanager
def dense_by(model: Any, prefill: str, decode: str, watch: Stopwatch) -> Iterator[None]:
    """The model as it is, with one dense kernel, without a mask and without any hook."""
    timed = watch.wrap(lambda q, k, v, scale: KERNELS[prefill if q.shape[2] > 1 else decode](q, k, v, scale))

    def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        return timed(query, key, value, scale).transpose(1, 2).contiguous(), None

    saved = compat.implementations(model)
    compat.register(NAME, attention, lambda *args, **kwargs: None)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        compat.restore(saved)


def drawn(routers: int, tokens: int, looks: int, device: str) -> Focus:
    """Focus whose router computes as it would, and whose groups are then replaced by balanced random ones.

    The router of a model with random weights has never been balanced; what a balanced one costs is what is asked.
    """
    positions = torch.arange(tokens, device=device)[None]

    def table(seed: int, k: int) -> Any:
        return torch.stack([random_groups(positions, 0, r, GROUPS, k, seed) for r in range(routers)], 1)

    keys, queries = table(0, 1), table(1, looks)

    class Drawn(Focus):
        def prepare(self, hidden, layer, positions, adapter, first_key):
            super().prepare(hidden, layer, positions, adapter, first_key)
            return self.sets(positions)

        def sets(self, positions):
            at = positions.clamp_min(0)
            return Prepared(*(table[0][:, at].transpose(0, 1) for table in (keys, queries)))

    return Drawn(GROUPS, looks, 1, WINDOW, SINKS)


def smollm2(name: str, lengths: list[int], device: str, kernels: tuple[str, str]) -> Subject:
    """SmolLM2 with its own weights and its shipped router, on two novels one after the other."""
    loaded = load_model(name, device=device, dtype="bfloat16" if device == "cuda" else "float32")
    adapter = load_adapter(assets.adapters()["smollm2-directed-k16"]["path"], loaded.model)
    said = "the shipped router smollm2-directed-k16"
    lines = [focus_line(Focus(GROUPS, looks, 1, WINDOW, SINKS), adapter, said) for looks in (1, 4)]
    if device == "cpu" or has_block_kernels(device):
        lines.append(xattention_line())
    text = " ".join(assets.load_text(name).text for name in ("persuasion", "emma"))
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False, return_tensors="pt")["input_ids"]
    return Subject(
        "SmolLM2-135M",
        loaded.model,
        ids[:, : max(lengths) + 64].to(device),
        [dense_line(kernels), *lines],
        {
            "weights": "its own",
            "text": "persuasion, then emma",
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
        },
        stretched,
        reads=True,
    )


def has_block_kernels(device: str) -> bool:
    """Whether kept blocks are computed by a kernel of this device, rather than by masking every pair."""
    x = torch.zeros(1, 1, 128, 64, device=device, dtype=torch.bfloat16)
    try:
        block_sparse_attention(x, x, x, torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device), backend="triton")
    except FocusError:
        return False
    return True


def stretched(model: Any, tokens: int) -> str:
    """Scale the rotary positions by YaRN, so that a model reads more tokens than it was trained on."""
    config, own = model.config, model.config.rope_parameters
    trained = own.get("original_max_position_embeddings", config.max_position_embeddings)
    if tokens <= trained:
        return "as trained"
    factor = -(-tokens // trained)
    config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": own["rope_theta"],
        "factor": float(factor),
        "original_max_position_embeddings": trained,
    }
    config.max_position_embeddings = trained * factor
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(model.device)
    return f"trained on {trained:,}, scaled {factor}x by YaRN"


def llama_shape(
    lengths: list[int], device: str, kernels: tuple[str, str], sizes: dict[str, int] | None = None
) -> Subject:
    """Random weights in Llama-3-8B's shape on random tokens: only times are asked of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    own = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    own |= {"num_key_value_heads": 8, "vocab_size": 128256}
    config = LlamaConfig(
        **(own | (sizes or {})),
        max_position_embeddings=max(lengths) + 64,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=False,
    )
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    usual = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(usual)
    routers = config.num_key_value_heads
    shape = RouterConfig(config.num_hidden_layers, config.hidden_size, GROUPS, routers=routers)
    router = Router(shape).to(device).requires_grad_(False)
    said = "an untrained router is computed, then balanced random groups stand for its own"
    lines = []
    for looks in (1, 4):
        lines.append(focus_line(drawn(routers, max(lengths) + 64, looks, device), router, said))
    ids = torch.randint(config.vocab_size, (1, max(lengths) + 64), device=device)
    return Subject(
        "Llama-3-8B's shape",
        model,
        ids,
        [dense_line(kernels), *lines],
        {"weights": "random", "text": "random tokens"},
        lambda model, tokens: "as configured",
        reads=False,
    )


def dense_line(kernels: tuple[str, str]) -> Line:
    """The model as it is, by two kernels."""
    return Line("dense", kernels=kernels)


def xattention_line() -> Line:
    """A line of XAttention."""
    settings = {"threshold": 0.9, "stride": 16}
    return Line("XAttention stride 16", variant=make("xattention", settings), about=settings)


def focus_line(variant: Focus, adapter: Any, routing: str) -> Line:
    """A line of Focus."""
    about = {"groups": GROUPS, "looks": variant.query_topk, "window": WINDOW, "sinks": SINKS, "routing": routing}
    return Line(f"Focus K={GROUPS} q{variant.query_topk}k1", variant=variant, adapter=adapter, about=about)
