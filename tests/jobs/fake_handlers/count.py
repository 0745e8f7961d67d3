"""Counts slowly; hands over every number; stops when asked."""

import time

from focus_core.errors import InvalidInput

RESUMES = True


def estimate(request, host):
    if request.get("to", 1) < 0:
        raise InvalidInput("Cannot count to less than 0.", "Count to 3.")
    step = request.get("step", 0.0)
    return host.fit("count", lambda n: (n * step, n * request.get("each", 0)), request["to"], "numbers")


def identity(request):
    return request.get("version", 1)


def run(request, context):
    first = len(context.earlier())
    for i in range(first, request["to"]):
        context.check()
        time.sleep(request.get("step", 0.0))
        context.partial({"number": i})
        context.progress((i + 1) / request["to"], f"Counted {i}.")
    return {"counted": request["to"], "from": first}
