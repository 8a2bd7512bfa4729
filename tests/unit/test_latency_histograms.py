"""Timings: each in the bucket of the first bound that it does not pass, and added up as a histogram has them."""

from __future__ import annotations

import threading

import pytest

from headgate.latency_histograms import BOUNDS_MS, LatencyHistograms


def test_timings__on_a_bound_above_and_below__are_counted_up_to_it() -> None:
    timings = LatencyHistograms()
    for milliseconds in (0.0, 0.5, 0.6, 10_000, 10_001):
        timings.add(("get",), milliseconds)
    [(labels, timing)] = timings.snapshot()
    assert labels == ("get",)
    assert timing.count == 5
    assert timing.sum_ms == pytest.approx(20_002.1)
    buckets = dict(timing.buckets())
    assert (buckets["0.5"], buckets["1.0"], buckets["10000.0"], buckets["+Inf"]) == (2, 3, 4, 5)
    assert len(buckets) == len(BOUNDS_MS) + 1


def test_timings__of_two_labels__are_apart_and_add_up() -> None:
    timings = LatencyHistograms()
    timings.add(("get", "OK"), 1)
    timings.add(("get", "NOT_FOUND"), 3)
    one, other = (timing for _, timing in timings.snapshot())
    assert (one.count, other.count) == (1, 1)
    both = one + other
    assert both.count == 2
    assert both.sum_ms == 4
    assert dict(both.buckets())["1.0"] == 1


def test_timings__from_many_threads__none_is_lost() -> None:
    timings = LatencyHistograms()

    def count() -> None:
        for _ in range(2_000):
            timings.add(("get",), 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [(_, timing)] = timings.snapshot()
    assert timing.count == timing.sum_ms == 8_000
