"""Rate window: the recent starts of a rate-limited key, and whether one more fits into the limit.

The limit holds for every window: whichever moment a window begins at, at most `rate` starts are in it. A bucket of
tokens would allow nearly twice as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

# Up to this many, each start has an entry of its own. Beyond, starts close to each other share one.
ENTRIES_MAX: Final = 64


class Starts(Struct, frozen=True, array_like=True):
    """Some starts that count as if all were at the time of the last."""

    first_ms: int
    last_ms: int
    count: int = 1


def without_start(recent: Sequence[Starts], at_ms: int) -> tuple[Starts, ...]:
    """Return the recent starts without one at a time; all of them if there is none."""
    for place, each in enumerate(recent):
        if each.first_ms <= at_ms <= each.last_ms:
            rest = (Starts(each.first_ms, each.last_ms, each.count - 1),) if each.count > 1 else ()
            return (*recent[:place], *rest, *recent[place + 1 :])
    return tuple(recent)


def with_start(recent: Sequence[Starts], rate: int, per_ms: int, now_ms: int) -> tuple[Starts, ...] | None:
    """Return the recent starts with one at this time, or None if that would exceed the limit."""
    # Entries further ahead than a window are from before the clock was set back.
    current = [each for each in recent if now_ms - per_ms < each.last_ms <= now_ms + per_ms]
    if sum(each.count for each in current) >= rate:
        return None
    last = current[-1] if current else None
    if last is not None and len(current) >= ENTRIES_MAX and now_ms - last.first_ms < per_ms // ENTRIES_MAX:
        shared = Starts(last.first_ms, max(last.last_ms, now_ms), last.count + 1)
        return (*current[:-1], shared)
    return (*current, Starts(now_ms, now_ms))
