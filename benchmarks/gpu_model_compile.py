"""Compiles what ``benchmarks.gpu_models`` runs: a process a line runs a model of one layer as the whole one will run.

Compiled kernels are kept on disk, where the process that measures finds them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from benchmarks.gpu_model_lines import llama_shape, xattention_line
from benchmarks.gpu_model_runs import Runner, checks

CHECKS, XATTENTION = "checks", "XAttention"
SHAPES = {
    "smollm2": {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3},
    "llama": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8},
}
LINES = {"smollm2": (0, 1, 2, CHECKS, XATTENTION), "llama": (0, 1, 2, CHECKS)}
"""What each process runs: the lines that a model of random weights has, by number, and what else there is."""
Case = tuple[str, int | str, list[int], tuple[str, str]]


def compile_line(case: Case, device: str = "cuda", sizes: dict[str, int] | None = None) -> str:
    """Run one line at every length, a few tokens decoded.

    Args:
        case: model, line, lengths, dense kernels.
        device: where it runs.
        sizes: other sizes of the model.

    Returns:
        How long it took, or why it could not run.
    """
    name, line, lengths, kernels = case
    begun = time.perf_counter()
    small = {"num_hidden_layers": 1, "intermediate_size": 1024, "vocab_size": 1024}
    said = f"{name}, {line}"
    try:
        runner = Runner(llama_shape(lengths, device, kernels, SHAPES[name] | small | (sizes or {})), steps=3)
        if line == CHECKS:
            checks(runner, kernels)
        else:
            chosen = xattention_line() if line == XATTENTION else runner.subject.lines[int(line)]
            said = f"{name}, {chosen.name}"
            for tokens in lengths:
                runner.run(chosen, tokens)
    except Exception as problem:
        # What cannot run here is tried again where it is measured, and says why there.
        return f"{said} was not compiled: {type(problem).__name__}: {problem}"[:300]
    return f"{said} compiled in {time.perf_counter() - begun:.1f} s"


@contextlib.contextmanager
def compiling(names: Sequence[str], lengths: list[int], kernels: tuple[str, str]) -> Iterator[Iterator[str]]:
    """Processes that compile the models' lines, and what each says when it has."""
    # What flash-attn-4 compiles is kept on disk for the other processes.
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    cases: list[Case] = [(name, line, lengths, kernels) for name in names for line in LINES[name]]
    with ProcessPoolExecutor(len(cases), multiprocessing.get_context("spawn")) as pool:
        yield (done.result() for done in as_completed([pool.submit(compile_line, case) for case in cases]))
