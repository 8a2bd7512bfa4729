"""Signal strip: states of a signal over the last days, as bars on a time axis."""

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
# Distinguished by height, too, for colour-blind users.
_HEIGHTS: Final[Mapping[str, int]] = {
    SignalState.OK: 6,
    SignalState.UNKNOWN: 11,
    SignalState.WARNING: 16,
    SignalState.CRITICAL: HEIGHT,
}
# Minimum width, so that short states stay visible.
_BAR_MIN: Final = 3.0


class Bar(Struct, frozen=True):
    """A time range in one state."""

    state: str
    since: str
    x: float
    y: int
    width: float
    height: int


class Strip(Struct, frozen=True):
    """The bars of a signal, oldest first."""

    bars: tuple[Bar, ...]
    width: int = WIDTH
    height: int = HEIGHT
    days: int = DAYS

    @property
    def text(self) -> str:
        """Text alternative: the latest changes."""
        changes = ", then ".join(f"{each.state} since {each.since[:16].replace('T', ' ')}" for each in self.bars[-5:])
        return changes or "no known state in this time"


def since(now_ms: int) -> str:
    """Return the start time of strips."""
    return instant(now_ms - DAYS * _DAY_MS)


def strip(snapshots: Sequence[Mapping[str, Any]], signal: Mapping[str, Any], now_ms: int) -> Strip:
    """Return the strip of a signal from its transitions, oldest first, and its current state."""
    start_ms = now_ms - DAYS * _DAY_MS
    points: list[tuple[int, str]] = []
    for each in snapshots:
        if each["late"]:
            continue
        if not points and each["previous_state"] is not None:
            points.append((start_ms, each["previous_state"]))
        # When it was stored, as for "since" on every page: the window may have ended much earlier.
        points.append((_within(milliseconds(each["changed_at"]), start_ms, now_ms), each["state"]))
    if not points:
        since = signal["detected_at"] or signal["state_changed_at"]
        points = [(_within(milliseconds(since), start_ms, now_ms), signal["state"])]
    ends = [*(at_ms for at_ms, _ in points[1:]), now_ms]
    bars = [_bar(state, at_ms, end_ms, start_ms) for (at_ms, state), end_ms in zip(points, ends, strict=True)]
    return Strip(tuple(each for each in bars if each.width > 0))


def _within(at_ms: int, start_ms: int, now_ms: int) -> int:
    # Windows may end slightly in the future because of clock skew.
    return min(max(start_ms, at_ms), now_ms)


def _bar(state: str, at_ms: int, end_ms: int, start_ms: int) -> Bar:
    scale = WIDTH / (DAYS * _DAY_MS)
    width = (end_ms - at_ms) * scale
    x = (at_ms - start_ms) * scale
    if state != SignalState.OK:
        width = max(width, _BAR_MIN)
    height = _HEIGHTS[state]
    return Bar(state, instant(at_ms), round(min(x, WIDTH - width), 2), HEIGHT - height, round(width, 2), height)
