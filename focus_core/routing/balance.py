"""Keeping the groups equally used, by a bias that moves once an optimizer step, outside the forward pass.

Inside the forward pass, gradient checkpointing would move it twice. The load that counts is the hard one, of real
tokens: pads and sinks take no part. Loads are summed over processes and accumulation steps before the bias moves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from focus_core.routing.router import Router
from focus_core.routing.sets import members, top_groups

METHODS = ("bias", "sinkhorn", "loss", "none")
_SINKHORN_ITERATIONS = 10
_SINKHORN_TEMPERATURE = 0.05
_SINKHORN_MOMENTUM = 0.1
_SINKHORN_TOKENS = 4096


class LoadMeter:
    """Recorder that counts how many real tokens each group holds, and keeps logits where Sinkhorn needs them.

    Args:
        router: the router whose layers are counted.
        key_topk: groups a key joins when served.
        sinks: first real keys of each row that are not counted.
        keep_logits: keep a sample of each layer's key logits, for Sinkhorn duals.
        temperature: of the soft shares in the balance loss, for a meter that is asked for it; None keeps no loss.

    Attributes:
        summed: the sum of a tensor over the processes that share a batch; what was counted in the end is summed by who
            reads it.
        processes: how many share a batch.
    """

    def __init__(
        self,
        router: Router,
        key_topk: int,
        sinks: int,
        keep_logits: bool = False,
        temperature: float | None = None,
    ) -> None:
        self.router, self.key_topk, self.sinks, self.keep_logits = router, key_topk, sinks, keep_logits
        self.temperature = temperature
        self.summed: Callable[[torch.Tensor], torch.Tensor] = lambda own: own
        self.processes = 1
        self.reset()

    def reset(self) -> None:
        """Start counting again."""
        self.load = torch.zeros_like(self.router.bias)
        self.logits: dict[int, torch.Tensor] = {}
        self._losses: list[torch.Tensor] = []

    def record(self, call, variant) -> None:
        """Count one layer's call; native layers have no groups."""
        if call.sliding_window is not None:
            return
        with torch.set_grad_enabled(self.temperature is not None and torch.is_grad_enabled()):
            # What the call has lies where its layer does, and is the same router.
            router = self.router if call.hidden.device == self.load.device else call.adapter
            logits, _ = router.logits(call.layer, call.hidden)
            held, counted = self._count(call, logits.detach())
            if self.temperature is not None:
                self._losses.append(balance_loss(logits, held, counted, self.temperature, self.summed))

    def _count(self, call, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add to the load; the groups of counted tokens (B, R, N, K), and which tokens are counted (B, 1, N, 1)."""
        first = call.first_key if call.first_key is not None else torch.zeros(len(logits), device=logits.device)
        position = torch.arange(logits.shape[2], device=logits.device)[None] - first[:, None]
        counted = (position >= self.sinks)[:, None, :, None]
        held = members(top_groups(logits, self.key_topk), logits.shape[-1]) & counted
        self.load[call.layer] += held.sum((0, 2)).to(self.load.device)
        if self.keep_logits:
            tokens = len(logits) * logits.shape[2] * self.processes
            sample = logits.masked_fill(~counted, -torch.inf)[:, :, :: max(1, tokens // _SINKHORN_TOKENS)]
            sample = sample.transpose(0, 1).flatten(1, 2).to(self.load.device)
            self.logits[call.layer] = sample - self.router.bias[call.layer][:, None]
        return held, counted

    def take_loss(self) -> torch.Tensor | None:
        """The balance loss of what was recorded since the last time, mean over layers; None where none is kept."""
        losses, self._losses = self._losses, []
        return torch.stack([loss.to(self.load.device) for loss in losses]).mean() if losses else None

    def share(self) -> torch.Tensor:
        """(L, R, K) share of each group's load over its fair one: 1 is balanced, K is collapse."""
        total = self.load.sum(-1, keepdim=True)
        return torch.where(total > 0, self.load * self.load.shape[-1] / total.clamp_min(1), torch.ones_like(self.load))


def balance_loss(
    logits: torch.Tensor,
    held: torch.Tensor,
    counted: torch.Tensor,
    temperature: float,
    summed: Callable[[torch.Tensor], torch.Tensor] = lambda own: own,
) -> torch.Tensor:
    """The usual soft constraint (Switch Transformer): K sum_c f_c p_c, 1 where balanced and K where collapsed.

    f is the hard share, which has no gradient, and p the mean soft share, through which the gradient flows. Where
    the mean soft shares are even the loss is 1 whatever the hard ones are, as it is where all is balanced; 1 is not
    its least, since f and p may lean against each other (two groups, f = (.6, .4), p = (.4, .6): .96). So a loss of 1
    or less does not show that the hard load is even.

    Args:
        logits: (B, R, N, K), bias included.
        held: (B, R, N, K) bool, the served groups of counted tokens.
        counted: (B, 1, N, 1) bool, tokens that are neither pads nor sinks.
        temperature: of the soft shares.
        summed: the sum of a tensor over the processes that share the batch; the mean of their losses is then that of
            the whole batch.

    Returns:
        A scalar, mean over routers.
    """
    tokens = counted.sum().clamp_min(1)
    soft = torch.where(counted, (logits / temperature).softmax(-1), 0.0).sum((0, 2)) / tokens
    hard = summed(held.sum((0, 2)).to(soft))
    hard = hard / hard.sum(-1, keepdim=True).clamp_min(1)
    return logits.shape[-1] * (hard * soft).sum(-1).mean()


@torch.no_grad()
def move_bias(router: Router, meter: LoadMeter, step: float) -> None:
    """Push overfull groups down and others up by ``step`` (sign of the hard-load error; loss-free balancing)."""
    counted = meter.load.sum(-1, keepdim=True) > 0
    router.bias.sub_(torch.where(counted, step * torch.sign(meter.share() - 1), torch.zeros_like(router.bias)))
    _centre(router)


@torch.no_grad()
def move_duals(router: Router, meter: LoadMeter) -> None:
    """Move the bias towards the Sinkhorn duals that would balance this batch's logits (notes: potentials, C1)."""
    for layer, logits in meter.logits.items():
        scaled = logits / _SINKHORN_TEMPERATURE
        valid = torch.isfinite(scaled).all(-1, keepdim=True)
        dual = router.bias[layer][:, None] / _SINKHORN_TEMPERATURE
        target = torch.log(valid.sum(1, keepdim=True).float() / scaled.shape[-1])
        for _ in range(_SINKHORN_ITERATIONS):
            rows = torch.where(valid, (scaled + dual).log_softmax(-1) - dual, torch.full_like(scaled, -torch.inf))
            dual = target - rows.logsumexp(1, keepdim=True)
        wanted = dual[:, 0] * _SINKHORN_TEMPERATURE
        router.bias[layer].lerp_(wanted - wanted.mean(-1, keepdim=True), _SINKHORN_MOMENTUM)
    _centre(router)


def _centre(router: Router) -> None:
    """A constant on every group changes no choice; without it the bias cannot drift."""
    router.bias.sub_(router.bias.mean(-1, keepdim=True))
