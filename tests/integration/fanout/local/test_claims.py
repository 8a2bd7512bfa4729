"""Claims: chunks are taken from the rows themselves, by one worker each, in their order and within limits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import OutcomeUnknownError, StoreBusyError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.tracking import Claim
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.rows import run_key, timestamp_ms
from headgate.fanout.model.states import Disposition
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from tests.fanout_books import RUN, Shop, places
from tests.simulation.durable_processes import Fault, ProcessStore

BOOM = AttemptFailure("ValueError", "boom")


@pytest.fixture(params=[1, 16], ids=["one counter", "sixteen counters"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop.open(tmp_path, shards=request.param)
    yield shop
    for fanout in shop.queries.by_group("g").fanouts:
        shop.check(fanout.run_id)
    shop.store.close()


def names(claims: list[Claim]) -> list[str]:
    return [claim.chunk.chunk_id for claim in claims]


def test_take__so_many__in_the_order_of_their_items(shop: Shop) -> None:
    shop.split(list(range(150)))

    claims = shop.claims("me").take(120, {})

    assert sorted(names(claims)) == places(120)
    assert {claim.chunk.worker for claim in claims} == {"me"}
    assert len({claim.chunk.token for claim in claims}) == 120
    assert shop.counts().running == 120


@pytest.mark.parametrize("room", [0, -1])
def test_take__no_room__nothing(shop: Shop, room: int) -> None:
    shop.split([1])

    assert shop.claims().take(room, {}) == []


def test_take__what_is_there__no_more_than_that(shop: Shop) -> None:
    claims = shop.claims()
    assert claims.take(5, {}) == []
    shop.split([1, 2])
    claims.refresh()

    assert len(claims.take(5, {})) == 2
    assert claims.take(5, {}) == []


def test_take__the_lease__is_the_workers_own_or_the_policys(shop: Shop) -> None:
    shop.split([1, 2], timeout_seconds=77)

    (own,) = shop.claims(lease_seconds=5.0).take(1, {})
    (policy,) = shop.claims().take(1, {})

    assert timestamp_ms(own.chunk.lease_expires_at or "") == shop.now_ms() + 5_000
    assert timestamp_ms(policy.chunk.lease_expires_at or "") == shop.now_ms() + 77_000


def test_take__chunks_that_have_to_wait__not_before_their_time(shop: Shop) -> None:
    shop.split([1, 2], backoff_seconds=10, max_attempts=5)
    claims = shop.claims()
    for claim in claims.take(2, {}):
        shop.tracker.fail(claim, BOOM)
    assert claims.take(2, {}) == []
    assert claims.next_due_ms() == shop.now_ms() + 10_000

    shop.clock.advance(9.999)
    assert claims.take(2, {}) == []
    shop.clock.advance(0.002)
    assert len(claims.take(2, {})) == 2
    assert claims.next_due_ms() is None


def test_take__a_lane__only_its_own(shop: Shop) -> None:
    shop.split(list(range(4)), size=2)
    first, second = shop.claims().take(2, {})
    shop.tracker.complete(first, AttemptResult(deferred=[first.chunk.start]))
    shop.tracker.complete(second, AttemptResult())

    assert shop.claims().take(5, {}) == []
    (slow,) = shop.claims(lane="slow").take(5, {})
    assert (slow.chunk.lane, slow.chunk.items) == ("slow", 1)


def test_take__paused_or_cancelled_since_the_list_was_read__none(shop: Shop) -> None:
    """Once `pause` has returned, no worker begins another chunk, however old the list it goes by."""
    for steer in (shop.control.pause, shop.control.cancel):
        run_id = steer.__name__
        shop.split(list(range(5)), run_id=run_id)
        claims = shop.claims()
        assert len(claims.take(1, {})) == 1
        steer(run_id)

        assert claims.take(5, {}) == []
        assert shop.counts(run_id).running == 1
        shop.clock.advance(10)
        assert claims.take(5, {}) == []


def test_take__resumed__goes_on(shop: Shop) -> None:
    shop.split(list(range(5)))
    claims = shop.claims()
    shop.control.pause(RUN)
    assert claims.take(5, {}) == []

    shop.control.resume(RUN)
    claims.refresh()
    assert len(claims.take(5, {})) == 5


def test_take__only_what_is_wanted(shop: Shop) -> None:
    shop.split([1], run_id="one")
    shop.split([1], run_id="two")

    claims = shop.claims(wanted=lambda fanout: fanout.run_id == "two").take(5, {})

    assert [claim.chunk.run_id for claim in claims] == ["two"]


def test_take__several_fan_outs__by_their_priorities_and_what_runs_here(shop: Shop) -> None:
    shop.split(list(range(50)), run_id="high", priority=9)
    shop.split(list(range(50)), run_id="low", priority=3)

    first = Counter(claim.chunk.run_id for claim in shop.claims().take(12, {}))
    assert first == {"high": 9, "low": 3}
    rest = Counter(claim.chunk.run_id for claim in shop.claims().take(8, {"high": 9, "low": 0}))
    assert rest == {"high": 4, "low": 4}


def test_take__more_fan_outs_than_a_page_and_all_but_the_last_are_paused__that_one_is_found(tmp_path: Path) -> None:
    shop = Shop.open(tmp_path)
    for number in range(1_005):
        shop.split([1], run_id=f"run-{number:04d}")
        shop.clock.advance(0.001)
        if number < 1_004:
            shop.store.update(FANOUT, run_key(f"run-{number:04d}"), set={"paused_at": "2026-01-01T00:00:00.000Z"})
    shop.clock.advance(1)

    claims = shop.claims().take(5, {})

    assert [claim.chunk.run_id for claim in claims] == ["run-1004"]
    shop.store.close()


# Limits.


def test_take__with_a_limit__never_more_than_that_run_at_once(shop: Shop) -> None:
    shop.split(list(range(20)), concurrency=3, max_attempts=1)
    workers = [shop.claims(f"w{number}") for number in range(4)]
    held = [claim for worker in workers for claim in worker.take(5, {})]
    assert len(held) == 3

    shop.tracker.complete(held[0], AttemptResult())
    shop.tracker.fail(held[1], BOOM)
    assert len([claim for worker in workers for claim in worker.take(5, {})]) == 2
    assert shop.counts().running == 3


def test_take__with_a_limit_and_others_at_the_same_time__is_kept_to(tmp_path: Path) -> None:
    shop = Shop.open(tmp_path)
    shop.split(list(range(200)), concurrency=7)
    taken: list[str] = []
    ready = threading.Barrier(6)

    def work(number: int) -> None:
        claims = Claims(shop.store, shop.clock, IdMaker(shop.clock), worker=f"w{number}")
        ready.wait(10)
        for _ in range(10):
            taken.extend(claim.chunk.chunk_id for claim in claims.take(5, {}))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    counts = shop.counts()
    assert 1 <= counts.running <= 7
    assert sorted(taken) == sorted(
        chunk.chunk_id for chunk in shop.books().main if chunk.disposition is Disposition.RUNNING
    ), "whoever has claimed a chunk must know of it"
    shop.check()
    shop.store.close()


def test_take__a_limit_of_hundreds_that_others_fill_meanwhile__no_claim_is_forgotten(tmp_path: Path) -> None:
    """The claims take several transactions, of which some pass and one does not."""
    shop = Shop.open(tmp_path)
    shop.split(list(range(600)), concurrency=250)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    claims = Claims(store, shop.clock, shop.ids, worker="slow")
    others: list[Claim] = []
    store.meanwhile = (4, lambda: others.extend(shop.claims("quick").take(100, {})))

    mine = claims.take(250, {})

    assert len(others) == 100
    running = {chunk.chunk_id: chunk.worker for chunk in shop.books().main if chunk.worker}
    assert sorted(names(mine)) == sorted(name for name, worker in running.items() if worker == "slow")
    assert len(running) <= 250
    shop.check()
    shop.store.close()


# Crowds.


def test_take__many_workers_at_once__each_chunk_is_one_workers(shop: Shop) -> None:
    shop.split(list(range(300)))
    taken: list[tuple[str, str]] = []
    ready = threading.Barrier(6)

    def work(number: int) -> None:
        claims = Claims(shop.store, shop.clock, IdMaker(shop.clock), worker=f"w{number}")
        ready.wait(10)
        misses = 0
        while misses < 3:
            found = claims.take(10, {})
            misses = 0 if found else misses + 1
            taken.extend((claim.chunk.chunk_id, f"w{number}") for claim in found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(chunk_id for chunk_id, _ in taken) == places(300)
    assert dict(taken) == {chunk.chunk_id: chunk.worker for chunk in shop.books().main}


def test_take__others_were_quicker__looks_elsewhere_and_gets_the_rest(shop: Shop) -> None:
    shop.split(list(range(50)))
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    late = Claims(store, shop.clock, shop.ids, worker="late", draw=lambda: 0.5)
    stolen: list[Claim] = []
    store.meanwhile = (3, lambda: stolen.extend(shop.claims("quick").take(10, {})))

    first = late.take(10, {})
    got = [*first]
    for _ in range(20):
        got += late.take(10, {})

    assert len(stolen) == 10
    assert len(got) == 40
    assert set(names(got)).isdisjoint(names(stolen))


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
def test_take__the_store_is_busy__nothing_is_counted_twice(shop: Shop, is_done: bool) -> None:
    shop.split(list(range(3)), timeout_seconds=10, max_attempts=3)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    claims = Claims(store, shop.clock, shop.ids, worker="w")
    store.fault = Fault(3, crash=False, is_done=is_done)

    try:
        claims.take(3, {})
    except (OutcomeUnknownError, StoreBusyError):
        shop.check()
    # A worker in doubt lets the lease expire.
    shop.clock.advance(11)
    shop.maintenance.run_once()
    shop.clock.advance(11)
    claims.refresh()
    assert len(claims.take(3, {})) == 3
    assert shop.counts().running == 3
