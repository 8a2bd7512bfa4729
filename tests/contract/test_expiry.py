"""Expiry: an expired item is absent to every reader, condition and update, whether or not it was deleted yet."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, InvalidItemError
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, HEALTH_CHECK, LOCK, PIPELINES
from headgate.store.model.conditions import absent, any_of, equals, exists, less_than, version_is
from headgate.store.model.requests import Check, Delete, Page, Put, Query, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import NOW, Eventually, assert_refused, contents, items_of, pages_of

TABLES = (CONTROL, EVIDENCE_CACHE, HEALTH_CHECK, PIPELINES)
KEY = Key("p", "s")


def _item(sort: str = "s", **attributes: Any) -> Item:
    return {"PK": "p", "SK": sort, **attributes}


@pytest.fixture
def expired(store: Store, clock: VirtualClock) -> Store:
    """A store whose item `p`/`s` has just expired, next to one that lives on."""
    store.put(CONTROL, _item(n=1, version=1, ttl=NOW + 60))
    store.put(CONTROL, _item("t", n=2))
    clock.advance(61)
    return store


# Reads


def test_get__before_the_time__gives_the_item_with_its_ttl(store: Store, clock: VirtualClock) -> None:
    store.put(CONTROL, _item(ttl=NOW + 60))
    clock.advance(59)

    assert store.get(CONTROL, KEY, consistent=True) == _item(ttl=NOW + 60)


def test_get__after_the_time__is_none(expired: Store) -> None:
    assert expired.get(CONTROL, KEY) is None
    assert expired.get(CONTROL, KEY, consistent=True) is None


def test_get_many__after_the_time__is_none_for_that_key(expired: Store) -> None:
    found = expired.get_many(CONTROL, [KEY, Key("p", "t"), KEY], consistent=True)

    assert found == [None, _item("t", n=2), None]


def test_query__after_the_time__leaves_the_item_out(expired: Store) -> None:
    page = expired.query(Query(table=CONTROL, partition="p", consistent=True))

    assert page == Page([_item("t", n=2)], None)


def test_query__index_after_the_time__leaves_the_item_out(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    rows = [
        {"evidence_id": f"e{n}", "dataset_urn": "u", "created_at": f"{n}", "ttl": NOW + 60 * n} for n in range(1, 4)
    ]
    store.batch_write([Put(EVIDENCE_CACHE, row) for row in rows])
    query = Query(table=EVIDENCE_CACHE, index="dataset-time-index", partition="u")
    eventually(lambda: store.query(query).items, lambda found: found == rows)

    clock.advance(121)

    assert store.query(query) == Page([rows[2]], None)


def test_put__already_expired__is_not_there(store: Store) -> None:
    for ttl in (NOW - 1, 0, -5):
        store.put(CONTROL, _item(ttl=ttl))

        assert store.get(CONTROL, KEY, consistent=True) is None
        assert contents(store, CONTROL, "p") == []


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_query__expired_items_among_live_ones__do_not_count_against_the_limit(
    store: Store, clock: VirtualClock, descending: bool
) -> None:
    store.batch_write(
        [Put(CONTROL, _item(f"{n:03d}", n=n, **({} if n % 4 == 0 else {"ttl": NOW + 10}))) for n in range(100)]
    )
    clock.advance(11)

    pages = pages_of(store, Query(table=CONTROL, partition="p", limit=5, descending=descending, consistent=True))

    live = list(range(0, 100, 4))
    assert [item["n"] for item in items_of(pages)] == (live[::-1] if descending else live)
    assert [len(page.items) for page in pages] == [5] * 5


def test_query__only_expired_items_left__is_the_last_page(store: Store, clock: VirtualClock) -> None:
    store.batch_write([Put(CONTROL, _item(f"{n:03d}", **({"ttl": NOW + 10} if n >= 5 else {}))) for n in range(40)])
    clock.advance(11)

    page = store.query(Query(table=CONTROL, partition="p", limit=5, consistent=True))

    assert len(page.items) == 5
    assert page.cursor is None


def test_query__nothing_but_expired_items__is_an_empty_last_page(store: Store, clock: VirtualClock) -> None:
    store.batch_write([Put(CONTROL, _item(f"{n:03d}", ttl=NOW + 10)) for n in range(40)])
    clock.advance(11)

    assert store.query(Query(table=CONTROL, partition="p", limit=5, consistent=True)) == Page([], None)


def test_query__item_of_the_cursor_expires_between_pages__goes_on(store: Store, clock: VirtualClock) -> None:
    store.batch_write([Put(CONTROL, _item(f"{n:03d}", n=n, ttl=NOW + (10 if n < 10 else 100))) for n in range(20)])
    first = store.query(Query(table=CONTROL, partition="p", limit=5, consistent=True))
    clock.advance(11)

    second = store.query(Query(table=CONTROL, partition="p", limit=5, cursor=first.cursor, consistent=True))

    assert [item["n"] for item in second.items] == [10, 11, 12, 13, 14]


# Which items expire


@pytest.mark.parametrize("attributes", [{}, {"ttl": None}])
def test_get__item_without_a_ttl__never_expires(store: Store, clock: VirtualClock, attributes: dict[str, Any]) -> None:
    store.put(CONTROL, _item(**attributes))
    clock.advance(100 * 365 * 86_400)

    assert store.get(CONTROL, KEY, consistent=True) == _item(**attributes)


def test_get__ttl_in_a_table_that_has_none__is_an_attribute_like_any_other(store: Store) -> None:
    store.put(HEALTH_CHECK, {"PK": "health", "ttl": 1})

    assert store.get(HEALTH_CHECK, Key("health"), consistent=True) == {"PK": "health", "ttl": 1}


def test_update__later_ttl__keeps_the_item_alive(store: Store, clock: VirtualClock) -> None:
    store.put(CONTROL, _item(ttl=NOW + 60))
    store.update(CONTROL, KEY, set={"ttl": NOW + 600})

    clock.advance(61)

    assert store.get(CONTROL, KEY, consistent=True) == _item(ttl=NOW + 600)


def test_update__ttl_removed__keeps_the_item_for_ever(store: Store, clock: VirtualClock) -> None:
    store.put(CONTROL, _item(ttl=NOW + 60))
    store.update(CONTROL, KEY, remove=["ttl"])

    clock.advance(86_400)

    assert store.get(CONTROL, KEY, consistent=True) == _item()


def test_update__ttl_in_the_past__expires_the_item_at_once(store: Store) -> None:
    store.put(CONTROL, _item())

    store.update(CONTROL, KEY, set={"ttl": NOW - 1})

    assert store.get(CONTROL, KEY, consistent=True) is None


@pytest.mark.parametrize("ttl", [1.5, "2040", True, [1], {}, b"1", NOW + 0.5], ids=repr)
def test_put__ttl_that_is_not_whole_seconds__is_refused(store: Store, ttl: object) -> None:
    store.put(CONTROL, _item(n=1))

    assert_refused(InvalidItemError, lambda: store.put(CONTROL, _item(ttl=ttl)), lambda: contents(store, CONTROL, "p"))
    assert_refused(
        InvalidItemError,
        lambda: store.update(CONTROL, KEY, set={"ttl": ttl}),
        lambda: contents(store, CONTROL, "p"),
    )


def test_put__ttl_as_a_whole_float__is_whole_seconds(store: Store) -> None:
    store.put(CONTROL, _item(ttl=float(NOW + 60)))

    assert store.get(CONTROL, KEY, consistent=True) == _item(ttl=NOW + 60)


def test_expiry__at_the_very_second__is_the_same_to_every_call(store: Store, clock: VirtualClock) -> None:
    for sort in ("get", "put", "update", "delete", "check"):
        store.put(CONTROL, _item(sort, ttl=NOW + 60))
    clock.advance(60)

    gone = store.get(CONTROL, Key("p", "get"), consistent=True) is None

    assert (store.get_many(CONTROL, [Key("p", "get")], consistent=True) == [None]) is gone
    assert (contents(store, CONTROL, "p") == []) is gone
    assert _passes(store, Put(CONTROL, _item("put"), absent())) is gone
    assert _passes(store, Update(CONTROL, Key("p", "update"), set={"n": 1})) is not gone
    assert _passes(store, Check(CONTROL, Key("p", "check"), exists())) is not gone
    assert (store.delete(CONTROL, Key("p", "delete")) is None) is gone


# Conditions and writes


def test_put__absent_over_an_expired_item__succeeds_and_keeps_nothing_of_it(expired: Store) -> None:
    expired.put(CONTROL, _item(new=1), condition=absent())

    assert expired.get(CONTROL, KEY, consistent=True) == _item(new=1)


def test_put__over_an_expired_item__brings_the_key_back(expired: Store) -> None:
    expired.put(CONTROL, _item(new=1))

    assert contents(expired, CONTROL, "p") == [_item(new=1), _item("t", n=2)]


@pytest.mark.parametrize("condition", [exists(), equals("n", 1), version_is(1)], ids=["exists", "equals", "version"])
def test_put__condition_on_an_expired_item__conflicts_with_none(expired: Store, condition: Any) -> None:
    error = assert_refused(
        ConflictError,
        lambda: expired.put(CONTROL, _item(new=1), condition=condition),
        lambda: contents(expired, CONTROL, "p"),
    )

    assert isinstance(error, ConflictError)
    assert error.current is None


def test_update__of_an_expired_item__conflicts_with_none_and_creates_nothing(expired: Store) -> None:
    for condition in (None, version_is(1)):
        with pytest.raises(ConflictError) as caught:
            expired.update(CONTROL, KEY, set={"n": 9}, condition=condition)

        assert caught.value.current is None
        assert contents(expired, CONTROL, "p") == [_item("t", n=2)]


def test_update__that_would_bring_an_expired_item_back__conflicts(expired: Store) -> None:
    with pytest.raises(ConflictError) as caught:
        expired.update(CONTROL, KEY, set={"ttl": NOW + 86_400})

    assert caught.value.current is None
    assert contents(expired, CONTROL, "p") == [_item("t", n=2)]


def test_delete__of_an_expired_item__returns_none(expired: Store) -> None:
    assert expired.delete(CONTROL, KEY) is None


def test_delete__expired_item_that_must_exist__conflicts_with_none(expired: Store) -> None:
    with pytest.raises(ConflictError) as caught:
        expired.delete(CONTROL, KEY, condition=exists())

    assert caught.value.current is None


def test_transact__expired_items__are_absent_to_every_kind_of_write(expired: Store) -> None:
    for sort in ("a", "b", "c"):
        expired.put(CONTROL, _item(sort, ttl=NOW))

    with pytest.raises(ConflictError) as caught:
        expired.transact(
            [
                Put(CONTROL, _item("a"), exists()),
                Update(CONTROL, Key("p", "b"), set={"n": 1}),
                Check(CONTROL, Key("p", "c"), exists()),
                Delete(CONTROL, KEY, exists()),
                Put(CONTROL, _item("u")),
            ]
        )

    assert caught.value.failures == {0: None, 1: None, 2: None, 3: None}
    assert contents(expired, CONTROL, "p") == [_item("t", n=2)]


def test_transact__absent_on_expired_items__passes(expired: Store) -> None:
    expired.put(CONTROL, _item("a", ttl=NOW))

    expired.transact([Put(CONTROL, _item(n=5), absent()), Check(CONTROL, Key("p", "a"), absent())])

    assert expired.get(CONTROL, KEY, consistent=True) == _item(n=5)


def test_batch_write__over_and_of_expired_items__works(expired: Store) -> None:
    expired.put(CONTROL, _item("a", ttl=NOW))

    expired.batch_write([Put(CONTROL, _item(n=7)), Delete(CONTROL, Key("p", "a"))])

    assert contents(expired, CONTROL, "p") == [_item(n=7), _item("t", n=2)]


# Locks


@pytest.mark.parametrize("seconds", [0, 10, 299])
def test_lock__held_and_not_expired__cannot_be_taken(store: Store, clock: VirtualClock, seconds: int) -> None:
    key = LOCK.key(lock_key="eval:orders:daily")
    lock = {"PK": key.partition, "SK": key.sort, "owner": "first", "ttl": NOW + 300}
    store.put(PIPELINES, lock, condition=absent())
    clock.advance(seconds)

    for condition in (absent(), any_of(absent(), less_than("ttl", int(clock.seconds())))):
        with pytest.raises(ConflictError) as caught:
            store.put(PIPELINES, {**lock, "owner": "second"}, condition=condition)
        assert caught.value.current == lock


@pytest.mark.parametrize("form", ["absent", "absent or expired"])
def test_lock__expired__is_taken_by_exactly_one(store: Store, clock: VirtualClock, form: str) -> None:
    key = LOCK.key(lock_key="eval:orders:daily")
    lock: Item = {"PK": key.partition, "SK": key.sort, "owner": "first", "ttl": NOW + 300}
    store.put(PIPELINES, lock, condition=absent())
    clock.advance(301)
    now = int(clock.seconds())
    condition = absent() if form == "absent" else any_of(absent(), less_than("ttl", now))
    second, third = ({**lock, "owner": owner, "ttl": now + 300} for owner in ("second", "third"))

    store.put(PIPELINES, second, condition=condition)
    with pytest.raises(ConflictError) as caught:
        store.put(PIPELINES, third, condition=condition)

    assert caught.value.current == second


def test_lock__by_an_attribute_that_is_not_the_ttl__is_taken_once_it_has_passed(
    store: Store, clock: VirtualClock
) -> None:
    lock = _item(owner="first", ttl_lock=NOW + 300)
    store.put(CONTROL, lock, condition=absent())

    for seconds, taken in ((299, False), (2, True)):
        clock.advance(seconds)
        condition = any_of(absent(), less_than("ttl_lock", int(clock.seconds())))
        assert _passes(store, Put(CONTROL, _item(owner="second", ttl_lock=NOW + 900), condition)) is taken


# Sweeping


def test_sweep__expired_and_live_items__deletes_no_live_one(expired: Store) -> None:
    swept = expired.sweep()

    assert swept in (0, 1)
    assert contents(expired, CONTROL, "p") == [_item("t", n=2)]


def test_sweep__nothing_expired__deletes_nothing(store: Store) -> None:
    store.put(CONTROL, _item(ttl=NOW + 60))

    assert store.sweep() == 0
    assert store.get(CONTROL, KEY, consistent=True) == _item(ttl=NOW + 60)


def test_sweep__limit__is_not_exceeded(store: Store, clock: VirtualClock) -> None:
    store.batch_write([Put(CONTROL, _item(f"{n:02d}", ttl=NOW + n)) for n in range(10)])
    clock.advance(100)

    swept = [store.sweep(limit=4) for _ in range(4)]

    assert swept in ([4, 4, 2, 0], [0, 0, 0, 0])
    assert contents(store, CONTROL, "p") == []


def test_sweep__item_revived_after_it_expired__is_kept(expired: Store) -> None:
    expired.put(CONTROL, _item(n=9), condition=absent())

    expired.sweep()

    assert expired.get(CONTROL, KEY, consistent=True) == _item(n=9)


def _passes(store: Store, write: Put | Update | Check) -> bool:
    try:
        store.transact([write])
    except ConflictError:
        return False
    return True
