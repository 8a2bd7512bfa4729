"""Dataset charts: the score of each signal and the volume over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.health.model.enums import SignalState
from headgate.health.model.timestamps import milliseconds
from headgate.serve.pages.health.signal_strip import DAYS

_DAY_MS: Final = 86_400_000


def signal_chart(snapshots: Sequence[Mapping[str, Any]], signal: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Return the score of a signal at each change of its state, up to now, with its SLO as threshold."""
    changes = [each for each in snapshots if not each["late"] and each["score"] is not None]
    points = {milliseconds(each["window_end"]): each["score"] for each in changes}
    points[min(milliseconds(signal["window_end"]), now_ms)] = signal["score"]
    start_ms = now_ms - DAYS * _DAY_MS
    shown = sorted((max(at_ms, start_ms), score) for at_ms, score in points.items())
    last_ms, last = shown[-1]
    if last_ms < now_ms:
        # The score holds until the next window.
        shown.append((now_ms, last))
    breaches = [each for each in snapshots if each["state"] == SignalState.CRITICAL and not each["late"]]
    return {
        "series": [{"name": signal["signal_type"], "points": shown, "kind": "step", "tone": _TONES[signal["state"]]}],
        "threshold": signal["slo_threshold"] or None,
        "marks": [(milliseconds(each["window_end"]), each["failure_signature"] or "critical") for each in breaches],
        "to": now_ms,
    }


def volume_chart(points: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the records of each hour, the expected band, and a mark at each hour outside of it.

    Hours that were not measured have no bar; hours of the warm-up have no band.
    """
    known = [(milliseconds(each["hour"]), each["event_count"]) for each in points if each["event_count"] is not None]
    return {
        "series": [{"name": "records per hour", "points": known, "kind": "bar"}] if known else [],
        "band": [
            (milliseconds(each["hour"]), each["low"], each["high"]) for each in expected if each["low"] is not None
        ],
        "marks": [(milliseconds(each["hour"]), each["reason"]) for each in expected if each["is_flagged"]],
    }


_TONES: Final[Mapping[str, str]] = {
    SignalState.CRITICAL: "bad",
    SignalState.WARNING: "warn",
    SignalState.UNKNOWN: "odd",
    SignalState.OK: "good",
}
