"""Focus's attention on a Hopper GPU with flash-attn-4 for the groups. Forward only.

Where a token looks into the one group that it is in, the tokens are sorted by group (``sort``, ``scatter``),
flash-attn-4 attends causally within each group, and the window pass in time order leaves out the pairs that share a
group and merges the two. Where queries look into other groups, flash-attn-4 serves tiles of queries, and Triton the
rest (``tiled``).

Importing this package needs neither Triton nor flash-attn-4; running it needs both.
"""

from focus_core.errors import NotAvailable
from focus_core.kernels.focus.flash.applies import flash_refusal, package_refusal, same_sets
from focus_core.kernels.focus.triton.applies import machine_refusal

__all__ = ["flash_refusal", "focus_flash", "same_sets"]


def focus_flash(q, k, v, query_bits, key_bits, **settings):
    """Focus's attention with flash-attn-4 in the groups; arguments as in ``focus_attention``, already checked.

    Raises:
        NotAvailable: on a machine that cannot run it.
        Unsupported: for a call that it does not serve.
    """
    reason = machine_refusal(q.device) or package_refusal(q.device)
    if reason is not None:
        raise NotAvailable(reason, "backend='auto' works.")
    from focus_core.kernels.focus.flash.run import focus_flash as run

    return run(q, k, v, query_bits, key_bits, **settings)
