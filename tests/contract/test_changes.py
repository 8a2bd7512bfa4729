"""Change streams: in order for each key, at least once, checkpointed for each consumer."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, InvalidItemError
from headgate.store.catalogue.tables import CONTROL, IDEMPOTENCY, PIPELINES, SIGNAL_STATE, STREAM_CHECKPOINTS
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Change, ChangeKind, Check, Delete, Put, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import NOW, Eventually, Reader

TABLES = (CONTROL, IDEMPOTENCY, PIPELINES, SIGNAL_STATE, STREAM_CHECKPOINTS)
KEY = Key("p", "s")
INSERT, MODIFY, REMOVE = ChangeKind.INSERT, ChangeKind.MODIFY, ChangeKind.REMOVE


def _item(sort: str = "s", **attributes: Any) -> Item:
    return {"PK": "p", "SK": sort, **attributes}


def _facts(changes: list[Change]) -> list[tuple[ChangeKind, Key, Item | None, Item | None]]:
    return [(change.kind, change.key, change.old, change.new) for change in changes]


@pytest.fixture
def reader(store: Store, eventually: Eventually) -> Reader:
    return Reader(store, eventually)


# What the stream reports


def test_changes__put_overwrite_update_delete__are_reported_with_both_images(store: Store, reader: Reader) -> None:
    store.put(PIPELINES, _item(n=1))
    store.put(PIPELINES, _item(n=2))
    store.update(PIPELINES, KEY, set={"m": [1]}, remove=["n"])
    store.delete(PIPELINES, KEY)

    changes = reader.read(4)

    assert _facts(changes) == [
        (INSERT, KEY, None, _item(n=1)),
        (MODIFY, KEY, _item(n=1), _item(n=2)),
        (MODIFY, KEY, _item(n=2), _item(m=[1])),
        (REMOVE, KEY, _item(m=[1]), None),
    ]


def test_changes__each__names_its_table_and_has_an_id_of_its_own(store: Store, reader: Reader) -> None:
    for number in range(5):
        store.put(PIPELINES, _item(n=number))

    changes = reader.read(5)

    assert {change.table.name for change in changes} == {"headgate-pipelines"}
    assert len({change.id for change in changes}) == 5
    assert all(change.at_seconds > 0 for change in changes)
    assert not any(change.expired for change in changes)


def test_changes__values_of_every_type__come_as_they_are_stored(store: Store, reader: Reader) -> None:
    item = _item(
        none=None, yes=True, whole=1.0, half=0.5, big=10**37, text="é😀", raw=b"\x00", tags={"a"}, deep={"$x": [1, {}]}
    )
    store.put(PIPELINES, item)

    (change,) = reader.read(1)

    assert change.new == {**item, "whole": 1, "tags": frozenset({"a"})}
    assert type(change.new["whole"]) is int


def test_changes__put_of_the_same_item__is_no_change(store: Store, reader: Reader) -> None:
    store.put(PIPELINES, _item(n=1, deep={"a": [1]}))
    store.put(PIPELINES, _item(n=1, deep={"a": [1]}))
    store.update(PIPELINES, KEY, set={"n": 1})
    store.put(PIPELINES, _item("end"))

    assert _facts(reader.read(2)) == [
        (INSERT, KEY, None, _item(n=1, deep={"a": [1]})),
        (INSERT, Key("p", "end"), None, _item("end")),
    ]


def test_changes__delete_of_nothing__is_no_change(store: Store, reader: Reader) -> None:
    store.delete(PIPELINES, KEY)
    store.put(PIPELINES, _item("end"))

    assert [change.key.sort for change in reader.read(1)] == ["end"]


def test_changes__refused_writes__are_no_changes(store: Store, reader: Reader) -> None:
    store.put(PIPELINES, _item(n=1))
    with pytest.raises(ConflictError):
        store.put(PIPELINES, _item(n=2), condition=absent())
    with pytest.raises(ConflictError):
        store.transact([Put(PIPELINES, _item("t")), Check(PIPELINES, Key("p", "nowhere"), exists())])
    with pytest.raises(InvalidItemError):
        store.put(PIPELINES, {"PK": "p", "SK": "", "n": 3})
    store.put(PIPELINES, _item("end"))

    assert [change.key.sort for change in reader.read(2)] == ["s", "end"]


def test_changes__of_a_transaction__are_all_reported(store: Store, reader: Reader) -> None:
    store.put(PIPELINES, _item("deleted"))
    store.put(PIPELINES, _item("updated", n=1))
    store.put(PIPELINES, _item("checked"))

    store.transact(
        [
            Put(PIPELINES, _item("put")),
            Update(PIPELINES, Key("p", "updated"), set={"n": 2}),
            Delete(PIPELINES, Key("p", "deleted")),
            Check(PIPELINES, Key("p", "checked"), exists()),
            Put(CONTROL, _item("elsewhere")),
        ]
    )

    received = {(change.kind, change.key.sort) for change in reader.read(6)[3:]}
    assert received == {(INSERT, "put"), (MODIFY, "updated"), (REMOVE, "deleted")}
    assert len(reader.seen) == 6


def test_changes__of_a_batch__are_all_reported(store: Store, reader: Reader) -> None:
    store.put(PIPELINES, _item("gone"))

    store.batch_write([*(Put(PIPELINES, _item(f"{n:02d}")) for n in range(30)), Delete(PIPELINES, Key("p", "gone"))])

    changes = reader.read(32)
    assert len(changes) == 32
    assert {change.key.sort for change in changes if change.kind is INSERT} == {
        "gone",
        *(f"{n:02d}" for n in range(30)),
    }


def test_changes__of_a_replayed_transaction__are_reported_once(store: Store, reader: Reader) -> None:
    for _ in range(3):
        store.transact([Put(PIPELINES, _item(n=1))], token="once")
    store.put(PIPELINES, _item("end"))

    assert [change.key.sort for change in reader.read(2)] == ["s", "end"]


def test_changes__of_one_key__are_in_order_and_chained(store: Store, reader: Reader) -> None:
    for number in range(30):
        store.put(PIPELINES, _item(n=number))
        store.put(PIPELINES, _item("other", n=-number - 1))

    changes = [change for change in reader.read(60) if change.key == KEY]

    assert [change.new and change.new["n"] for change in changes] == list(range(30))
    assert [change.old for change in changes[1:]] == [change.new for change in changes[:-1]]


def test_changes__of_one_table__are_not_those_of_another(store: Store, eventually: Eventually) -> None:
    store.put(PIPELINES, _item("pipelines"))
    store.put(SIGNAL_STATE, _item("signals"))

    pipelines, signals = (Reader(store, eventually, table).read(1) for table in (PIPELINES, SIGNAL_STATE))

    assert [change.key.sort for change in pipelines] == ["pipelines"]
    assert [change.key.sort for change in signals] == ["signals"]


def test_changes__table_without_a_stream__is_refused(store: Store) -> None:
    with pytest.raises(InvalidItemError) as caught:
        store.changes(CONTROL, "reader")

    assert caught.type is InvalidItemError


def test_changes__expired_items__are_reported_as_often_as_they_are_swept(
    store: Store, reader: Reader, clock: VirtualClock
) -> None:
    store.batch_write([Put(PIPELINES, _item(f"{n}", ttl=NOW + 10)) for n in range(3)])
    clock.advance(11)

    swept = store.sweep()
    store.put(PIPELINES, _item("end"))
    changes = reader.read(3 + swept + 1)

    removed = [change for change in changes if change.kind is REMOVE]
    assert len(changes) == 3 + swept + 1
    assert sorted(change.key.sort for change in removed if isinstance(change.key.sort, str)) == ["0", "1", "2"][:swept]
    assert all(change.expired and change.old and change.new is None for change in removed)


def test_changes__quiet_put__may_be_left_out_and_the_next_change_is_reported_from_it(
    store: Store, reader: Reader, eventually: Eventually
) -> None:
    store.put(PIPELINES, _item(n=1))
    store.transact([Put(PIPELINES, _item(n=2), quiet=True)])
    store.put(PIPELINES, _item(n=3))

    received = eventually(reader.take_all, lambda seen: bool(seen) and seen[-1].new == _item(n=3))

    assert _facts(received[-1:]) == [(MODIFY, KEY, _item(n=2), _item(n=3))]
    assert store.get(PIPELINES, KEY, consistent=True) == _item(n=3)
