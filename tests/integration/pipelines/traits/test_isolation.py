"""Isolation of evaluators: what hangs, raises or ends its thread keeps no other waiting."""

from __future__ import annotations

import threading
import time

import pytest

from headgate.errors import CorruptionError, DefinitionError, StoreBusyError
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.traits.isolation import Isolation
from headgate.pipelines.traits.protocol import Answer, passed
from headgate.triggers.contract import FailureCategory as TriggerCategory
from headgate.triggers.contract import TriggerFailedError


def test_isolation__answers_in_time__is_what_it_says() -> None:
    assert Isolation().run("one", 5, lambda: passed("fine")).reason == "fine"


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (StoreBusyError("busy"), FailureCategory.TRANSIENT),
        (DefinitionError("wrong"), FailureCategory.PERMANENT),
        (CorruptionError("broken"), FailureCategory.PERMANENT),
        (TriggerFailedError("late", TriggerCategory.TIMEOUT), FailureCategory.TIMEOUT),
        (ZeroDivisionError("oops"), FailureCategory.EVALUATOR_CRASH),
        (SystemExit(3), FailureCategory.EVALUATOR_CRASH),
    ],
)
def test_isolation__raises__is_an_error_of_its_category(error: BaseException, category: FailureCategory) -> None:
    def ask() -> Answer:
        raise error

    answer = Isolation().run("one", 5, ask)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, category)


def test_isolation__hangs__is_left_behind_and_given_no_more_than_a_few_threads() -> None:
    isolation = Isolation(hanging_max=2, grace_seconds=0)
    go_on = threading.Event()

    def hang() -> Answer:
        go_on.wait(30)
        return passed("late")

    began = time.monotonic()
    for expected in (1, 2):
        answer = isolation.run("one", 0.05, hang)
        assert (answer.status, answer.category) == (TraitStatus.FAIL, FailureCategory.TIMEOUT)
        assert isolation.hanging("one") == expected
    answer = isolation.run("one", 0.05, hang)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.TRANSIENT)
    assert "2 earlier evaluations" in answer.reason
    assert isolation.run("other", 5, lambda: passed("fine")).status is TraitStatus.PASS
    assert time.monotonic() - began < 5
    go_on.set()
    ends_at = time.monotonic() + 10
    while isolation.hanging("one") and time.monotonic() < ends_at:
        time.sleep(0.005)
    assert isolation.run("one", 5, lambda: passed("fine")).status is TraitStatus.PASS
