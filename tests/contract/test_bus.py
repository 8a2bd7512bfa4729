"""The bus means the same on every backend, also where indexes lag."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest

from headgate.clock import VirtualClock
from headgate.durable.bus import events
from headgate.durable.bus.bus import Bus, Filter, Subscription, dead_letter
from headgate.durable.bus.events import Event
from headgate.durable.model.failures import describe
from headgate.durable.model.records import Activity, activity_of
from headgate.errors import ConflictError, NotFoundError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import ACTIVITIES, CONTROL, EVENTS, IDEMPOTENCY, SUBSCRIPTIONS
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import AnyStore, Eventually, OpenStore

TABLES: Final = (ACTIVITIES, CONTROL, EVENTS, IDEMPOTENCY, SUBSCRIPTIONS)
ORDERS: Final = Subscription(name="orders", types=("order.*",), filter=Filter(data={"paid": True}))
PAID: Final = Event(type="order.created", data={"paid": True})


@pytest.fixture
def bus(store: AnyStore, clock: VirtualClock) -> Bus:
    made = Bus(store, clock, IdMaker(clock))
    made.register([ORDERS], "shop")
    return made


def waiting(store: Store) -> list[str]:
    query = Query(table=ACTIVITIES, index="queue-index", partition="Q#default", limit=1000)
    return sorted(str(item["activity_id"]) for item in store.query(query).items)


def delivery(store: Store, activity_id: str) -> Activity | None:
    item = store.get(ACTIVITIES, Key(activity_id), consistent=True)
    return None if item is None else activity_of(item)


def fail_for_good(store: Store, clock: VirtualClock, activity_id: str) -> None:
    found = delivery(store, activity_id)
    assert found is not None
    letter = dead_letter(found, describe(ValueError("no")), int(clock.seconds() * 1000))
    store.transact([found.ended(), *letter])


def test_emit__an_event__is_kept_delivered_and_found_again(bus: Bus, store: AnyStore, eventually: Eventually) -> None:
    event_id = bus.emit(PAID)
    bus.emit(Event(type="order.created", data={"paid": False}))

    stored = bus.get(event_id)
    assert stored is not None
    assert stored.event.data == {"paid": True}
    eventually(lambda: waiting(store), lambda found: found == [f"orders#{event_id}"])
    eventually(lambda: bus.tail(type="order.created"), lambda found: len(found) == 2)
    assert next(each.event_id for each in bus.tail()) == event_id
    assert [each.event.data for each in bus.tail(event_id)] == [{"paid": False}]


def test_emit__by_another_process__reaches_what_this_one_registered(
    bus: Bus, open_store: OpenStore, clock: VirtualClock, eventually: Eventually
) -> None:
    other = Bus(open_store(), clock, IdMaker(clock))
    eventually(other.refresh, lambda found: [each.subscription for each in found] == [ORDERS])

    event_id = other.emit(PAID)

    assert delivery(open_store(), f"orders#{event_id}") is not None


def test_emit__the_same_source_and_id_again__changes_nothing(bus: Bus, store: AnyStore) -> None:
    event = Event(type="order.created", source="/shop", id="A-1", data={"paid": True})
    event_id = bus.emit(event)
    first = delivery(store, f"orders#{event_id}")
    assert first is not None
    store.transact([first.ended()])

    assert bus.emit(event) == event_id
    assert bus.emit_many([event, event]) == [event_id, event_id]

    assert delivery(store, f"orders#{event_id}") is None


def test_emit__an_event_of_ours_that_comes_back__changes_nothing(bus: Bus, store: AnyStore) -> None:
    event_id = bus.emit(PAID)
    first = delivery(store, f"orders#{event_id}")
    assert first is not None
    store.transact([first.ended()])

    assert bus.emit(events.parse(first.input)) == event_id

    assert delivery(store, f"orders#{event_id}") is None


def test_emit__a_large_event_to_many_subscriptions__reaches_each_of_them_whole(bus: Bus, store: AnyStore) -> None:
    names = [f"s{number:03d}" for number in range(100)]
    bus.register([Subscription(name=name, types=("batch.done",)) for name in names], "shop")
    small = bus.emit(Event(type="batch.done", data="x"))
    assert all(delivery(store, f"{name}#{small}") is not None for name in names)

    large = bus.emit(Event(type="batch.done", data="x" * 350_000))

    for name in names[::9]:
        found = delivery(store, f"{name}#{large}")
        assert found is not None
        assert len(events.load(found.input).data) == 350_000
    assert store.get(CONTROL, Key(f"DELIVERIES#{large}", "REST"), consistent=True) is None


def test_sweep__deliveries_that_were_left__are_made_once(
    bus: Bus, store: AnyStore, clock: VirtualClock, eventually: Eventually
) -> None:
    names = [f"s{number}" for number in range(5)]
    bus.register([Subscription(name=name, types=("t",)) for name in names], "shop")
    event = Event(type="t", id="1")
    store.transact(bus.event_writes(event, int(clock.seconds() * 1000), deliveries_max=2))

    made: list[int] = []
    eventually(lambda: made.append(bus.sweep()), lambda _: sum(made) == 3)

    assert len(eventually(lambda: waiting(store), lambda found: len(found) == 5)) == 5
    assert bus.sweep() == 0


def test_event_writes__the_same_again__is_refused_by_the_first_write(
    bus: Bus, store: AnyStore, clock: VirtualClock
) -> None:
    now_ms = int(clock.seconds() * 1000)
    store.transact(bus.event_writes(Event(type="t", id="1"), now_ms))

    with pytest.raises(ConflictError) as caught:
        store.transact(bus.event_writes(Event(type="t", id="1"), now_ms))

    assert caught.value.write_index == 0


def test_dead_letters__redelivered_or_thrown_away__are_gone(
    bus: Bus, store: AnyStore, clock: VirtualClock, eventually: Eventually
) -> None:
    kept, lost = bus.emit(PAID), bus.emit(PAID)
    fail_for_good(store, clock, f"orders#{kept}")
    fail_for_good(store, clock, f"orders#{lost}")
    assert [letter.event_id for letter in bus.dead_letters("orders").letters] == [kept, lost]
    eventually(lambda: bus.dead_letters().letters, lambda found: [each.event_id for each in found] == [kept, lost])

    bus.redeliver("orders", kept)
    with pytest.raises(NotFoundError):
        bus.redeliver("orders", kept)
    assert bus.purge("orders") == 1

    assert delivery(store, f"orders#{kept}") is not None
    assert bus.dead_letters("orders").letters == []


def test_retire__a_subscription__ends_its_deliveries(bus: Bus, store: AnyStore) -> None:
    bus.retire("orders")
    bus.retire("orders")

    event_id = bus.emit(PAID)

    assert delivery(store, f"orders#{event_id}") is None
    assert bus.subscription("orders").retired_at is not None


def test_replay__a_stretch_of_time__delivers_again_and_once(bus: Bus, store: AnyStore, clock: VirtualClock) -> None:
    since = clock.now()
    emitted = bus.emit_many([PAID] * 120)
    clock.advance(60)
    until = clock.now()

    assert bus.replay("orders", since=since, until=until, replay_id="r1") == 120
    assert bus.replay("orders", since=since, until=until, replay_id="r1") == 120
    assert bus.replay("orders", since=since + timedelta(seconds=1), until=until, replay_id="r2") == 0

    assert all(delivery(store, f"orders#{event_id}#r1") is not None for event_id in emitted)
