"""The soft gates' attention on a GPU, in Triton, forward and backward: every causal pair, no array of all pairs.

A tile's gate is made from the memberships of its queries and keys where the tile is computed (``gate``). The forward
pass (``forward``) keeps the output and one number a query; the backward pass makes each tile again: once with its keys
held, for the gradients of keys, values and key memberships (``backward_keys``), and once with its queries held
(``backward_queries``). Pairs that the served mask drops take part: their gradient is what moves tokens between groups.

Importing this package needs no Triton; running it does.
"""

from focus_core.errors import NotAvailable, Unsupported
from focus_core.kernels.focus.triton.applies import machine_refusal
from focus_core.kernels.focus.triton_soft.applies import soft_refusal

__all__ = ["soft_refusal", "soft_triton"]


def soft_triton(q, k, v, query_membership, key_membership, **settings):
    """Attention under the log-agreement gate; arguments as in ``triton_soft.run.soft_triton``.

    Raises:
        NotAvailable: on a machine that cannot run it.
        Unsupported: for a call that it does not serve, with the reason.
    """
    reason = machine_refusal(q.device)
    if reason is not None:
        raise NotAvailable(reason, "backend='auto' works.")
    reason = soft_refusal(q, k, v, query_membership, key_membership)
    if reason is not None:
        raise Unsupported(reason, "backend='auto' works.")
    from focus_core.kernels.focus.triton_soft.run import soft_triton as run

    return run(q, k, v, query_membership, key_membership, **settings)
