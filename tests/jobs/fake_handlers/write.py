"""Leaves a file of the asked size in the store."""

from focus_core.jobs import Estimate


def estimate(request, host):
    return Estimate(0.1, request["size"], "About nothing.")


def run(request, context):
    (context.folder / "data.bin").write_bytes(b"x" * request["size"])
    return {"n": request["n"], "files": {"data": "data.bin"}}
