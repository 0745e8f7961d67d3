"""The engine's client: one queue a device, progress, cancel, cost before the run. Imports no torch."""

from focus_core.jobs.costs import Estimate, Host
from focus_core.jobs.engine import Engine
from focus_core.jobs.job import Job, Problem

__all__ = ["Engine", "Estimate", "Host", "Job", "Problem"]
