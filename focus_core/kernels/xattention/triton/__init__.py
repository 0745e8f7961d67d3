"""XAttention's choice of blocks on a GPU, in Triton: no array of tile scores, and no waiting for the GPU.

One pass over the strided rows (``tiles``) leaves, for each row and block, the sum of its softmax's numerators with
their maximum; one program a row of blocks (``choose``) makes them shares and takes the fewest that hold the threshold.

Importing this package needs no Triton; running it does.
"""

from focus_core.errors import NotAvailable, Unsupported
from focus_core.kernels.xattention.triton.applies import scoring_refusal

__all__ = ["scoring_refusal", "triton_choice"]


def triton_choice(q, k, **settings):
    """Block scores, kept blocks, or both, by Triton kernels; see ``run.triton_choice``.

    Raises:
        NotAvailable: on a machine that cannot run them.
        Unsupported: for a call that they do not serve, with the reason.
    """
    from focus_core.kernels.focus.triton.applies import machine_refusal

    machine = machine_refusal(q.device)
    if machine is not None:
        raise NotAvailable(machine, "backend='auto' works.")
    reason = scoring_refusal(q, settings["block"], settings["stride"], settings["mode"], k.shape[2])
    if reason is not None:
        raise Unsupported(reason, "backend='auto' works.")
    from focus_core.kernels.xattention.triton.run import triton_choice as run

    return run(q, k, **settings)
