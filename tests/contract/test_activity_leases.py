"""Leases of activities: found in an index that has keys only and may lag, and decided by the rows."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.durable.engine.activity_store import Activities
from headgate.durable.model.records import WATCH, Activity, activity_of
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import ACTIVITIES
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import Eventually, items_of, pages_of

TABLES = (ACTIVITIES,)
CLAIM = Activity(
    activity_id="order-7#1#000001",
    name="charge",
    input='{"text":"a long one"}',
    options='{"start_to_close":5.0}',
    token="t1",
    scheduled_at_ms=0,
    execution_id="order-7",
    run=1,
    seq=1,
    attempt=1,
    lease_pk="wrk_dead",
    lease_expires_ms=1,
    worker="wrk_dead",
)


def activities_of(store: Store, clock: VirtualClock, worker_id: str = "wrk_here") -> Activities:
    return Activities(store, clock, IdMaker(clock), worker_id=lambda: worker_id, draw=lambda: 0.5)


def await_index(store: Store, eventually: Eventually, partition: str) -> None:
    """Return once the index shows a lease."""
    query = Query(table=ACTIVITIES, index="lease-index", partition=partition)
    eventually(lambda: items_of(pages_of(store, query)), lambda found: len(found) == 1)


def stored(store: Store) -> Activity:
    item = store.get(ACTIVITIES, Key(CLAIM.activity_id), consistent=True)
    assert item is not None
    return activity_of(item)


def test_reclaim__claims_of_a_dead_worker__are_queued_whole(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    store.transact([CLAIM.put()])
    await_index(store, eventually, "wrk_dead")

    assert activities_of(store, clock).reclaim("wrk_dead") == 1

    row = stored(store)
    assert (row.queue_pk, row.lease_pk, row.input) == ("Q#default", None, CLAIM.input)


def test_reclaim__index_that_shows_a_claim_of_before__leaves_the_claim_of_another_worker(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    store.transact([CLAIM.put()])
    await_index(store, eventually, "wrk_dead")
    theirs = replace(CLAIM, token="t2", lease_pk="wrk_other", worker="wrk_other")
    store.transact([theirs.put("t1")])

    activities_of(store, clock).reclaim("wrk_dead")

    assert stored(store) == theirs


def test_held__claims_of_this_worker__have_their_tokens(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    store.transact([CLAIM.put()])
    await_index(store, eventually, "wrk_dead")
    activities = activities_of(store, clock, "wrk_dead")

    [held] = activities.held()

    assert held == (CLAIM.activity_id, "t1")
    assert activities.held_rows([held]) == [CLAIM]
    assert activities.held_rows([held._replace(token="t0")]) == [None]


def test_overdue__unclaimed_by_a_worker__is_found_with_its_limit(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    external = replace(CLAIM, lease_pk=WATCH, is_external=True)
    store.transact([external.put()])
    await_index(store, eventually, WATCH)

    [(found, limit)] = activities_of(store, clock).overdue()

    assert (found, limit.value) == (external, "start_to_close")
