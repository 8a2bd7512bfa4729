"""The bus: who receives what, what is durable when `emit` returns, and what becomes of failures."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from headgate.clock import VirtualClock
from headgate.durable.bus import event_log, events
from headgate.durable.bus.bus import Bus, Filter, Subscription, dead_letter, matches
from headgate.durable.bus.events import Event
from headgate.durable.bus.replays import ReplayStatus
from headgate.durable.bus.subscriptions import RETRY_DEFAULT, HandlerSignature
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.observer import NullObserver
from headgate.durable.model.records import Activity, activity_of
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.app import App
from headgate.errors import (
    ConflictError,
    DefinitionError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    PayloadTooLargeError,
    TokenReusedError,
    UserError,
)
from headgate.ids import IdMaker, made_at_ms
from headgate.store.catalogue.tables import ACTIVITIES, CONTROL, EXECUTIONS
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.store.sqlite.store import SqliteStore
from headgate.testing import Environment
from tests.simulation.durable_processes import ProcessStore
from tests.stores import open_sqlite

DAY: Final = 86_400.0
DIED: Final = 77
ORDERS: Final = Subscription(name="orders", types=("order.*",))
EVENT: Final = Event(type="order.created", data={"id": 17})


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def bus(store: SqliteStore, clock: VirtualClock) -> Bus:
    made = new_bus(store, clock)
    made.register([ORDERS], "shop")
    return made


def new_bus(store: Store, clock: VirtualClock) -> Bus:
    """One more bus on the same data, as another process has."""
    return Bus(store, clock, IdMaker(clock))


def deliveries(store: Store, queue: str = "default") -> list[Activity]:
    """Every delivery that waits, read as workers find them."""
    query = Query(table=ACTIVITIES, index="queue-index", partition=f"Q#{queue}", limit=1000)
    found: list[Activity] = []
    while True:
        page = store.query(query)
        found += map(activity_of, page.items)
        if page.cursor is None:
            return found
        query = msgspec.structs.replace(query, cursor=page.cursor)


def succeed(store: Store) -> None:
    for activity in deliveries(store):
        store.transact([activity.ended()])


def fail_for_good(store: Store, clock: VirtualClock, error: BaseException, attempt: int = 8) -> None:
    """End every delivery that waits as a worker does after its last attempt."""
    for activity in deliveries(store):
        tried = msgspec.structs.replace(activity, attempt=attempt)
        now_ms = int(clock.seconds() * 1000)
        store.transact([tried.ended(), *dead_letter(tried, describe(error), now_ms)])


def undelivered(store: Store) -> list[dict[str, Any]]:
    return store.query(Query(table=CONTROL, index="due-index", partition="DELIVERIES")).items


# Matching.


@pytest.mark.parametrize(
    ("types", "name", "is_wanted"),
    [
        (("order.created",), "order.created", True),
        (("order.created",), "order.created.late", False),
        (("order.created",), "order.create", False),
        (("order.*",), "order.created", True),
        (("order.*",), "order.line.added", True),
        (("order.*",), "order", False),
        (("order.*",), "order.", True),
        (("order.*",), "orders.created", False),
        (("*",), "anything at all", True),
        (("user.*", "order.created"), "order.created", True),
        (("Order.created",), "order.created", False),
    ],
)
def test_matches__types__whole_names_beginnings_or_all(types: tuple[str, ...], name: str, is_wanted: bool) -> None:
    assert matches(Subscription(name="s", types=types), Event(type=name)) is is_wanted


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (Filter(), True),
        (Filter(source="/shop/7"), True),
        (Filter(source="/shop"), False),
        (Filter(source="/shop/*"), True),
        (Filter(source="/store/*"), False),
        (Filter(subject="orders/17"), True),
        (Filter(subject="orders/*"), True),
        (Filter(subject=""), False),
        (Filter(data={"status": "paid"}), True),
        (Filter(data={"status": "open"}), False),
        (Filter(data={"lines.1.sku": "b"}), True),
        (Filter(data={"lines.2.sku": "b"}), False),
        (Filter(data={"lines.sku": "b"}), False),
        (Filter(data={"count": 1}), True),
        (Filter(data={"count": True}), False),
        (Filter(data={"count": 1.0}), True),
        (Filter(data={"note": None}), True),
        (Filter(data={"missing": None}), False),
        (Filter(data={"status.deeper": None}), False),
        (Filter(source="/shop/*", subject="orders/*", data={"status": "paid", "count": 1}), True),
        (Filter(source="/shop/*", subject="orders/*", data={"status": "paid", "count": 2}), False),
    ],
)
def test_matches__filter__all_that_is_given_must_hold(wanted: Filter, is_wanted: bool) -> None:
    data = {"status": "paid", "count": 1, "note": None, "lines": [{"sku": "a"}, {"sku": "b"}]}
    event = Event(type="t", source="/shop/7", id="1", subject="orders/17", data=data)
    subscription = Subscription(name="s", types=("t",), filter=wanted)

    assert matches(subscription, event) is is_wanted
    assert matches(subscription, events.parse(events.dump(event))) is is_wanted


class Polls(NullObserver):
    def __init__(self) -> None:
        self.count = 0

    def on_work_stored(self) -> None:
        self.count += 1


def test_on_committed__events_without_a_subscription__requests_no_poll(store: SqliteStore, clock: VirtualClock) -> None:
    polls = Polls()
    bus = Bus(store, clock, IdMaker(clock), observer=polls)
    bus.register([ORDERS], "shop")
    now_ms = int(clock.seconds() * 1000)
    store.transact(bus.event_writes(Event(id="e-1", type="stock.counted"), now_ms))
    bus.on_committed()
    bus.emit(Event(type="stock.counted"))
    assert polls.count == 0

    store.transact(bus.event_writes(Event(id="e-2", type="order.created"), now_ms))
    # Another caller may report a commit between the writes of a delivery and their commit: both request a poll.
    bus.on_committed()
    bus.on_committed()
    assert polls.count == 2

    clock.advance(60)
    bus.on_committed()
    assert polls.count == 2


def test_matches__a_filter_on_data_that_is_not_an_object__is_no_match() -> None:
    subscription = Subscription(name="s", types=("*",), filter=Filter(data={"a": 1}))

    assert not any(matches(subscription, Event(type="t", data=data)) for data in (None, 5, "a", b"a", [1]))


def test_matches__an_event_that_another_service_forwarded__is_wanted_whatever_its_source() -> None:
    forwarded = Event(type="order.created", source="https://other.example/service", id="1")

    assert matches(ORDERS, forwarded)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: Subscription(name="a#b", types=("t",)), "subscription 'a#b'"),
        (lambda: Subscription(name="s", types=()), "no type of event"),
        (lambda: Subscription(name="s", types=("a*",)), "event type 'a*'"),
        (lambda: Subscription(name="s", types=("*.created",)), "event type '*.created'"),
        (lambda: Subscription(name="s", types=("a.*.b",)), "event type 'a.*.b'"),
        (lambda: Subscription(name="s", types=(".*",)), "event type ''"),
        (lambda: Subscription(name="s", types=("t",), queue="a b"), "queue 'a b'"),
        (lambda: Subscription(name="s", types=("t",), start_to_close=0.0), "start_to_close 0.0"),
        (lambda: Subscription(name="s", types=("t",), forward_to="ftp://x"), "forward_to 'ftp://x'"),
        (lambda: Subscription(name="s", types=("t",), forward_to="https://a:b@x/"), "forward_to"),
        (lambda: Subscription(name="s", types=("t",), forward_to="https:///path"), "forward_to"),
        (lambda: Subscription(name="s", types=("t",), forward_to="https://x/a b"), "forward_to"),
        (lambda: Subscription(name="s", types=("t",), filter=Filter(data={"a..b": 1})), "filter 'a..b'"),
        (lambda: Subscription(name="s", types=("t",), filter=Filter(data={"a": [1]})), "filter 'a'"),
    ],
)
def test_subscription__what_cannot_be_meant__is_refused(declare: Callable[[], Subscription], said: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        declare()

    assert said in str(caught.value)


def test_subscription__by_default__is_tried_eight_times_with_delays_that_grow_to_an_hour() -> None:
    delays = [RETRY_DEFAULT.delay_seconds(attempt, 1.0) for attempt in range(1, 8)]
    error = ErrorInfo("Boom", "")

    assert delays == [1, 4, 16, 64, 256, 1024, 3600]
    assert [RETRY_DEFAULT.again(attempt, error) for attempt in (1, 7, 8)] == [True, True, False]


# Handlers.


def test_handler_signature__a_delivery__gives_the_whole_event_decoded() -> None:
    def handle(event: Event) -> None:
        """Take an event."""

    def ring() -> None:
        """Receive only that there was one."""

    event = Event(type="t", source="/s", id="1", data=b"\x00\xff", datacontenttype="image/png", extensions={"x": "y"})
    raw = msgspec.Raw(events.dump(event).encode())

    assert HandlerSignature.of(handle).unpack(raw, what="delivery") == ((event,), {})
    assert HandlerSignature.of(ring).unpack(raw, what="delivery") == ((), {})
    with pytest.raises(InvalidPayloadError, match="delivery of orders: event"):
        HandlerSignature.of(handle).unpack(msgspec.Raw(b"{}"), what="delivery of orders")


@pytest.mark.parametrize("is_async", [True, False])
def test_handler__that_raises__is_tried_again_with_growing_delays_and_then_a_dead_letter(is_async: bool) -> None:
    app = App("shop")
    tried_at: list[float] = []

    def fail(event: Event) -> None:
        tried_at.append(environment.clock.seconds())
        raise ValueError(f"no {event.type}")

    async def fail_later(event: Event) -> None:
        fail(event)

    app.on_event("order.*", name="fails")(fail_later if is_async else fail)
    with Environment(app) as environment:
        environment.service.bus.emit(EVENT)
        environment.advance("3h")

        (letter,) = environment.service.bus.dead_letters("fails").letters
    delays = [after - before for before, after in pairwise(tried_at)]
    assert (letter.attempts, letter.error.message) == (8, "no order.created")
    assert len(delays) == 7
    assert all(0.8 * 4**number <= delay <= 4**number + 0.01 for number, delay in enumerate(delays[:6]))
    assert 0.8 * 3600 <= delays[6] <= 3600.01


def test_handler__of_an_event_that_another_service_sent__is_called() -> None:
    app = App("shop")
    seen: list[str] = []

    @app.on_event("order.*")
    def take(event: Event) -> None:
        seen.append(event.source)

    with Environment(app) as environment:
        environment.service.bus.emit(Event(type="order.created", source="https://other.example", id="1"))
        environment.advance("1s")

    assert seen == ["https://other.example"]


# Registration.


def test_register__by_one_process__is_known_to_another_within_two_seconds(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    other = new_bus(store, clock)
    assert [each.subscription for each in other.subscriptions()] == [ORDERS]
    users = Subscription(name="users", types=("user.*",))
    bus.register([users], "shop")

    clock.advance(1.9)
    assert [each.subscription for each in other.subscriptions()] == [ORDERS]
    assert users in [each.subscription for each in other.refresh()]
    clock.advance(2.0)
    assert users in [each.subscription for each in other.subscriptions()]


def test_register__in_this_process__is_in_force_for_the_next_event(bus: Bus, store: SqliteStore) -> None:
    bus.subscriptions()
    bus.register([Subscription(name="late", types=("order.created",))], "shop")

    bus.emit(EVENT)

    assert sorted(each.name for each in deliveries(store)) == ["late", "orders"]


def test_register__again__keeps_the_version_unless_something_changed(bus: Bus) -> None:
    bus.register([ORDERS], "shop")
    assert bus.subscription("orders").version == 1

    changed = msgspec.structs.replace(ORDERS, retry=Retry(attempts=2), filter=Filter(data={"a": 1}))
    bus.register([changed], "shop")

    assert bus.subscription("orders").version == 2
    assert bus.subscription("orders").subscription == changed


def test_register__a_name_of_another_app_or_twice__is_refused(bus: Bus) -> None:
    with pytest.raises(DefinitionError, match="it belongs to app 'shop'"):
        bus.register([ORDERS], "billing")
    with pytest.raises(DefinitionError, match="two of this name"):
        bus.register([Subscription(name="b", types=("t",)), Subscription(name="b", types=("u",))], "shop")

    assert [each.subscription.name for each in bus.refresh()] == ["orders"]


def test_register__by_many_processes_at_once__leaves_one_that_all_agree_on(
    store: SqliteStore, clock: VirtualClock
) -> None:
    failures: list[BaseException] = []

    def start() -> None:
        try:
            new_bus(store, clock).register([ORDERS], "shop")
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert [(each.subscription, each.version) for each in new_bus(store, clock).subscriptions()] == [(ORDERS, 1)]


def test_register__a_process_that_no_longer_declares_it__leaves_the_subscription_in_force(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    new_bus(store, clock).register([], "shop")

    bus.emit(EVENT)

    assert [each.name for each in deliveries(store)] == ["orders"]


def test_retire__a_subscription__ends_its_deliveries_until_an_app_declares_it_again(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    other = new_bus(store, clock)
    other.retire("orders")
    other.retire("orders")
    clock.advance(2.1)
    bus.emit(EVENT)
    assert deliveries(store) == []
    assert bus.subscription("orders").retired_at is not None

    other.register([ORDERS], "billing")
    clock.advance(2.1)
    bus.emit(EVENT)

    assert [each.name for each in deliveries(store)] == ["orders"]
    assert bus.subscription("orders").app == "billing"


def test_retire__one_that_is_not_there__is_said(bus: Bus) -> None:
    with pytest.raises(NotFoundError, match="subscription nobody"):
        bus.retire("nobody")
    with pytest.raises(NotFoundError, match="subscription nobody"):
        bus.subscription("nobody")


# Emitting.


def test_emit__an_event__is_kept_and_waits_for_its_subscription(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.register([Subscription(name="users", types=("user.*",))], "shop")

    event_id = bus.emit(EVENT)

    stored = bus.get(event_id)
    assert stored is not None
    assert stored.event == msgspec.structs.replace(EVENT, id=event_id, source="/headgate", time=clock.now())
    now_ms = int(clock.seconds() * 1000)
    (delivery,) = deliveries(store)
    assert delivery == Activity(
        activity_id=f"orders#{event_id}",
        name="orders",
        input=stored.body,
        options=delivery.options,
        token="0",
        scheduled_at_ms=now_ms,
        queue_pk="Q#default",
        available_at_ms=now_ms,
        subscription="orders",
    )
    assert msgspec.json.decode(delivery.options, type=ActivityOptions) == ActivityOptions(
        retry=RETRY_DEFAULT, start_to_close=300.0
    )


def test_emit__a_subscription_with_its_own_terms__is_delivered_on_them(bus: Bus, store: SqliteStore) -> None:
    retry = Retry(attempts=3, never=("ValueError",))
    bus.register([Subscription(name="slow", types=("*",), queue="heavy", retry=retry, start_to_close=None)], "shop")

    bus.emit(EVENT)

    (delivery,) = deliveries(store, "heavy")
    assert msgspec.json.decode(delivery.options, type=ActivityOptions) == ActivityOptions(queue="heavy", retry=retry)


def test_emit__with_an_id_of_the_producers__happens_once_a_day(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event = msgspec.structs.replace(EVENT, source="/shop", id="A-1")
    first = bus.emit(event)
    succeed(store)
    clock.advance(DAY - 1)

    again = new_bus(store, clock).emit(msgspec.structs.replace(event, data="another"))
    assert again == first
    assert deliveries(store) == []
    clock.advance(2)

    assert bus.emit(event) != first
    assert len(deliveries(store)) == 1


def test_emit__one_id_from_two_sources__are_two_events(bus: Bus, store: SqliteStore) -> None:
    bus.emit(msgspec.structs.replace(EVENT, source="/shop", id="1"))
    bus.emit(msgspec.structs.replace(EVENT, source="/shop1", id=""))
    bus.emit(msgspec.structs.replace(EVENT, source="/sho", id="p1"))

    assert len(deliveries(store)) == 3


def test_emit__an_event_that_comes_back_from_another_service__is_not_delivered_again(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    (delivery,) = deliveries(store)
    succeed(store)
    clock.advance(3 * DAY)

    assert bus.emit(events.parse(delivery.input)) == event_id
    assert bus.emit_many([events.parse(delivery.input)]) == [event_id]
    assert deliveries(store) == []
    bus.emit(msgspec.structs.replace(EVENT, id=event_id, source="/elsewhere"))
    assert len(deliveries(store)) == 1


def test_emit__the_same_event_from_many_threads__is_delivered_once(bus: Bus, store: SqliteStore) -> None:
    event = msgspec.structs.replace(EVENT, source="/shop", id="A-1")
    emitted: list[str] = []
    threads = [threading.Thread(target=lambda: emitted.append(bus.emit(event))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(emitted) == 16
    assert len(set(emitted)) == 1
    assert len(deliveries(store)) == 1


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (Event(type=""), InvalidPayloadError),
        (Event(type="order.*"), InvalidPayloadError),
        (Event(type="order.created", data=float("inf")), InvalidPayloadError),
        (Event(type="order.created", extensions={"Bad": "x"}), InvalidPayloadError),
        (Event(type="order.created", data="x" * 1_000_000), PayloadTooLargeError),
    ],
    ids=["no type", "a pattern", "no JSON", "bad extension", "too large"],
)
def test_emit__what_is_not_an_event__is_refused_and_leaves_nothing(
    bus: Bus, store: SqliteStore, event: Event, error: type[UserError]
) -> None:
    with pytest.raises(error):
        bus.emit(event)
    with pytest.raises(error):
        bus.emit_many([EVENT, event])

    assert bus.tail() == []
    assert deliveries(store) == []


def test_emit_many__with_some_that_were_sent_before__returns_the_ids_of_the_first(bus: Bus, store: SqliteStore) -> None:
    numbered = [Event(type="order.created", source="/shop", id=str(number), data=number) for number in range(120)]
    first = bus.emit_many(numbered[:60])

    assert bus.emit_many([*numbered, numbered[0]]) == [
        *first,
        *[
            stored.event_id
            for number in range(60, 120)
            for stored in bus.tail(limit=1000)
            if stored.event.data == number
        ],
        first[0],
    ]
    assert len(deliveries(store)) == 120


def test_emit_many__without_ids__makes_ids_that_sort_as_they_were_given(bus: Bus) -> None:
    emitted = bus.emit_many([Event(type="t", data=number) for number in range(120)])

    assert emitted == sorted(emitted)
    assert [stored.event.data for stored in bus.tail(limit=1000)] == list(range(120))


# In a transaction of the caller's.


def test_event_writes__in_a_transaction__happen_with_it_or_not_at_all(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    now_ms = int(clock.seconds() * 1000)
    event = Event(type="order.created", source="/executions", id="e1#1#4", data=msgspec.Raw(b'{"a":1}'))
    execution = Put(EXECUTIONS, {"execution_id": "e1"}, absent())
    store.put(EXECUTIONS, {"execution_id": "e1"})
    with pytest.raises(ConflictError):
        store.transact([execution, *bus.event_writes(event, now_ms)])
    assert bus.tail() == []

    store.delete(EXECUTIONS, Key("e1"))
    store.transact([execution, *bus.event_writes(event, now_ms)])

    (stored,) = bus.tail()
    assert stored.event_id == event_log.event_id_of("/executions", "e1#1#4", now_ms)
    assert stored.event.time == clock.now()
    assert [each.activity_id for each in deliveries(store)] == [f"orders#{stored.event_id}"]


def test_event_writes__the_same_event_again__is_refused_by_the_first_write(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    now_ms = int(clock.seconds() * 1000)
    event = Event(type="order.created", id="e1#1#4")
    store.transact(bus.event_writes(event, now_ms))
    succeed(store)
    clock.advance(5)

    with pytest.raises(ConflictError) as caught:
        store.transact(bus.event_writes(event, now_ms))

    assert caught.value.write_index == 0
    assert deliveries(store) == []


def test_event_writes__without_an_id__is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidPayloadError, match="id is missing"):
        bus.event_writes(EVENT, 0)


def test_event_writes__more_subscriptions_than_there_is_room_for__follow_by_the_sweep(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.register([Subscription(name=f"s{number:03d}", types=("order.*",)) for number in range(30)], "shop")
    writes = bus.event_writes(Event(type="order.created", id="1"), int(clock.seconds() * 1000), deliveries_max=5)
    assert len(writes) == 7
    store.transact(writes)
    assert len(deliveries(store)) == 5

    assert new_bus(store, clock).sweep() == 26

    assert len({each.name for each in deliveries(store)}) == 31
    assert undelivered(store) == []
    assert bus.sweep() == 0


# More subscriptions than a transaction takes.


def many(count: int) -> list[Subscription]:
    return [Subscription(name=f"s{number:03d}", types=("order.created",)) for number in range(count)]


@pytest.mark.parametrize("count", [89, 90, 91, 250])
def test_emit__to_more_subscriptions_than_fit_a_transaction__reaches_each_once(
    store: SqliteStore, clock: VirtualClock, count: int
) -> None:
    bus = new_bus(store, clock)
    bus.register(many(count), "shop")

    event_id = bus.emit(EVENT)

    assert sorted(each.activity_id for each in deliveries(store)) == [f"s{n:03d}#{event_id}" for n in range(count)]
    assert undelivered(store) == []


def test_emit__an_event_of_nearly_a_megabyte__reaches_each_subscription_whole(
    store: SqliteStore, clock: VirtualClock
) -> None:
    bus = new_bus(store, clock)
    bus.register(many(12), "shop")
    sizes = (19_000, 45_000, 390_000, 990_000)
    for size in sizes:
        bus.emit(Event(type="order.created", data="é" * (size // 2)))

    found = [len(events.load(each.input).data) * 2 for each in deliveries(store)]

    assert sorted(found) == [size for size in sizes for _ in range(12)]


def emit_and_die(folder: Path, event: Event, statement_count: int) -> tuple[int, bool]:
    """Emit in a child that dies at the given SQL statement; return its exit code and whether `emit` had returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        clock = VirtualClock()
        store = open_sqlite(folder, clock=clock)
        bus = new_bus(store, clock)
        bus.subscriptions()
        left = [statement_count]

        def count_down(_: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                os._exit(DIED)

        store._commits._connection.set_trace_callback(count_down)
        bus.emit(event)
        os.write(writer, b".")
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    acknowledged = os.read(reader, 1) == b"."
    os.close(reader)
    return os.waitstatus_to_exitcode(status), acknowledged


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("count", "size", "statements"),
    # At three deliveries a transaction because of their size, each statement; at ninety, some of them.
    [(8, 700_000, range(1, 1000)), (250, 10, range(1, 1000, 45))],
    ids=["large event", "many subscriptions"],
)
def test_emit__a_process_that_dies_at_any_statement__all_subscriptions_are_reported_or_none(
    tmp_path: Path, count: int, size: int, statements: range
) -> None:
    clock = VirtualClock()
    event = Event(type="order.created", source="/shop", id="A-1", data="x" * size)
    seen: set[tuple[bool, bool]] = set()
    for statement_count in statements:
        folder = tmp_path / str(statement_count)
        folder.mkdir()
        store = open_sqlite(folder, clock=clock)
        new_bus(store, clock).register(many(count), "shop")
        store.close()

        code, acknowledged = emit_and_die(folder, event, statement_count)

        store = open_sqlite(folder, clock=clock)
        bus = new_bus(store, clock)
        before = len(deliveries(store))
        bus.sweep()
        after = len({each.name for each in deliveries(store)})
        seen.add((before > 0, before == count))
        assert after in ((count,) if acknowledged or before else (0,))
        # A client without an answer sends it again, which changes nothing if it was accepted.
        bus.emit(event)
        assert sorted(each.name for each in deliveries(store)) == [f"s{number:03d}" for number in range(count)]
        assert undelivered(store) == []
        assert len(bus.tail()) == 1
        store.close()
        if code == 0:
            break
    else:
        raise AssertionError("the process never came to its end")
    assert seen == {(False, False), (True, False), (True, True)}


# What was emitted.


def test_tail__without_a_place__is_the_latest_in_their_order(bus: Bus, clock: VirtualClock) -> None:
    for number in range(5):
        bus.emit(Event(type="t", data=number))
        clock.advance(DAY)

    assert [stored.event.data for stored in bus.tail(limit=3)] == [2, 3, 4]
    assert [stored.event.data for stored in bus.tail()] == [0, 1, 2, 3, 4]


def test_tail__after_an_event__is_what_followed_over_midnights(bus: Bus, clock: VirtualClock) -> None:
    emitted = []
    for number in range(6):
        emitted.append(bus.emit(Event(type="t", data=number)))
        clock.advance(DAY / 2)

    assert [stored.event.data for stored in bus.tail(emitted[1])] == [2, 3, 4, 5]
    assert [stored.event.data for stored in bus.tail(emitted[1], limit=2)] == [2, 3]
    assert bus.tail(emitted[-1]) == []


def test_tail__more_than_a_page_in_one_day__is_all_of_them(bus: Bus) -> None:
    emitted = bus.emit_many([Event(type="t", data=number) for number in range(250)])

    assert [stored.event_id for stored in bus.tail(emitted[9], limit=1000)] == emitted[10:]
    assert [stored.event_id for stored in bus.tail(limit=230)] == emitted[20:]


@pytest.mark.parametrize("wanted", ["order.created", "order.*", "*"])
def test_tail__of_a_type_or_a_pattern__is_those_alone(bus: Bus, wanted: str) -> None:
    names = ["order.created", "user.created", "order.paid", "order.created"]
    emitted = bus.emit_many([Event(type=name) for name in names])
    expected = [event_id for event_id, name in zip(emitted, names, strict=True) if wanted in (name, "*") or (
        wanted == "order.*" and name.startswith("order."))]  # fmt: skip

    assert [stored.event_id for stored in bus.tail(type=wanted)] == expected
    assert [stored.event_id for stored in bus.tail(emitted[0], type=wanted)] == expected[1:]
    assert [stored.event_id for stored in bus.tail(type=wanted, limit=1)] == expected[-1:]


def test_tail__what_makes_no_sense__is_refused(bus: Bus) -> None:
    with pytest.raises(UserError, match="limit 0"):
        bus.tail(limit=0)
    with pytest.raises(InvalidIdError, match="event id 'A-1'"):
        bus.tail("A-1")
    with pytest.raises(DefinitionError):
        bus.tail(type="*.created")


@pytest.mark.parametrize("event_id", ["A-1", "", "run_01JD0000000000000000000000", "evt_7ZZZZZZZZZZZZZZZZZZZZZZZZZ"])
def test_get__what_is_not_the_id_of_an_event__is_refused(bus: Bus, event_id: str) -> None:
    with pytest.raises(InvalidIdError):
        bus.get(event_id)


def test_get__an_event_of_more_than_thirty_days_ago__is_gone(bus: Bus, clock: VirtualClock) -> None:
    event_id = bus.emit(EVENT)
    clock.advance(30 * DAY - 10)
    assert bus.get(event_id) is not None
    clock.advance(20)

    assert bus.get(event_id) is None
    assert bus.tail() == []


def test_event_id_of__a_moment_and_a_name__sorts_by_the_moment_and_is_that_of_no_other() -> None:
    ids = [event_log.event_id_of("/s", str(number), 1_000 + number) for number in range(200)]

    assert ids == sorted(ids)
    assert [made_at_ms(event_id) for event_id in ids] == [1_000 + number for number in range(200)]
    assert event_log.event_id_of("/s", "1", 5) == event_log.event_id_of("/s", "1", 5)
    assert event_log.event_id_of("/s", "1", 5) != event_log.event_id_of("/s1", "", 5)
    assert event_log.first_id(1_000) <= ids[0] < event_log.first_id(1_001)


# What failed.


def test_dead_letter__a_delivery_that_failed_for_good__keeps_the_event_and_the_error(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    clock.advance(60)
    fail_for_good(store, clock, ValueError("no such shop"))

    (letter,) = bus.dead_letters("orders").letters
    assert (letter.subscription, letter.event_id, letter.attempts) == ("orders", event_id, 8)
    assert (letter.error.type, letter.error.message) == ("ValueError", "no such shop")
    assert letter.event.data == EVENT.data
    assert letter.dead_at_ms - letter.scheduled_at_ms == 60_000
    assert deliveries(store) == []


def test_dead_letter__with_a_claim_that_was_lost__is_not_written(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.emit(EVENT)
    (delivery,) = deliveries(store)
    store.transact([msgspec.structs.replace(delivery, token="another").put(delivery.token)])

    with pytest.raises(ConflictError):
        store.transact([delivery.ended(), *dead_letter(delivery, describe(ValueError()), 0)])

    assert bus.dead_letters().letters == []


def test_dead_letters__of_all_subscriptions__come_in_pages(bus: Bus, store: SqliteStore, clock: VirtualClock) -> None:
    bus.register([Subscription(name="all", types=("*",))], "shop")
    emitted = bus.emit_many([Event(type="order.created", data=number) for number in range(5)])
    fail_for_good(store, clock, ValueError())

    everything = bus.dead_letters(limit=7)
    rest = bus.dead_letters(limit=7, cursor=everything.cursor)
    assert rest.cursor is None
    assert sorted((each.event_id, each.subscription) for each in [*everything.letters, *rest.letters]) == sorted(
        (event_id, name) for event_id in emitted for name in ("all", "orders")
    )
    assert [each.event_id for each in bus.dead_letters("orders").letters] == emitted


def test_redeliver__a_dead_letter__is_a_delivery_with_all_its_attempts(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    fail_for_good(store, clock, ValueError())
    clock.advance(10)

    bus.redeliver("orders", event_id)

    (delivery,) = deliveries(store)
    assert (delivery.activity_id, delivery.attempt) == (f"orders#{event_id}", 0)
    assert delivery.available_at_ms == int(clock.seconds() * 1000)
    assert json.loads(delivery.input)["data"] == EVENT.data
    assert bus.dead_letters().letters == []


def test_redeliver__twice_or_what_is_not_there__delivers_nothing_more(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    fail_for_good(store, clock, ValueError())
    bus.redeliver("orders", event_id)

    with pytest.raises(NotFoundError, match="no dead letter"):
        bus.redeliver("orders", event_id)
    with pytest.raises(NotFoundError, match="no dead letter"):
        bus.redeliver("nobody", event_id)

    assert len(deliveries(store)) == 1


def test_redeliver__while_the_event_is_being_delivered__is_refused_and_the_letter_kept(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    fail_for_good(store, clock, ValueError())
    (letter,) = bus.dead_letters().letters
    bus.redeliver("orders", event_id)
    (delivery,) = deliveries(store)
    store.transact(dead_letter(delivery, letter.error, int(clock.seconds() * 1000)))

    with pytest.raises(ConflictError):
        bus.redeliver("orders", event_id)

    assert len(bus.dead_letters().letters) == 1


def test_purge__one_letter_or_all__leaves_those_of_others(bus: Bus, store: SqliteStore, clock: VirtualClock) -> None:
    bus.register([Subscription(name="all", types=("*",))], "shop")
    emitted = bus.emit_many([EVENT] * 150)
    fail_for_good(store, clock, ValueError())

    assert bus.purge("orders", emitted[0]) == 1
    assert bus.purge("orders", emitted[0]) == 0
    assert bus.purge("orders") == 149

    assert bus.dead_letters("orders").letters == []
    assert len(bus.dead_letters("all", limit=1000).letters) == 150
    assert bus.subscription("orders").subscription == ORDERS


def test_dead_letter__one__is_found_by_subscription_and_event(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    fail_for_good(store, clock, ValueError("no such shop"))

    assert bus.dead_letter("orders", event_id) == bus.dead_letters("orders").letters[0]
    for subscription, other in (("orders", "evt_none"), ("nobody", event_id)):
        with pytest.raises(NotFoundError, match=f"{subscription}: it has no dead letter of event {other}"):
            bus.dead_letter(subscription, other)


def test_dead_letters__by_type_and_age__are_those_that_match_all_of_it(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.register([Subscription(name="all", types=("*",))], "shop")
    for day in range(4):
        for name in ("order.created", "order.paid", "user.created"):
            bus.emit(Event(type=name, data=day))
        fail_for_good(store, clock, ValueError())
        clock.advance(DAY)

    def found(subscription: str | None = None, **wanted: Any) -> list[tuple[str, str, int]]:
        letters = bus.dead_letters(subscription, limit=1000, **wanted).letters
        return sorted((each.subscription, each.event.type, each.event.data) for each in letters)

    assert len(found()) == 4 * 5
    assert found("all", type="user.*") == [("all", "user.created", day) for day in range(4)]
    assert found(type="order.paid", older_than_seconds=3 * DAY) == [
        (name, "order.paid", day) for name in ("all", "orders") for day in (0, 1)
    ]
    assert found("orders", newer_than_seconds=2 * DAY) == [
        ("orders", name, day) for name in ("order.created", "order.paid") for day in (2, 3)
    ]
    assert found("orders", type="order.paid", older_than_seconds=2 * DAY, newer_than_seconds=3 * DAY) == [
        ("orders", "order.paid", 1),
        ("orders", "order.paid", 2),
    ]
    assert found(type="order") == []


def test_dead_letters__few_that_match_among_many__come_in_pages_without_a_gap(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    names = ["order.rare" if number % 50 == 0 else "order.often" for number in range(400)]
    bus.emit_many([Event(type=name, data=number) for number, name in enumerate(names)])
    fail_for_good(store, clock, ValueError())

    numbers: list[int] = []
    cursor = None
    for _ in range(500):
        page = bus.dead_letters("orders", type="order.rare", limit=3, cursor=cursor)
        assert len(page.letters) <= 3
        numbers += [letter.event.data for letter in page.letters]
        cursor = page.cursor
        if cursor is None:
            break

    assert numbers == list(range(0, 400, 50))


def test_dead_letters__a_type_that_is_no_pattern__is_refused(bus: Bus) -> None:
    with pytest.raises(DefinitionError):
        bus.dead_letters(type="*.created")


def test_redeliver_and_replay__to_a_subscription_that_is_retired__are_refused_and_nothing_is_lost(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    fail_for_good(store, clock, ValueError())
    bus.retire("orders")

    with pytest.raises(ConflictError, match="orders: it is retired"):
        bus.redeliver("orders", event_id)
    with pytest.raises(ConflictError, match="orders: it is retired"):
        bus.replay("orders", since=at(clock, days=-1), until=at(clock, days=1))

    assert deliveries(store) == []
    assert len(bus.dead_letters("orders").letters) == 1
    bus.register([ORDERS], "shop")
    bus.redeliver("orders", event_id)
    assert len(deliveries(store)) == 1


# Replays.


def at(clock: VirtualClock, *, days: float = 0) -> datetime:
    return clock.now() + timedelta(days=days)


def test_replay__a_stretch_of_time__delivers_again_what_the_subscription_wants(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    emitted = []
    for number in range(6):
        emitted.append(bus.emit(Event(type="order.created", data=number)))
        bus.emit(Event(type="user.created", data=number))
        clock.advance(DAY)
    succeed(store)

    count = bus.replay("orders", since=at(clock, days=-5), until=at(clock, days=-2))

    assert count == 3
    assert sorted(events.load(each.input).data for each in deliveries(store)) == [1, 2, 3]
    assert {each.activity_id.split("#")[1] for each in deliveries(store)} == set(emitted[1:4])


def test_replay__under_one_id__delivers_once_however_often_it_is_asked_for(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.emit_many([EVENT] * 230)
    succeed(store)
    since, until = at(clock, days=-1), at(clock, days=1)

    assert bus.replay("orders", since=since, until=until, replay_id="r1") == 230
    succeed(store)
    assert bus.replay("orders", since=since, until=until, replay_id="r1") == 230
    assert deliveries(store) == []
    assert bus.replay("orders", since=since, until=until, replay_id="r2") == 230

    assert len(deliveries(store)) == 230
    with pytest.raises(TokenReusedError, match="replay r1"):
        bus.replay("orders", since=since, until=at(clock, days=2), replay_id="r1")


def test_replay__of_events_that_are_still_being_delivered__delivers_them_beside(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    event_id = bus.emit(EVENT)
    clock.advance(1)

    bus.replay("orders", since=at(clock, days=-1), until=at(clock), replay_id="r1")

    assert sorted(each.activity_id for each in deliveries(store)) == [f"orders#{event_id}", f"orders#{event_id}#r1"]
    fail_for_good(store, clock, ValueError())
    assert [letter.event_id for letter in bus.dead_letters("orders").letters] == [event_id]


def test_replay__narrowed_to_types_and_by_the_filter__delivers_those_alone(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    paid = Subscription(name="paid", types=("order.*",), filter=Filter(data={"paid": True}))
    bus.emit_many([Event(type=name, data={"paid": paid}) for name in ("order.a", "order.b") for paid in (True, False)])
    bus.register([paid], "shop")
    succeed(store)
    clock.advance(1)

    assert bus.replay("paid", since=at(clock, days=-1), until=at(clock), types=["order.a", "user.*"]) == 1
    assert bus.replay("paid", since=at(clock, days=-1), until=at(clock)) == 2


def test_replay__what_makes_no_sense__is_refused(bus: Bus, clock: VirtualClock) -> None:
    now = clock.now()
    with pytest.raises(NotFoundError):
        bus.replay("nobody", since=now, until=now)
    with pytest.raises(InvalidIdError, match="ends before it begins"):
        bus.replay("orders", since=now, until=now - timedelta(seconds=1))
    with pytest.raises(InvalidIdError, match="replay id"):
        bus.replay("orders", since=now, until=now, replay_id="a#b")
    with pytest.raises(InvalidPayloadError, match="without a time zone"):
        bus.replay("orders", since=now.replace(tzinfo=None), until=now)
    with pytest.raises(DefinitionError):
        bus.replay("orders", since=now, until=now, types=["*.a"])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_replay__a_process_that_dies_on_the_way__goes_on_where_it_was(tmp_path: Path) -> None:
    clock = VirtualClock()
    since, until = datetime(2020, 1, 1, tzinfo=UTC), clock.now() + timedelta(days=1)
    store = open_sqlite(tmp_path, clock=clock)
    bus = new_bus(store, clock)
    bus.register([ORDERS], "shop")
    bus.emit_many([EVENT] * 300)
    succeed(store)
    store.close()
    child = os.fork()
    if child == 0:
        dying = open_sqlite(tmp_path, clock=clock)
        left = [2]

        def die_at_third_commit(statement: str) -> None:
            if statement.startswith("COMMIT"):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(DIED)

        dying._commits._connection.set_trace_callback(die_at_third_commit)
        new_bus(dying, clock).replay("orders", since=since, until=until, replay_id="r1")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == DIED

    store = open_sqlite(tmp_path, clock=clock)
    assert len(deliveries(store)) == 180
    assert new_bus(store, clock).replay("orders", since=since, until=until, replay_id="r1") == 300
    assert len(deliveries(store)) == 300
    store.close()


def test_stop_replay__while_it_runs__makes_no_more_and_drops_what_still_waits(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.emit_many([EVENT] * 300)
    succeed(store)
    bus.emit(Event(type="order.created", data="not of the replay"))
    process = ProcessStore(store)
    running = Bus(process, clock, IdMaker(clock))
    since, until = at(clock, days=-1), at(clock, days=1)
    stopped: list[Any] = []

    def stop_in_the_middle() -> None:
        while len(deliveries(store)) < 91:
            process.meanwhile = (process.calls + 1, stop_in_the_middle)
            return
        (delivery, *_) = [each for each in deliveries(store) if each.activity_id.endswith("#r1")]
        claimed = msgspec.structs.replace(delivery, token="held", queue_pk=None, available_at_ms=None, worker="w")
        store.transact([claimed.put(delivery.token)])
        stopped.append(bus.stop_replay("orders", "r1"))

    process.meanwhile = (1, stop_in_the_middle)
    with pytest.raises(ConflictError, match="replay r1: it was stopped after 90 deliveries"):
        running.replay("orders", since=since, until=until, replay_id="r1")

    assert [(each.replay.count, each.dropped, each.cursor) for each in stopped] == [(90, 89, None)]
    assert [events.load(each.input).data for each in deliveries(store)] == ["not of the replay"]
    # Asked for again under its id, as by a client that repeats a request, it stays stopped.
    with pytest.raises(ConflictError, match="it was stopped"):
        bus.replay("orders", since=since, until=until, replay_id="r1")
    assert len(deliveries(store)) == 1


def test_stop_replay__that_has_made_all_its_deliveries__drops_what_still_waits_step_by_step(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.emit_many([EVENT] * 250)
    succeed(store)
    bus.replay("orders", since=at(clock, days=-1), until=at(clock, days=1), replay_id="r1")
    bus.replay("orders", since=at(clock, days=-1), until=at(clock, days=1), replay_id="r2")
    for delivery in [each for each in deliveries(store) if each.activity_id.endswith("#r1")][:100]:
        store.transact([delivery.ended()])

    dropped, cursor = 0, None
    for _ in range(20):
        step = bus.stop_replay("orders", "r1", limit=60, cursor=cursor)
        dropped, cursor = dropped + step.dropped, step.cursor
        assert step.replay.status is ReplayStatus.STOPPED
        if cursor is None:
            break

    assert dropped == 150
    assert len([each for each in deliveries(store) if each.activity_id.endswith("#r2")]) == 250
    assert len(deliveries(store)) == 250


def test_stop_replay__what_is_not_there__is_not_found(bus: Bus, store: SqliteStore, clock: VirtualClock) -> None:
    bus.replay("orders", since=at(clock, days=-1), until=at(clock, days=1), replay_id="r1")

    with pytest.raises(NotFoundError, match="orders: it has no replay r2"):
        bus.stop_replay("orders", "r2")
    with pytest.raises(NotFoundError, match="nobody"):
        bus.stop_replay("nobody", "r1")


def test_replays__of_a_subscription__are_listed_with_how_far_they_came(
    bus: Bus, store: SqliteStore, clock: VirtualClock
) -> None:
    bus.emit_many([EVENT] * 3)
    since, until = at(clock, days=-1), at(clock, days=1)
    bus.replay("orders", since=since, until=until, replay_id="done")
    bus.replay("orders", since=since, until=since, types=["order.*"], replay_id="none")
    bus.replay("orders", since=since, until=until, replay_id="stopped")
    bus.stop_replay("orders", "stopped")

    found = bus.replays("orders")

    assert [(each.id, each.count, each.status) for each in found] == [
        ("done", 3, ReplayStatus.DONE),
        ("none", 0, ReplayStatus.DONE),
        ("stopped", 3, ReplayStatus.STOPPED),
    ]
    assert (found[1].since_ms, found[1].until_ms, found[1].types) == (
        int(since.timestamp() * 1000),
        int(since.timestamp() * 1000),
        ("order.*",),
    )
    with pytest.raises(NotFoundError):
        bus.replays("nobody")
