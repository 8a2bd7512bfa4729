"""How a ratio is measured: yardstick and subject by turns, at least five times, and the median of the ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

ROUNDS = 7


@dataclass(frozen=True)
class Figure:
    """One line of the table. `goal` is what the ratio (or the value, if there is no yardstick) has to reach."""

    name: str
    value: str
    goal: str
    reached: bool
    counted: str = ""
    notes: str = ""
    rounds: list[float] = field(default_factory=list)


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    started = perf_counter()
    work()
    return perf_counter() - started


def ratio(
    name: str,
    *,
    yardstick: Callable[[int], int],
    subject: Callable[[int], int],
    goal: float | None,
    counted: Callable[[], str],
    rounds: int = ROUNDS,
) -> Figure:
    """Compare rates. Each callable does the work of round `n` and returns how many operations that was.

    Without a goal the ratio is only printed.
    """
    ratios, rates = [], []
    for number in range(-1, rounds):
        # Who goes first alternates too, so that neither always inherits the other's warm cache.
        order = (yardstick, subject) if number % 2 else (subject, yardstick)
        rate = {}
        for work in order:
            started = perf_counter()
            operations = work(number + 1)
            rate[work] = operations / (perf_counter() - started)
        if number >= 0:  # The first round only warms up.
            ratios.append(rate[subject] / rate[yardstick])
            rates.append((rate[subject], rate[yardstick]))
    middle = statistics.median(ratios)
    ours, theirs = (statistics.median(side) for side in zip(*rates, strict=True))
    return Figure(
        name,
        f"{middle:.2f}",
        "printed" if goal is None else f">= {goal:.2f}",
        goal is None or middle >= goal,
        counted(),
        f"{ours:,.0f}/s against {theirs:,.0f}/s; rounds {min(ratios):.2f} to {max(ratios):.2f}",
        ratios,
    )


def show(figures: list[Figure]) -> str:
    """Return the figures as an aligned table."""
    rows = [("", "measure", "value", "goal", "counted", "notes")]
    rows += [("ok" if f.reached else "LOW", f.name, f.value, f.goal, f.counted, f.notes) for f in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
