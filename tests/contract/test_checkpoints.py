"""Checkpoints: each consumer of a change stream goes on where it was, and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import InvalidItemError, StreamTrimmedError
from headgate.store.catalogue.tables import CONTROL, PIPELINES, SIGNAL_STATE, STREAM_CHECKPOINTS
from headgate.store.model.requests import Put, StreamStart
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import Eventually, OpenStore, Reader

TABLES = (CONTROL, PIPELINES, SIGNAL_STATE, STREAM_CHECKPOINTS)
KEY = Key("p", "s")


def _item(sort: str = "s", **attributes: Any) -> Item:
    return {"PK": "p", "SK": sort, **attributes}


@pytest.fixture
def reader(store: Store, eventually: Eventually) -> Reader:
    return Reader(store, eventually)


def test_changes__not_checkpointed__are_reported_again(store: Store, eventually: Eventually) -> None:
    store.put(PIPELINES, _item("a"))
    store.put(PIPELINES, _item("b"))
    first = eventually(lambda: store.changes(PIPELINES, "reader"), lambda batch: len(batch.changes) == 2)

    second = eventually(lambda: store.changes(PIPELINES, "reader"), lambda batch: len(batch.changes) == 2)

    assert second.changes == first.changes
    assert [change.id for change in second.changes] == [change.id for change in first.changes]


def test_changes__after_a_checkpoint__go_on_from_there(store: Store, eventually: Eventually) -> None:
    store.put(PIPELINES, _item("a"))
    first = eventually(lambda: store.changes(PIPELINES, "reader"), lambda batch: len(batch.changes) == 1)
    store.put(PIPELINES, _item("b"))

    store.checkpoint(PIPELINES, "reader", first.position)

    second = eventually(lambda: store.changes(PIPELINES, "reader"), lambda batch: len(batch.changes) > 0)
    assert [change.key.sort for change in second.changes] == ["b"]


def test_changes__everything_checkpointed__is_an_empty_batch(store: Store, reader: Reader) -> None:
    store.put(PIPELINES, _item())
    reader.read(1)

    assert reader.take() == []


def test_changes__of_a_table_no_one_wrote_to__is_an_empty_batch_that_can_be_checkpointed(
    store: Store, reader: Reader
) -> None:
    assert reader.take() == []

    store.put(PIPELINES, _item())

    assert [change.key for change in reader.read(1)] == [KEY]


def test_changes__checkpoint_of_an_empty_batch_again_and_again__loses_nothing(store: Store, reader: Reader) -> None:
    for number in range(3):
        assert reader.take() == []
        assert reader.take() == []
        store.put(PIPELINES, _item(n=number))
        reader.read(number + 1)

    assert [change.new and change.new["n"] for change in reader.seen] == [0, 1, 2]


def test_changes__limit__is_not_exceeded_and_loses_nothing(
    store: Store, reader: Reader, eventually: Eventually
) -> None:
    store.batch_write([Put(PIPELINES, _item(f"{n:02d}")) for n in range(25)])

    sizes: list[int] = []
    eventually(lambda: sizes.append(len(reader.take(limit=4))), lambda _: len(reader.seen) >= 25)

    assert max(sizes) <= 4
    assert sorted(change.key.sort for change in reader.seen if isinstance(change.key.sort, str)) == [
        f"{n:02d}" for n in range(25)
    ]


@pytest.mark.parametrize("limit", [0, -1])
def test_changes__limit_below_one__is_refused(store: Store, limit: int) -> None:
    with pytest.raises(InvalidItemError):
        store.changes(PIPELINES, "reader", limit=limit)


def test_changes__two_consumers__do_not_disturb_each_other(store: Store, eventually: Eventually) -> None:
    first, second = (Reader(store, eventually, name=name) for name in ("first", "second"))
    store.put(PIPELINES, _item("a"))
    first.read(1)
    store.put(PIPELINES, _item("b"))

    assert [change.key.sort for change in second.read(2)] == ["a", "b"]
    assert [change.key.sort for change in first.read(2)] == ["a", "b"]


def test_changes__one_consumer_of_two_tables__has_a_checkpoint_for_each(store: Store, eventually: Eventually) -> None:
    pipelines, signals = (Reader(store, eventually, table) for table in (PIPELINES, SIGNAL_STATE))
    store.put(PIPELINES, _item("a"))
    pipelines.read(1)
    store.put(SIGNAL_STATE, _item("b"))

    assert [change.key.sort for change in signals.read(1)] == ["b"]
    assert pipelines.take() == []


@pytest.mark.parametrize("name", ["a#b", "é 漢", "x" * 200, "cache:host-1/2"])
def test_changes__consumer_of_any_name__is_remembered(store: Store, eventually: Eventually, name: str) -> None:
    reader = Reader(store, eventually, name=name)
    store.put(PIPELINES, _item("a"))
    reader.read(1)

    assert reader.take() == []


def test_changes__through_another_handle__go_on_from_the_checkpoint(
    store: Store, open_store: OpenStore, eventually: Eventually
) -> None:
    store.put(PIPELINES, _item("a"))
    Reader(store, eventually).read(1)
    store.put(PIPELINES, _item("b"))

    other = Reader(open_store(), eventually)

    assert [change.key.sort for change in other.read(1)] == ["b"]


# Where to begin


def test_changes__new_consumer_from_the_oldest__is_reported_everything(store: Store, reader: Reader) -> None:
    for number in range(5):
        store.put(PIPELINES, _item(n=number))

    assert [change.new and change.new["n"] for change in reader.read(5)] == list(range(5))


def test_changes__new_consumer_from_the_newest__is_given_what_comes_after(store: Store, eventually: Eventually) -> None:
    store.put(PIPELINES, _item("before"))
    reader = Reader(store, eventually)
    assert reader.take(start=StreamStart.NEWEST) == []

    store.put(PIPELINES, _item("after"))

    seen = eventually(lambda: reader.take(start=StreamStart.NEWEST) and reader.seen, bool)
    assert [change.key.sort for change in seen] == ["after"]


def test_changes__from_the_newest_with_a_checkpoint__goes_on_from_the_checkpoint(
    store: Store, reader: Reader, eventually: Eventually
) -> None:
    store.put(PIPELINES, _item("a"))
    reader.read(1)
    store.put(PIPELINES, _item("b"))

    eventually(lambda: reader.take(start=StreamStart.NEWEST) or reader.seen, lambda _: len(reader.seen) == 2)

    assert [change.key.sort for change in reader.seen] == ["a", "b"]


# Retention


def test_changes__away_for_less_than_a_day__loses_nothing(store: Store, reader: Reader, clock: VirtualClock) -> None:
    store.put(PIPELINES, _item("a"))
    reader.read(1)
    store.put(PIPELINES, _item("b"))

    clock.advance(23 * 3600)
    store.sweep()

    assert [change.key.sort for change in reader.read(2)] == ["a", "b"]


def test_changes__away_for_longer_than_a_day__receives_all_or_informed_that_some_are_lost(
    store: Store, reader: Reader, clock: VirtualClock
) -> None:
    store.put(PIPELINES, _item("a"))
    reader.read(1)
    store.put(PIPELINES, _item("b"))

    clock.advance(25 * 3600)
    store.sweep()
    store.put(PIPELINES, _item("c"))
    store.sweep()

    try:
        received = [change.key.sort for change in reader.read(3)]
    except StreamTrimmedError:
        received = ["a", "b", "c"]
    assert received == ["a", "b", "c"]


# Bad input


def test_checkpoint__table_without_a_stream__is_refused(store: Store) -> None:
    with pytest.raises(InvalidItemError):
        store.checkpoint(CONTROL, "reader", "0")


@pytest.mark.parametrize("position", ["", "garbage", "é", "-1"])
def test_checkpoint__position_that_was_never_given_out__is_refused_and_changes_nothing(
    store: Store, reader: Reader, position: str
) -> None:
    store.put(PIPELINES, _item("a"))
    reader.read(1)
    store.put(PIPELINES, _item("b"))

    with pytest.raises(InvalidItemError):
        store.checkpoint(PIPELINES, "reader", position)

    assert [change.key.sort for change in reader.read(2)] == ["a", "b"]


@pytest.mark.parametrize("consumer", ["", "x" * 2049])
def test_changes__consumer_without_a_usable_name__is_refused(store: Store, consumer: str) -> None:
    with pytest.raises(InvalidItemError):
        store.changes(PIPELINES, consumer)
