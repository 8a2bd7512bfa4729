"""What the fan-out benchmarks have child processes run: nothing, or telling when it was begun."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NoReturn

from headgate.durable.model.failures import NonRetryable


def nothing(items: Sequence[int]) -> None:
    """End well at once."""
    del items


def told_when(items: Sequence[int]) -> NoReturn:
    """Fail for good, saying when that was: a chunk that has failed can be redriven, and so timed, over and over."""
    del items
    # On Linux this clock is the same in every process of a machine.
    raise NonRetryable(f"{perf_counter():.6f}")
