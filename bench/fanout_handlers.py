"""Handlers of the fan-out benchmarks: one does nothing, one reports its start time."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NoReturn

from headgate.durable.model.failures import NonRetryable


def nothing(items: Sequence[int]) -> None:
    """Succeed at once."""
    del items


def report_start_time(items: Sequence[int]) -> NoReturn:
    """Fail with the current time. A failed chunk can be redriven, and so timed, repeatedly."""
    del items
    # On Linux this clock is the same in every process of a machine.
    raise NonRetryable(f"{perf_counter():.6f}")
