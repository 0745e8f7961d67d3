"""Goes wrong in the way that is asked for."""

import errno
import os
import signal
import sys
import time

from focus_core.errors import Unsupported
from focus_core.jobs import Estimate

STORED = False


def estimate(request, host):
    return Estimate(1.0, 0, "About 1 s.")


def run(request, context):
    context.partial({"before": request["how"]})
    how = request["how"]
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit":
        print("the disk is on fire", file=sys.stderr, flush=True)
        os._exit(7)
    elif how == "raise":
        raise RuntimeError("<b>odd</b>\nsecond line")
    elif how == "memory":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")
    elif how == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    elif how == "refuse":
        raise Unsupported("This cannot be.", "Take another.")
    elif how == "system-exit":
        sys.exit(3)
    elif how == "noise":
        print("a library prints this")
        context._worker.channel._stream.write(b'{"event": \nnot json\n[1]\n{"event": 3}\n\xff\xfe\n')
        context._worker.channel._stream.flush()
    elif how == "deaf":
        end = time.monotonic() + request.get("seconds", 30)
        while time.monotonic() < end:
            sum(range(1000))
    elif how == "not-json":
        return {"value": object()}
    return {"how": how, "pid": os.getpid(), "nice": os.nice(0)}
