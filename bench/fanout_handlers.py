"""Handlers of the fan-out benchmarks: they do nothing, print a line, or report their start time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import NoReturn

from headgate.durable.model.failures import NonRetryable

_NULL = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the process


def nothing(items: Sequence[int]) -> None:
    """Succeed at once."""
    del items


def print_line(items: Sequence[int]) -> None:
    """Print a line, which the worker keeps."""
    print("items from", items[0], "on")


def discard_line(items: Sequence[int]) -> None:
    """Print the same line to the null device."""
    print("items from", items[0], "on", file=_NULL, flush=True)


def report_start_time(items: Sequence[int]) -> NoReturn:
    """Fail with the current time. A failed chunk can be redriven, and so timed, repeatedly."""
    del items
    # On Linux this clock is the same in every process of a machine.
    raise NonRetryable(f"{perf_counter():.6f}")
