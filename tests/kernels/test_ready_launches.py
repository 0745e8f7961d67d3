"""Launches by a short key: the same kernel with the same arguments, and another one wherever Triton would take one."""

import torch

from focus_core.kernels.focus.triton.launch import Ready


class Parameter:
    def __init__(self, name, free=False):
        self.name, self.do_not_specialize = name, free


class Compiled:
    def __init__(self, launched, number):
        self.launched, self.number = launched, number

    def __getitem__(self, grid):
        return lambda *given: self.launched.append((self.number, grid, given))


class Kernel:
    """Stands for Triton's: what it compiles tells which launch compiled it."""

    def __init__(self):
        self.params = [Parameter("X"), Parameter("stride"), Parameter("n", free=True), *map(Parameter, ("s", "A", "B"))]
        self.compiled, self.launched = 0, []

    def __getitem__(self, grid):
        def first(*arguments, **settings):
            self.compiled += 1
            return Compiled(self.launched, self.compiled)

        return first


def test_one_kernel_serves_what_triton_compiles_alike():
    kernel = Kernel()
    run = Ready(kernel)
    x = torch.zeros(64, dtype=torch.float16)
    run[(4,)](x, 8, 5, 0.5, B=2, A=1, num_warps=4)
    run[(6, 2)](x[8:], 8, 99, 0.25, B=2, A=1, num_warps=4)
    assert kernel.compiled == 1
    ((number, grid, given),) = kernel.launched
    assert (number, grid) == (1, (6, 2, 1))
    # Constants in the order of the signature, without what is no parameter.
    assert given[1:] == (8, 99, 0.25, 1, 2)
    assert given[0].data_ptr() == x[8:].data_ptr()


def test_what_triton_tells_apart_is_compiled_apart():
    kernel = Kernel()
    run = Ready(kernel)
    x = torch.zeros(64, dtype=torch.float16)
    settings = {"A": 1, "B": 2, "num_warps": 4}
    cases = [
        ((x, 8, 5, 0.5), settings),
        ((x[1:], 8, 5, 0.5), settings),
        ((x.float(), 8, 5, 0.5), settings),
        ((x, 1, 5, 0.5), settings),
        ((x, 8, 1 << 31, 0.5), settings),
        ((x, 8, 5, 0.5), settings | {"B": 3}),
        ((x, 8, 5, 0.5), settings | {"num_warps": 8}),
        ((x, 8, 5, 0.5), {"A": 1, "B": 2, "num_stages": 4}),
    ]
    for arguments, given in cases:
        run[(1,)](*arguments, **given)
    assert kernel.compiled == len(cases)
    for number, (arguments, given) in enumerate(cases, 1):
        run[(1,)](*arguments, **given)
        assert kernel.launched[-1][0] == number
