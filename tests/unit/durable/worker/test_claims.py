"""How many activities a worker holds ready, and when it lets others have them."""

from __future__ import annotations

import pytest

from headgate.clock import VirtualClock
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.durable.worker.claims import PREFETCH_SECONDS, Prefetch


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.mark.parametrize(
    ("mean_seconds", "waiting", "room"),
    [(0.0, 0, WorkerLimits().prefetch_max), (0.0, 200, 56), (0.01, 0, 202), (1.0, 0, 4), (100.0, 0, 2), (100.0, 2, 0)],
)
def test_room__by_how_long_they_take__is_what_can_be_begun_soon(
    clock: VirtualClock, mean_seconds: float, waiting: int, room: int
) -> None:
    prefetch = Prefetch(clock)
    for _ in range(200):
        prefetch.on_finished(mean_seconds)

    assert prefetch.room(waiting, 2) == room


def test_held_up__threads_that_begin_nothing__take_nothing_more_and_give_back_the_rest(clock: VirtualClock) -> None:
    prefetch = Prefetch(clock)
    clock.advance(3_600)
    prefetch.on_progress()
    assert (prefetch.room(10, 2), prefetch.surplus(10, 2), prefetch.seconds_left(10, 2)) == (246, 0, PREFETCH_SECONDS)

    clock.advance(PREFETCH_SECONDS)

    assert (prefetch.room(10, 2), prefetch.surplus(10, 2), prefetch.seconds_left(10, 2)) == (0, 8, 0.0)
    # Some to begin with once a thread is free.
    assert (prefetch.room(2, 2), prefetch.surplus(2, 2), prefetch.seconds_left(2, 2)) == (0, 0, None)

    prefetch.on_progress()
    assert prefetch.room(2, 2) == WorkerLimits().prefetch_max - 2


def test_idle__for_long__is_not_held_up(clock: VirtualClock) -> None:
    prefetch = Prefetch(clock)
    clock.advance(3_600)

    assert (prefetch.room(0, 1), prefetch.surplus(0, 1), prefetch.seconds_left(0, 1)) == (
        WorkerLimits().prefetch_max,
        0,
        None,
    )
