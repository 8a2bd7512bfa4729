"""Strips: the states that a signal was in over the last days, as bars along a line of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.health.model.enums import SignalState
from headgate.health.model.timestamps import instant, milliseconds

DAYS: Final = 7
WIDTH: Final = 700
HEIGHT: Final = 24
_DAY_MS: Final = 86_400_000
# Told apart by height too: not everyone sees the colours.
_HEIGHTS: Final[Mapping[str, int]] = {
    SignalState.OK: 6,
    SignalState.UNKNOWN: 11,
    SignalState.WARNING: 16,
    SignalState.CRITICAL: HEIGHT,
}
# So that a short trouble in a long week is still seen.
_BAR_MIN: Final = 3.0


class Bar(Struct, frozen=True):
    """A time in which a signal was in one state."""

    state: str
    since: str
    x: float
    y: int
    width: float
    height: int


class Strip(Struct, frozen=True):
    """The bars of a signal, from the oldest to the present one."""

    bars: tuple[Bar, ...]
    width: int = WIDTH
    height: int = HEIGHT
    days: int = DAYS

    @property
    def text(self) -> str:
        """The same in words, for those who do not see it: the latest changes."""
        said = ", then ".join(f"{each.state} since {each.since[:16].replace('T', ' ')}" for each in self.bars[-5:])
        return said or "no state is known of this time"


def since(now_ms: int) -> str:
    """Return the moment at which strips begin."""
    return instant(now_ms - DAYS * _DAY_MS)


def strip(snapshots: Sequence[Mapping[str, Any]], signal: Mapping[str, Any], now_ms: int) -> Strip:
    """Return the strip of a signal, given its transitions, oldest first, and how it stands."""
    start_ms = now_ms - DAYS * _DAY_MS
    points: list[tuple[int, str]] = []
    for each in snapshots:
        if each["late"]:
            continue
        if not points and each["previous_state"] is not None:
            points.append((start_ms, each["previous_state"]))
        # By the end of its window, as "since" is told: the report itself may have come later.
        points.append((_within(milliseconds(each["window_end"]), start_ms, now_ms), each["state"]))
    if not points:
        points = [(_within(milliseconds(signal["state_changed_at"]), start_ms, now_ms), signal["state"])]
    ends = [*(at_ms for at_ms, _ in points[1:]), now_ms]
    bars = [_bar(state, at_ms, end_ms, start_ms) for (at_ms, state), end_ms in zip(points, ends, strict=True)]
    return Strip(tuple(each for each in bars if each.width > 0))


def _within(at_ms: int, start_ms: int, now_ms: int) -> int:
    # Windows may end a little in the future, where clocks differ.
    return min(max(start_ms, at_ms), now_ms)


def _bar(state: str, at_ms: int, end_ms: int, start_ms: int) -> Bar:
    scale = WIDTH / (DAYS * _DAY_MS)
    width = (end_ms - at_ms) * scale
    x = (at_ms - start_ms) * scale
    if state != SignalState.OK:
        width = max(width, _BAR_MIN)
    height = _HEIGHTS[state]
    return Bar(state, instant(at_ms), round(min(x, WIDTH - width), 2), HEIGHT - height, round(width, 2), height)
