"""Retries: what the Retry and the Catch of a state do about an error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from headgate.asl.definition import Catcher, Jitter, Retrier
from headgate.asl.failures import matches

# The longest pause that Step Functions lets MaxDelaySeconds ask for. Backing off goes on for ever; numbers do not.
PAUSE_SECONDS_MAX: Final = 31_622_400.0


class Attempts:
    """How often each retrier of a state has been used in one visit to it. Every visit starts with none."""

    __slots__ = ("counts", "retriers")

    def __init__(self, retriers: Sequence[Retrier], counts: Sequence[int] = ()) -> None:
        """Take up at `counts`, in the order of the retriers; those that it leaves out have not been used."""
        self.retriers = retriers
        self.counts = [*counts, *(0 for _ in retriers[len(counts) :])]

    def pause(self, error: str, draw: random.Random, *, task: bool = True) -> float | None:
        """Return after how many seconds the state is tried again, and count it; None for giving up.

        The first retrier that names the error decides, even if it has no attempts left and a later one has. Every
        retrier counts and backs off by itself: other errors in between do not make its pauses longer.
        """
        for place, retrier in enumerate(self.retriers):
            if matches(retrier.errors, error, task=task):
                used = self.counts[place]
                if used >= retrier.attempts_max:
                    return None
                self.counts[place] += 1
                return _pause_seconds(retrier, used, draw)
        return None


def catcher_for(catchers: Sequence[Catcher], error: str, *, task: bool = True) -> Catcher | None:
    """Return the first catcher that names the error, or None if the error goes on to whatever the state is in."""
    return next((catcher for catcher in catchers if matches(catcher.errors, error, task=task)), None)


def _pause_seconds(retrier: Retrier, used: int, draw: random.Random) -> float:
    longest = PAUSE_SECONDS_MAX if retrier.delay_seconds_max is None else retrier.delay_seconds_max
    try:
        pause = min(retrier.interval_seconds * retrier.backoff_rate**used, longest)
    except OverflowError:
        pause = longest
    # Full jitter is anywhere from no pause at all to what the pause would have been.
    return draw.uniform(0.0, pause) if retrier.jitter is Jitter.FULL else pause
