"""The tasks as small units of work, each of which is done once and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from focus_core.assets import DATA, load_text
from focus_core.errors import InvalidInput
from focus_core.evaluation.abilities import chat, needle
from focus_core.evaluation.abilities.grammar import PAIRS, PHENOMENA, minimal_pairs

TASKS = ("texts", "pairs", "needle", "instructions", "refusal")
BARE, BEHIND = "bare", "behind a passage"
PASSAGE, HAYSTACK = "brown fiction", "brown"
"""Shipped texts that nothing here is trained on: of the passage, and of what needles are hidden in."""
_EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments" / "texts"
TEXTS = (
    ("persuasion", "persuasion", "domain"),
    ("modern fiction", "brown fiction", "general"),
    ("news", "brown news", "general"),
    ("code", str(_EXPERIMENTS / "python_code.txt"), "general"),
    ("technical prose", str(_EXPERIMENTS / "python_reference.txt"), "general"),
)
"""(name, text, whether adapters that ship learned from its like)."""


_TOGETHER = 8
"""Windows that a GPU reads at once, which costs the launches of one."""
_PROMPTS = 16
"""Prompts that are answered together."""
_LETTERS = 12
"""Characters that hold a token of any text at hand: no more of a text is read than is asked for."""


@dataclass(frozen=True)
class Sizes:
    """How much is asked.

    Attributes:
        pairs: of each phenomenon.
        passage: tokens of the passage before a pair or a prompt.
        lengths: tokens of the texts that hold needles.
        haystacks: such texts of each length, with a needle at every depth.
        reply: longest reply.
        context: tokens of a window of ``texts``.
        windows: windows of each of ``texts``.
        seed: of pairs and needles.
    """

    pairs: int = PAIRS
    passage: int = 256
    lengths: tuple[int, ...] = needle.LENGTHS
    haystacks: int = needle.HAYSTACKS
    reply: int = chat.TOKENS
    context: int = 1024
    windows: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges; a list, as a file has it, becomes a tuple."""
        object.__setattr__(self, "lengths", tuple(dict.fromkeys(self.lengths)))
        least = {"pairs": 1, "passage": 1, "haystacks": 1, "reply": 1, "context": 2, "windows": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InvalidInput(f"{name} is {getattr(self, name)}.", f"It can be {low} or more.")
        if not self.lengths:
            raise InvalidInput("No length of a text with needles is given.", "Give one, such as 1024.")
        if min(self.lengths) < needle.SHORTEST:
            raise InvalidInput(
                f"A text with needles of {min(self.lengths)} tokens is asked for.", f"Take {needle.SHORTEST} or more."
            )


@dataclass
class Work:
    """What the units of one run share; made once a run.

    Attributes:
        loaded: the model, retrofitted while a unit runs.
        variant: the variant.
        adapter: its trained module, or None.
        sizes: how much is asked.
        cancel: asked within long units.
    """

    loaded: Any
    variant: Any
    adapter: Any
    sizes: Sizes
    cancel: Callable[[], bool] | None = None
    _read: dict[str, Any] = field(default_factory=dict)

    def ids(self, words: str) -> Any:
        """(N,) token ids of a text, no special ones added."""
        import torch

        return torch.tensor(self.loaded.tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"])

    @cached_property
    def passage(self) -> str:
        """The passage that stands before a pair or a prompt."""
        count = self.sizes.passage
        ids = self.ids(load_text(PASSAGE).text[: count * _LETTERS])[:count]
        return str(self.loaded.tokenizer.decode(ids)).strip()

    @cached_property
    def haystack(self) -> list[int]:
        """Token ids of the text that needles are hidden in."""
        count = max(self.sizes.lengths) * (self.sizes.haystacks + 1)
        return list(self.ids(load_text(HAYSTACK).text[: count * _LETTERS]).tolist())

    def read(self, words: str) -> Any:
        """A text that the model has read; read once for all units."""
        from focus_core.evaluation.abilities.continuations import Read

        if words not in self._read:
            self._read[words] = Read(self.loaded.model, self.ids(words))
        return self._read[words]


@dataclass(frozen=True)
class Unit:
    """One piece of a task.

    Attributes:
        task: one of ``TASKS``.
        part: the phenomenon, the text, the kind of prompt or the number of the haystack.
        where: ``BARE``, ``BEHIND`` or tokens of the text.
        tokens: about how many are read, for the cost.
    """

    task: str
    part: str
    where: str
    tokens: int

    @property
    def name(self) -> str:
        """Names it in a file of partial results."""
        return f"{self.task} | {self.part} | {self.where}"


def units(tasks: Sequence[str], sizes: Sizes) -> list[Unit]:
    """Every unit of the tasks, in the order in which they run.

    Raises:
        InvalidInput: there is no such task.
    """
    if unknown := [task for task in tasks if task not in TASKS]:
        raise InvalidInput(f"There is no task {unknown[0]!r}.", f"There are {', '.join(TASKS)}.")
    return [unit for task in TASKS if task in tasks for unit in _UNITS[task](sizes)]


def reads(work: Work, task: str) -> tuple[int, str]:
    """The most tokens that a model reads at once in a task, and the size that makes them fewer."""
    sizes = work.sizes
    if task == "needle":
        answers = [work.ids(f" {answer}") for answer in needle.ANSWERS]
        return max(sizes.lengths) + max(map(len, answers)) - 1, "lengths"
    if task == "pairs":
        pairs = [pair for name in PHENOMENA for pair in minimal_pairs(name, sizes.pairs, sizes.seed)]
        longest = max(len(work.ids(sentence)) for pair in pairs for sentence in pair)
        return len(work.ids(f"{work.passage}\n\n")) + longest - 1, "passage"
    if task in ("instructions", "refusal"):
        kinds = ("instructions",) if task == "instructions" else ("harmful", "harmless")
        asked = [chat.behind(work.passage, one["prompt"]) for kind in kinds for one in chat.prompts()[kind]]
        tokenizer = work.loaded.tokenizer
        return max(len(chat.prompt_ids(tokenizer, one)) for one in asked) + sizes.reply - 1, "passage"
    # Windows of texts are cut to what the model reads.
    return 0, "context"


def perform(work: Work, unit: Unit) -> dict[str, Any]:
    """Do one unit; the model must be retrofitted, but for ``texts``, which puts the variant in by itself."""
    return _DO[unit.task](work, unit)


def _texts(sizes: Sizes) -> Iterator[Unit]:
    for name, _, role in TEXTS:
        yield Unit("texts", name, role, sizes.windows * sizes.context)


def _do_texts(work: Work, unit: Unit) -> dict[str, Any]:
    from focus_core.evaluation.perplexity import evaluate

    source = next(text for name, text, _ in TEXTS if name == unit.part)
    count = work.sizes.context * work.sizes.windows
    found = evaluate(
        work.loaded,
        work.variant,
        work.adapter,
        load_text(source).text[: count * _LETTERS],
        context=min(work.sizes.context, work.loaded.facts.context),
        windows=work.sizes.windows,
        batch=_TOGETHER if work.loaded.model.device.type == "cuda" else 1,
        probes=False,
        cancel=work.cancel,
    )
    kept = ("ppl", "dense_ppl", "nll_diff", "nll_se", "tokens", "kept_pairs", "windows")
    return {key: found[key] for key in kept} | {"longest": found["window_tokens"]}


def _pairs(sizes: Sizes) -> Iterator[Unit]:
    for where, before in ((BARE, 0), (BEHIND, sizes.passage)):
        for phenomenon in PHENOMENA:
            yield Unit("pairs", phenomenon, where, before + 24 * sizes.pairs)


def _do_pairs(work: Work, unit: Unit) -> dict[str, Any]:
    pairs = minimal_pairs(unit.part, work.sizes.pairs, work.sizes.seed)
    # What a bare sentence stands behind is a line's beginning: its first word has a probability as well.
    before = "\n" if unit.where == BARE else f"{work.passage}\n\n"
    ids = [work.ids(sentence) for pair in pairs for sentence in pair]
    scored = [one.logp for one in work.read(before).score(ids)]
    margins = [good - bad for good, bad in zip(scored[::2], scored[1::2], strict=True)]
    longest = len(work.ids(before)) + max(map(len, ids))
    return {"margins": [round(margin, 3) for margin in margins], "longest": longest}


def _needle(sizes: Sizes) -> Iterator[Unit]:
    for length in sorted(sizes.lengths):
        for number in range(sizes.haystacks):
            yield Unit("needle", str(number), str(length), length)


def _do_needle(work: Work, unit: Unit) -> dict[str, Any]:
    tokenizer, length = work.loaded.tokenizer, int(unit.where)
    stack = needle.haystack(tokenizer, work.haystack, length, int(unit.part), work.sizes.seed)
    asked = [
        {key: round(value, 3) if isinstance(value, float) else value for key, value in one.items()}
        for one in needle.ask(work.loaded.model, stack)
    ]
    return {"asked": asked, "longest": length, "candidates": len(stack.candidates)}


def _chat(task: str, kinds: tuple[str, ...]) -> Callable[[Sizes], Iterator[Unit]]:
    def found(sizes: Sizes) -> Iterator[Unit]:
        for where, before in ((BARE, 0), (BEHIND, sizes.passage)):
            for kind in kinds:
                count = len(chat.prompts()[kind])
                # A token that is decoded takes as long as about three that are read together.
                yield Unit(task, kind, where, count * (before + 50 + 3 * sizes.reply))

    return found


def _do_chat(work: Work, unit: Unit) -> dict[str, Any]:
    asked = chat.prompts()[unit.part]
    passage = "" if unit.where == BARE else work.passage
    prompts = [chat.behind(passage, one["prompt"]) for one in asked]
    said = chat.replies(work.loaded, prompts, tokens=work.sizes.reply, batch=_PROMPTS, cancel=work.cancel)
    longest = max(len(chat.prompt_ids(work.loaded.tokenizer, prompt)) for prompt in prompts) + work.sizes.reply
    return {"replies": chat.judged(unit.part, asked, said), "longest": longest}


_UNITS: dict[str, Callable[[Sizes], Iterator[Unit]]] = {
    "texts": _texts,
    "pairs": _pairs,
    "needle": _needle,
    "instructions": _chat("instructions", ("instructions",)),
    "refusal": _chat("refusal", ("harmful", "harmless")),
}
_DO: dict[str, Callable[[Work, Unit], dict[str, Any]]] = {
    "texts": _do_texts,
    "pairs": _do_pairs,
    "needle": _do_needle,
    "instructions": _do_chat,
    "refusal": _do_chat,
}


def items_hash(sizes: Sizes) -> str:
    """What was asked, as a hash: results are compared only where it is the same.

    Windows of texts are left out: every result has dense beside itself on the same ones.
    """
    import hashlib
    import json

    asked = [[str(pair) for pair in minimal_pairs(name, sizes.pairs, sizes.seed)] for name in PHENOMENA]
    shape = [sizes.passage, list(sizes.lengths), sizes.haystacks, sizes.reply]
    source = (DATA / "probes" / "chat.json").read_text("utf-8")
    return hashlib.sha256(json.dumps([asked, shape, source]).encode()).hexdigest()[:16]
