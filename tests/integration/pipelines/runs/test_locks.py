"""Who alone may work on a period, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import ConflictError, StaleClaimError
from headgate.pipelines.definition.model import Monitoring, Pipeline, PostRun, Readiness, RetryPolicy, TriggerSpec
from headgate.pipelines.runs.locks import MARGIN_SECONDS, Lock, evaluation_key, held, lifetime_seconds
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Check, Put
from headgate.store.model.schema import Key
from tests.unit.pipelines.run_rig import EVENT, HOUR, SLOT, Rig, at_once, opened_rig

KEY = evaluation_key(SLOT)
MINE = Put(PIPELINES, {"PK": "PIPELINE#orders", "SK": "NOTE"})
NEVER = Check(PIPELINES, Key("PIPELINE#nobody", "CONFIG"), exists())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def test_acquire__no_one_has_it__takes_it_under_the_key_of_the_catalogue(rig: Rig) -> None:
    lock = rig.lock("exec-1")

    assert KEY == "eval:orders:daily:2026-03-03"
    item = rig.item(f"LOCK#{KEY}", "LOCK")
    assert item is not None
    assert item["owner"] == "exec-1"
    assert item["token"] == lock.token
    assert item["ttl"] == int(rig.clock.seconds() + HOUR)


def test_acquire__someone_else_has_it__is_refused_and_writes_nothing(rig: Rig) -> None:
    rig.lock("exec-1")

    assert rig.locks.acquire(KEY, "exec-2", HOUR, also=[EVENT]) is None
    assert not rig.is_notified()


def test_acquire__by_many_at_once__is_won_by_one(rig: Rig) -> None:  # bug 18
    outcomes = at_once(8, lambda number: rig.locks.acquire(KEY, f"exec-{number}", HOUR))

    winners = [each for each in outcomes if isinstance(each, Lock)]
    assert len(winners) == 1
    assert outcomes.count(None) == 7
    assert rig.locks.find(KEY) == winners[0]


def test_acquire__again_by_who_has_it__is_the_same_hold_and_kept_longer(rig: Rig) -> None:
    first = rig.lock("exec-1")
    rig.clock.advance(600)

    again = rig.locks.acquire(KEY, "exec-1", HOUR, also=[EVENT])

    assert again is not None
    assert again.token == first.token
    assert again.expires_at == first.expires_at + 600
    assert not rig.is_notified()


def test_acquire__what_comes_with_it_is_refused__takes_nothing(rig: Rig) -> None:
    with pytest.raises(ConflictError):
        rig.locks.acquire(KEY, "exec-1", HOUR, also=[NEVER])

    assert rig.locks.find(KEY) is None


@pytest.mark.parametrize(("passed_seconds", "is_free"), [(0, False), (HOUR - 1, False), (HOUR, True), (HOUR + 1, True)])
def test_acquire__as_time_passes__is_possible_once_the_other_has_run_out_and_not_before(  # D28
    rig: Rig, passed_seconds: float, is_free: bool
) -> None:
    rig.lock("exec-1")
    rig.clock.advance(passed_seconds)

    assert (rig.locks.acquire(KEY, "exec-2", HOUR) is not None) == is_free


def test_release__by_its_holder__frees_it_at_once(rig: Rig) -> None:  # bug 17
    lock = rig.lock("exec-1")

    # The execution could not be started: the holder releases the lock.
    assert rig.locks.release(KEY, lock.token, also=[EVENT])

    assert rig.is_notified()
    assert rig.locks.acquire(KEY, "exec-2", HOUR) is not None


def test_release__after_a_pause_in_which_another_took_it__leaves_it_to_the_other(rig: Rig) -> None:  # bug 21
    paused = rig.lock("exec-1")
    rig.clock.advance(HOUR + 1)
    other = rig.lock("exec-2")

    assert not rig.locks.release(KEY, paused.token, also=[EVENT])

    assert rig.locks.find(KEY) == other
    assert not rig.is_notified()


def test_release__of_an_earlier_hold_of_the_same_execution__leaves_the_present_one(rig: Rig) -> None:  # bug 21
    first = rig.lock("exec-1")
    rig.unlock(first)
    second = rig.lock("exec-1")

    assert not rig.locks.release(KEY, first.token)
    assert rig.locks.find(KEY) == second


def test_release__after_its_expiry_and_the_clock_is_set_back__stays_free(rig: Rig) -> None:
    expired = rig.lock("exec-1")
    rig.clock.step(HOUR + 1)

    is_released = rig.locks.release(KEY, expired.token)
    rig.clock.step(-HOUR)

    assert not is_released
    assert rig.locks.find(KEY) is None


def test_release__twice__is_false_the_second_time_and_no_error(rig: Rig) -> None:  # bug 29
    lock = rig.lock("exec-1")

    assert rig.locks.release(KEY, lock.token)
    assert not rig.locks.release(KEY, lock.token)


def test_release__what_comes_with_it_is_refused__keeps_it(rig: Rig) -> None:
    lock = rig.lock("exec-1")

    with pytest.raises(ConflictError):
        rig.locks.release(KEY, lock.token, also=[NEVER])

    assert rig.locks.find(KEY) == lock


def test_release_owned__without_the_token__frees_only_what_is_ones_own(rig: Rig) -> None:
    rig.lock("exec-1")

    assert not rig.locks.release_owned(KEY, "exec-2")
    assert rig.locks.release_owned(KEY, "exec-1")
    assert rig.locks.find(KEY) is None


def test_renew__in_time__keeps_it_from_others(rig: Rig) -> None:  # bug 22
    lock = rig.lock("exec-1")
    rig.clock.advance(HOUR - 1)

    renewed = rig.locks.renew(lock, HOUR)
    rig.clock.advance(HOUR - 1)

    assert rig.locks.acquire(KEY, "exec-2", HOUR) is None
    assert rig.locks.find(KEY) == renewed


def test_renew__for_less_than_is_left__shortens_nothing(rig: Rig) -> None:
    lock = rig.lock("exec-1")

    assert rig.locks.renew(lock, 1).expires_at == lock.expires_at


def test_renew__with_what_was_read_before_another_renewal__keeps_the_later_end(rig: Rig) -> None:
    lock = rig.lock("exec-1")
    longer = rig.locks.renew(lock, 3 * HOUR)

    assert rig.locks.renew(lock, 2 * HOUR).expires_at == longer.expires_at


@pytest.mark.parametrize("is_taken", [True, False])
def test_renew__once_it_ran_out__never_brings_it_back(rig: Rig, is_taken: bool) -> None:
    lock = rig.lock("exec-1")
    rig.clock.advance(HOUR)
    other = rig.lock("exec-2") if is_taken else None

    with pytest.raises(StaleClaimError, match="exec-2" if is_taken else "no one"):
        rig.locks.renew(lock, HOUR)

    assert rig.locks.find(KEY) == other


def test_held__while_it_lasts__lets_writes_pass_and_refuses_them_afterwards(rig: Rig) -> None:
    lock = rig.lock("exec-1")
    rig.store.transact([held(KEY, lock.token), MINE])
    rig.clock.advance(HOUR)

    with pytest.raises(ConflictError):
        rig.store.transact([held(KEY, lock.token), EVENT])

    assert not rig.is_notified()


def test_locks__of_other_periods__are_other_locks(rig: Rig) -> None:
    rig.lock("exec-1")

    for slot in (SLOT._replace(date="2026-03-04"), SLOT._replace(schedule_id="h07"), SLOT._replace(pipeline_id="p")):
        assert rig.locks.acquire(evaluation_key(slot), "exec-2", HOUR) is not None


def test_lifetime_seconds__of_any_definition__outlives_one_attempt_of_its_execution() -> None:  # bug 22
    plain = Pipeline(id="p", trigger=TriggerSpec(type="http"))
    slow = Pipeline(
        id="p",
        readiness=Readiness(window=Seconds(7_200), interval=Seconds(600)),
        trigger=TriggerSpec(type="http", poll_window=Seconds(86_400)),
        retry=RetryPolicy(backoff_max=Seconds(900)),
        post_run=PostRun(monitoring=Monitoring(enabled=True, duration=Seconds(10_800))),
    )

    for pipeline, at_least in ((plain, 3_600 + 3_600), (slow, 7_200 + 86_400 + 10_800)):
        longest_wait = pipeline.retry.backoff_max
        assert lifetime_seconds(pipeline) >= at_least + longest_wait + MARGIN_SECONDS
