"""Freshness promises: when a report on a freshness SLO is due, and what its absence means. Pure functions.

A report is a FRESHNESS signal, or a PIPELINE_RUN signal that is OK: a run that wrote the dataset. Its age is that of
its window. Windows that follow each other without a gap (TUMBLING windows and the periods of a schedule) have a next
one that ends a window's length later, and the delay counts from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headgate.health.model.datasets import FreshnessSlo, OnSilence
from headgate.health.model.enums import FRESHNESS, SignalState
from headgate.health.model.signals import Signal, SignalValue
from headgate.health.model.timestamps import milliseconds

PIPELINE_RUN: Final = "PIPELINE_RUN"
REPORT_TYPES: Final = (FRESHNESS, PIPELINE_RUN)
# The failure signature of a finding that Headgate makes itself, because no report came in time.
OVERDUE: Final = "FRESHNESS_OVERDUE:no_report"
_SUCCESSIVE: Final = ("TUMBLING", "PERIOD")


class Promise(Struct, frozen=True):
    """A freshness SLO in milliseconds of delay: WARNING after the first, broken after the second, then CRITICAL.

    `critical_ms` is None if the policy leaves it at WARNING.
    """

    warning_ms: int
    broken_ms: int
    critical_ms: int | None


class Report(Struct, frozen=True):
    """The newest report: the end of its window, and the time at which the next one is expected without any delay."""

    window_end: str
    expected_ms: int


def promise_of(slo: FreshnessSlo | None, default: OnSilence) -> Promise | None:
    """Return the promise of an SLO, or None if there is none or its absence of reports is ignored."""
    if slo is None:
        return None
    policy = slo.on_silence or default
    if policy is OnSilence.IGNORE:
        return None
    broken_ms = int(slo.max_delay_seconds * 1000)
    warning_ms = broken_ms if slo.warning_delay_seconds is None else int(slo.warning_delay_seconds * 1000)
    # Without a warning of its own, the breach is the warning, and a second delay makes it critical.
    critical_ms = broken_ms if warning_ms < broken_ms else 2 * broken_ms
    return Promise(warning_ms, broken_ms, None if policy is OnSilence.WARN else critical_ms)


def interval_ms(value: SignalValue) -> int:
    """Return the time from a window to the next one, or 0 if windows of its type may overlap or have gaps."""
    if not value.window_type.upper().startswith(_SUCCESSIVE):
        return 0
    return milliseconds(value.window_end) - milliseconds(value.window_start)


def newest_report(signals: Iterable[Signal]) -> Report | None:
    """Return the newest report among the signals of a dataset, or None if there is none."""
    reports = [
        Report(each.value.window_end, milliseconds(each.value.window_end) + interval_ms(each.value))
        for each in signals
        if each.signal_type == FRESHNESS or (each.signal_type == PIPELINE_RUN and each.state is SignalState.OK)
    ]
    return max(reports, key=lambda each: each.expected_ms, default=None)


def is_overdue_finding(value: SignalValue) -> bool:
    """Whether Headgate made this value itself because no report came in time."""
    return value.failure_signature == OVERDUE


def state_of(promise: Promise, expected_ms: int, now_ms: int) -> SignalState:
    """Return the state of a promise whose next report was expected at a time and has not come."""
    late_ms = now_ms - expected_ms
    if promise.critical_ms is not None and late_ms > promise.critical_ms:
        return SignalState.CRITICAL
    return SignalState.WARNING if late_ms > promise.warning_ms else SignalState.OK


def is_broken(promise: Promise, expected_ms: int, now_ms: int) -> bool:
    """Whether the newest facts are older than promised."""
    return now_ms - expected_ms > promise.broken_ms


def next_change_ms(promise: Promise, expected_ms: int, now_ms: int) -> int | None:
    """Return when the state changes next if no report comes, or None if it does not."""
    changes = (promise.warning_ms, promise.critical_ms)
    later = [expected_ms + delay + 1 for delay in changes if delay is not None and now_ms - expected_ms <= delay]
    return min(later, default=None)
