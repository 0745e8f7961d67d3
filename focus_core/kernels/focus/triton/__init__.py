"""Focus's attention on a GPU, in Triton: only the kept work, no array of all pairs. Forward only.

Far pairs go through tiles of queries that look into one group (``group_pass``), whose keys lie sorted by group
(``plan``, ``gather``). Near pairs (window and sinks) are done in time order, and the same pass merges the two by
log-sum-exp (``near_pass``). A few new queries against a cache read the kept keys alone (``decode``).

Importing this package needs no Triton; running it does.
"""

from focus_core.errors import NotAvailable
from focus_core.kernels.focus.triton.applies import KEY_MEMBERS, machine_refusal, triton_refusal

__all__ = ["KEY_MEMBERS", "focus_triton", "machine_refusal", "triton_refusal"]


def focus_triton(q, k, v, query_bits, key_bits, **settings):
    """Focus's attention by Triton kernels; arguments as in ``focus_attention``, already checked.

    Raises:
        NotAvailable: on a machine that cannot run them.
        Unsupported: for a call that they do not serve.
    """
    reason = machine_refusal(q.device)
    if reason is not None:
        raise NotAvailable(reason, "backend='auto' works.")
    from focus_core.kernels.focus.triton.run import focus_triton as run

    return run(q, k, v, query_bits, key_bits, **settings)
