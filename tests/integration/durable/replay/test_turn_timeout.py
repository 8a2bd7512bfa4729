"""Turns that take too long are interrupted, and nothing else is."""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from headgate.durable.replay import turn_timeout
from headgate.durable.replay.turn_timeout import TurnInterrupted
from headgate.errors import WorkflowViolationError
from tests.acceptance.program import until

LIMIT_SECONDS = 0.2


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    with turn_timeout.each_turn(LIMIT_SECONDS):
        yield


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """Test tools have callbacks for the garbage collector, and an interruption that falls into one of them is lost."""
    gc.disable()
    yield
    gc.enable()


def watched(work: Callable[[], Any], execution_id: str = "o-7") -> Any:
    return turn_timeout.run(turn_timeout.begin(execution_id), work)


def spin_for(seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        continue


def test_run__that_ends_in_time__returns_or_raises_what_it_does() -> None:
    assert turn_timeout.run(turn_timeout.begin("x"), divmod, 7, 2) == (3, 1)
    with pytest.raises(LookupError, match="mine"):
        watched(lambda: (_ for _ in ()).throw(LookupError("mine")))


def test_run__that_spins__is_interrupted_and_says_who_how_long_and_where() -> None:
    def spin() -> None:
        while True:
            pass

    line = spin.__code__.co_firstlineno + 1
    started = time.monotonic()
    with pytest.raises(WorkflowViolationError) as caught:
        watched(spin)
    seconds = time.monotonic() - started
    assert LIMIT_SECONDS <= seconds < 10
    text = str(caught.value)
    assert text.startswith("execution o-7: interrupted after ")
    assert f"{__file__}:{line} in spin" in text or f"{__file__}:{line + 1} in spin" in text
    assert "0.2 s" in text
    assert "worker.turn_seconds" in text


def test_run__that_spins_in_a_library__names_the_line_that_called_it() -> None:
    def spin() -> None:
        for _ in itertools.repeat(None):
            __import__("json").dumps({"a": [1, 2, {"b": []}]}, indent=2)

    with pytest.raises(
        WorkflowViolationError, match=rf"{Path(__file__).name}:{spin.__code__.co_firstlineno + 2} in spin"
    ):
        watched(spin)


def test_run__that_catches_the_interruption__fails_all_the_same() -> None:
    caught: list[BaseException] = []

    def stubborn() -> str:
        for _ in range(3):
            try:
                spin_for(60)
            except BaseException as exc:
                caught.append(exc)
        return "through"

    with pytest.raises(WorkflowViolationError):
        watched(stubborn)
    assert [type(each) for each in caught] == [TurnInterrupted] * 3


def test_run__that_makes_another_error_of_it__fails_with_the_violation() -> None:
    def disguises() -> None:
        try:
            spin_for(60)
        except BaseException as exc:
            raise ValueError("something else") from exc

    with pytest.raises(WorkflowViolationError, match="interrupted"):
        watched(disguises)


@pytest.mark.parametrize("module", ["logging", "importlib._bootstrap", "threading", "pdb"])
def test_run__inside_of_what_must_not_be_torn__is_interrupted_only_after_it(module: str) -> None:
    scope: dict[str, Any] = {"__name__": module, "spin_for": spin_for, "seen": []}
    exec("def careful():\n    spin_for(1.0)\n    seen.append('whole')", scope)

    def work() -> None:
        scope["careful"]()
        spin_for(60)

    with pytest.raises(WorkflowViolationError):
        watched(work)
    assert scope["seen"] == ["whole"]


def test_run__that_does_nothing_but_log__is_interrupted_between_the_lines() -> None:
    log = logging.getLogger("endless")
    log.addHandler(logging.NullHandler())
    log.propagate = False

    def chatters() -> None:
        while True:
            log.warning("again")

    started = time.monotonic()
    with pytest.raises(WorkflowViolationError, match="in chatters"):
        watched(chatters)
    # Many samples of the watchdog fall inside of the logging module, more of them on a busy machine.
    assert time.monotonic() - started < 100


def test_run__that_does_not_return_to_the_interpreter__is_reported_with_its_stack() -> None:
    locked = threading.Lock()
    locked.acquire()
    failed: list[BaseException] = []

    def blocked() -> None:
        locked.acquire(timeout=60)

    def turn() -> None:
        with turn_timeout.each_turn(LIMIT_SECONDS):
            try:
                watched(blocked, "blocked")
            except WorkflowViolationError as exc:
                failed.append(exc)

    with structlog.testing.capture_logs() as logs:
        thread = threading.Thread(target=turn)
        thread.start()
        try:
            until(lambda: any("cannot be interrupted" in line["event"] for line in logs), "the report")
            (late,) = [each for each in turn_timeout.overdue() if each.execution_id == "blocked"]
        finally:
            locked.release()
            thread.join()
    (line,) = [line for line in logs if "cannot be interrupted" in line["event"]]
    assert (line["log_level"], line["execution_id"]) == ("error", "blocked")
    assert any("in blocked" in place for place in line["frames"])
    assert late.seconds > LIMIT_SECONDS
    assert "in blocked" in late.place
    assert len(failed) == 1
    assert turn_timeout.overdue() == []


def test_all_turns__together_longer_than_allowed__the_last_is_interrupted() -> None:
    done = 0
    with turn_timeout.all_turns(0.5), pytest.raises(WorkflowViolationError):
        for _ in range(100):
            watched(lambda: spin_for(0.1))
            done += 1
    assert 3 <= done < 100


def test_run__ends_at_the_very_moment_it_is_interrupted__nothing_is_raised_afterwards() -> None:
    """Turns that end by themselves just when the watch looks: none of them may be hit after its end."""
    hits: list[str] = []
    ended = interrupted = 0
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with turn_timeout.each_turn(0.01):
            deadline = time.monotonic() + 3.0
            for step in itertools.count():
                if time.monotonic() > deadline:
                    break
                try:
                    try:
                        watched(partial(spin_for, 0.01 + (step % 50) / 2_000))
                        ended += 1
                    except WorkflowViolationError:
                        interrupted += 1
                    spin_for(0.002)
                except TurnInterrupted:
                    hits.append(f"step {step}")
    finally:
        sys.setswitchinterval(before)
    assert hits == []
    assert ended > 0
    assert interrupted > 0
