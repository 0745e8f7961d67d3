import time

import pytest

from focus_core.jobs import Engine

FAKES = ("tests.jobs.fake_handlers",)


@pytest.fixture
def engine(tmp_path):
    with Engine(tmp_path / "runs", handlers=FAKES) as made:
        yield made


def until(condition, seconds=20.0, what="the condition"):
    """Wait for it; the time waited."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"waited {seconds} s for {what}"
        time.sleep(0.005)
    return time.monotonic() - began


def finish(*jobs, seconds=30.0):
    """Wait until all of them have ended."""
    until(lambda: all(job.finished for job in jobs), seconds, f"{[(j.state, j.message) for j in jobs]}")
    return jobs[0]
