"""Restarts of serving processes, and their metrics: at once after a long life, later after each failure."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headgate.serve.processes.supervisor import (
    RESTART_SECONDS,
    RESTART_SECONDS_MAX,
    STABLE_SECONDS,
    is_silent,
    restart_pause_seconds,
)
from headgate.serve.runtime.merged_metrics import MergedRegistry, decode_metrics, encode_metrics


def test_restart__process_that_ran_for_a_while__is_started_at_once() -> None:
    assert restart_pause_seconds(STABLE_SECONDS, 7) == (RESTART_SECONDS, 0)


def test_restart__process_that_fails_again_and_again__waits_longer_up_to_a_bound() -> None:
    pauses, failures = [], 0
    for _ in range(12):
        pause, failures = restart_pause_seconds(0.5, failures)
        pauses.append(pause)
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert pauses[-1] == RESTART_SECONDS_MAX


def _registry(calls: int, seconds: float) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("calls", "Calls.", ["method"], registry=registry).labels("read").inc(calls)
    Histogram("took", "Seconds.", registry=registry).observe(seconds)
    Gauge("open", "Open.", registry=registry).set(1)
    return registry


def test_metrics__of_processes_that_ended__stay_in_the_sum() -> None:
    merged = MergedRegistry()
    Counter("calls", "Calls.", ["method"], registry=merged).labels("read").inc(5)
    for pid in (1, 2, 3):
        merged.update_process(pid, decode_metrics(encode_metrics(_registry(10 * pid, 0.1))))
    merged.end_process(1)
    merged.end_process(2)
    merged.end_process(99)
    assert merged.get_sample_value("calls_total", {"method": "read"}) == 65
    assert merged.get_sample_value("took_count") == 3
    assert merged.get_sample_value("open") is None, "a gauge is of one process"
    merged.update_process(3, decode_metrics(encode_metrics(_registry(40, 0.1))))
    assert merged.get_sample_value("calls_total", {"method": "read"}) == 75


def test_silent__no_heartbeat_beyond_the_limit__is_silent() -> None:
    assert is_silent(now=20.0, received_at=11.0, checked_at=19.5, limit_seconds=8.0)
    assert not is_silent(now=20.0, received_at=13.0, checked_at=19.5, limit_seconds=8.0)


def test_silent__first_process_was_suspended__the_heartbeats_are_read_first() -> None:
    assert not is_silent(now=120.0, received_at=11.0, checked_at=11.5, limit_seconds=8.0)
