"""Process count: how many processes serve the ports of this server."""

from __future__ import annotations

import os

from headgate.settings import PROCESSES_MAX, Settings


def process_count(settings: Settings) -> int:
    """Return how many processes serve: the setting, or for `auto` one for each core that this one may use."""
    chosen = settings.serve.processes
    if chosen != "auto":
        return chosen
    # The lease of a region's writer belongs to one process.
    return 1 if settings.region.name is not None else min(PROCESSES_MAX, available_cores())


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
