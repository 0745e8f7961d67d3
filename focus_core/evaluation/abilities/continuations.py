"""Log-probabilities of many continuations of one text, which is read once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focus_core.errors import InvalidInput

if TYPE_CHECKING:
    import torch

_LOGITS = 1 << 25
_CACHED = 1 << 28
"""Numbers of logits, and bytes of cached keys and values, that one batch may hold on a CPU."""
_CARD = 8
"""How many times that on a GPU, where every forward costs its launches, however short."""


@dataclass(frozen=True)
class Continued:
    """What a model says of one continuation.

    Attributes:
        logp: natural logarithm of its probability behind the text, summed over its tokens.
        greedy: whether every token of it is the likeliest one at its place.
    """

    logp: float
    greedy: bool


class Read:
    """A text that a model has read: its cache, and what is expected next.

    Continuations run on copies of the cache, in batches of one length, so that nothing is padded: a padded row is not
    the same to every variant.
    """

    def __init__(self, model: Any, ids: torch.Tensor, cache: Any = None) -> None:
        """Read a text.

        Args:
            model: a transformers causal language model, retrofitted or not.
            ids: (N,) token ids, N >= 1.
            cache: of what was read before; it is written to.

        Raises:
            InvalidInput: an empty text.
        """
        import torch

        from focus_core import compat

        _check(ids)
        self.model = model
        with torch.no_grad():
            given = {} if cache is None else {compat.cache_keyword(model): cache}
            read = model(input_ids=ids.to(model.device)[None], use_cache=True, **given, **_last_logits(model))
        self._cache, self._next = compat.cache_of(read), read.logits[0, -1].float().log_softmax(-1)

    def then(self, ids: torch.Tensor) -> Read:
        """Read on; this text stays as it is."""
        return Read(self.model, ids, copy.deepcopy(self._cache))

    def score(self, continuations: Sequence[torch.Tensor]) -> list[Continued]:
        """Score continuations of the text.

        Args:
            continuations: (L,) ids of each, L >= 1.

        Returns:
            One result a continuation, in their order.

        Raises:
            InvalidInput: an empty continuation.
        """
        import torch

        best = int(self._next.argmax())
        found = []
        for one in continuations:
            _check(one)
            found.append(Continued(float(self._next[int(one[0])]), int(one[0]) == best))
        for length in sorted({len(one) for one in continuations} - {1}):
            places = [i for i, one in enumerate(continuations) if len(one) == length]
            rows = _rows(self.model, self._cache.get_seq_length() + length, length)
            for part in (places[i : i + rows] for i in range(0, len(places), rows)):
                with torch.no_grad():
                    logp, greedy = self._behind(torch.stack([continuations[i] for i in part]))
                for i, own, likeliest in zip(part, logp, greedy, strict=True):
                    found[i] = Continued(found[i].logp + own, found[i].greedy and likeliest)
        return found

    def score_behind(
        self, between: Sequence[torch.Tensor], continuations: Sequence[torch.Tensor]
    ) -> list[list[Continued]]:
        """Score continuations of the text with each of some texts between; those of one length run together.

        Args:
            between: (M,) ids of each, M >= 1.
            continuations: as of ``score``.
        """
        import torch

        if any(len(one) != 1 for one in continuations):
            return [self.then(ids).score(continuations) for ids in between]
        found: list[list[Continued]] = [[] for _ in between]
        for length in sorted({len(ids) for ids in between}):
            places = [i for i, ids in enumerate(between) if len(ids) == length]
            _check(between[places[0]])
            rows = _rows(self.model, self._cache.get_seq_length() + length, length)
            for part in (places[i : i + rows] for i in range(0, len(places), rows)):
                with torch.no_grad():
                    after = self._run(torch.stack([between[i] for i in part]), **_last_logits(self.model))[:, -1]
                logp, best = after.log_softmax(-1), after.argmax(-1).tolist()
                asked = torch.cat(list(continuations)).to(logp.device)
                for i, own, likeliest in zip(part, logp[:, asked].tolist(), best, strict=True):
                    pairs = zip(own, asked.tolist(), strict=True)
                    found[i] = [Continued(value, token == likeliest) for value, token in pairs]
        return found

    def _run(self, ids: torch.Tensor, **more: Any) -> torch.Tensor:
        """(B, N, V) fp32 logits of rows behind the text, each on a copy of its cache."""
        from focus_core import compat

        own = copy.deepcopy(self._cache)
        own.batch_repeat_interleave(len(ids))
        given = {compat.cache_keyword(self.model): own, **more}
        return self.model(input_ids=ids.to(self.model.device), use_cache=True, **given).logits.float()

    def _behind(self, ids: torch.Tensor) -> tuple[list[float], list[bool]]:
        """Of every row: log-probability of all its tokens but the first, and whether each was the likeliest."""
        logits = self._run(ids[:, :-1])
        goals = ids[:, 1:, None].to(logits.device)
        logp = logits.gather(-1, goals)[..., 0] - logits.logsumexp(-1)
        likeliest = (logits.argmax(-1) == goals[..., 0]).all(-1)
        return logp.double().sum(-1).tolist(), likeliest.tolist()


def _check(ids: torch.Tensor) -> None:
    if not len(ids):
        raise InvalidInput("A text and every continuation need at least one token.", "Give longer ones.")


def _last_logits(model: Any) -> dict[str, int]:
    asks = getattr(model, "_supports_logits_to_keep", None)
    return {"logits_to_keep": 1} if asks is not None and asks() else {}


def _rows(model: Any, tokens: int, length: int) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * heads * width * tokens * 4
    times = _CARD if model.device.type == "cuda" else 1
    return max(1, min(times * _LOGITS // (config.vocab_size * length), times * _CACHED // cached))
