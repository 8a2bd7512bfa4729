from __future__ import annotations

import random

import pytest

from headgate.asl.errors import ALL, DATA_LIMIT_EXCEEDED, HEARTBEAT_TIMEOUT, RUNTIME, TASK_FAILED, TIMEOUT
from headgate.asl.model.definition import Catcher, Jitter, Retrier
from headgate.asl.runtime.interpreter import DELAY_SECONDS_MAX, RetryCounter, catcher_for


def draw() -> random.Random:
    return random.Random(7)


def pauses(retrier: Retrier, error: str = "E") -> list[float]:
    attempts = RetryCounter((retrier,))
    found: list[float] = []
    while (pause := attempts.next_delay(error, draw())) is not None and len(found) < 20:
        found.append(pause)
    return found


@pytest.mark.parametrize(
    ("retrier", "expected"),
    [
        (Retrier(("E",)), [1.0, 2.0, 4.0]),
        (Retrier(("E",), interval_seconds=3, attempts_max=4, backoff_rate=1.5), [3.0, 4.5, 6.75, 10.125]),
        (Retrier(("E",), attempts_max=0), []),
        (Retrier(("E",), interval_seconds=3, attempts_max=4, delay_seconds_max=5), [3.0, 5.0, 5.0, 5.0]),
        (Retrier(("E",), interval_seconds=3, attempts_max=1, delay_seconds_max=2), [2.0]),
        (Retrier(("E",), attempts_max=3, backoff_rate=1.0), [1.0, 1.0, 1.0]),
    ],
)
def test_pause__given_a_retrier__then_backs_off_to_its_bounds(retrier: Retrier, expected: list[float]) -> None:
    assert pauses(retrier) == expected


def test_pause__given_an_error_no_one_names__then_gives_up() -> None:
    attempts = RetryCounter((Retrier(("Other",)),))
    assert attempts.next_delay("E", draw()) is None
    assert attempts.counts == [0]


def test_pause__given_two_retriers__then_each_counts_by_itself() -> None:
    attempts = RetryCounter((Retrier(("A",), attempts_max=2), Retrier((ALL,), interval_seconds=10, attempts_max=1)))
    assert [attempts.next_delay(error, draw()) for error in ("A", "B", "A")] == [1.0, 10.0, 2.0]
    assert attempts.counts == [2, 1]
    # The first that names it decides: A does not fall through to States.ALL once it is used up.
    assert [attempts.next_delay(error, draw()) for error in ("A", "B")] == [None, None]


def test_pause__given_the_first_is_used_up__then_a_later_one_that_matches_is_not_asked() -> None:
    attempts = RetryCounter((Retrier(("A",), attempts_max=0), Retrier((ALL,), attempts_max=5)))
    assert attempts.next_delay("A", draw()) is None
    assert attempts.counts == [0, 0]


def test_pause__given_counts_of_before__then_goes_on_from_there() -> None:
    retriers = (Retrier(("A",)), Retrier(("B",)))
    attempts = RetryCounter(retriers, (2,))
    assert [attempts.next_delay(error, draw()) for error in ("A", "A", "B")] == [4.0, None, 1.0]


def test_pause__given_backing_off_beyond_any_number__then_stays_at_the_bound() -> None:
    retrier = Retrier(("E",), attempts_max=99_999_999)
    assert RetryCounter((retrier,), (40,)).next_delay("E", draw()) == DELAY_SECONDS_MAX
    assert RetryCounter((retrier,), (5_000_000,)).next_delay("E", draw()) == DELAY_SECONDS_MAX


def test_pause__given_full_jitter__then_is_drawn_up_to_the_pause() -> None:
    retrier = Retrier(("E",), interval_seconds=3, attempts_max=400, delay_seconds_max=5, jitter=Jitter.FULL)
    source = draw()
    attempts = RetryCounter((retrier,))
    first = [RetryCounter((retrier,)).next_delay("E", source) or 0.0 for _ in range(200)]
    later = [attempts.next_delay("E", source) or 0.0 for _ in range(200)][1:]
    assert min(first) < 0.3
    assert 2.7 < max(first) <= 3.0
    assert 4.7 < max(later) <= 5.0


def test_pause__given_the_same_draw__then_the_same_pauses() -> None:
    retrier = Retrier(("E",), jitter=Jitter.FULL)
    assert RetryCounter((retrier,)).next_delay("E", draw()) == RetryCounter((retrier,)).next_delay("E", draw())


@pytest.mark.parametrize("error", [RUNTIME, DATA_LIMIT_EXCEEDED])
def test_pause__given_states_all_and_an_error_that_it_does_not_stand_for__then_gives_up(error: str) -> None:
    assert pauses(Retrier((ALL,)), error) == []


def test_pause__given_task_failed_and_a_time_out__then_gives_up() -> None:
    assert pauses(Retrier((TASK_FAILED,)), TIMEOUT) == []
    assert pauses(Retrier((TASK_FAILED,)), "Mine") == [1.0, 2.0, 4.0]
    assert pauses(Retrier((TIMEOUT,)), HEARTBEAT_TIMEOUT) == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(("error", "target"), [("A", "OnA"), ("B", "OnAny"), (RUNTIME, None)])
def test_catcher_for__given_an_error__then_the_first_that_names_it(error: str, target: str | None) -> None:
    catchers = (Catcher(("A",), "OnA"), Catcher((ALL,), "OnAny"), Catcher(("A",), "Never"))
    found = catcher_for(catchers, error)
    assert (found.next if found else None) == target
