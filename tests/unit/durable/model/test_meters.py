"""Execution meters: histograms, counts, and a bounded number of names."""

from __future__ import annotations

from headgate.durable.model.meters import NAMES_MAX, OTHER, ExecutionMeters


def test_histogram__of_some_times__has_cumulative_buckets_and_the_sum() -> None:
    meters = ExecutionMeters()
    for seconds in (0.0004, 0.004, 0.004, 100_000.0):
        meters.on_turn("pay", seconds, was_cached=False)

    reading = meters.reading().turns["pay"]

    buckets = dict(reading.buckets())
    assert (buckets["0.0005"], buckets["0.005"], buckets["86400.0"], buckets["+Inf"]) == (1, 3, 3, 4)
    assert round(reading.sum_seconds, 4) == 100_000.0084


def test_names__more_than_the_limit__are_counted_together() -> None:
    meters = ExecutionMeters()
    for number in range(NAMES_MAX + 50):
        meters.on_turn(f"w{number}", 0.1, was_cached=True)
        meters.on_attempt(f"a{number}", "failed")
        meters.on_attempt(f"a{number}", "succeeded")
        meters.on_closed(f"w{number}", "FAILED")
        meters.on_turn_failed(f"w{number}")
        meters.on_replayed(f"w{number}", 2)

    reading = meters.reading()

    assert len(reading.turns) == NAMES_MAX + 1
    assert sum(reading.turns[OTHER].counts) == 50
    assert reading.attempts[OTHER, "failed"] == reading.attempts[OTHER, "succeeded"] == 50
    assert reading.closed[OTHER, "FAILED"] == reading.turns_failed[OTHER] == reading.replays[OTHER] == 50
    assert len({name for name, _ in reading.attempts}) == NAMES_MAX + 1
    assert reading.replayed_turns == 2 * (NAMES_MAX + 50)
    assert reading.cache_hits == NAMES_MAX + 50
