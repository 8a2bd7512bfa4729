"""Spilled values: kept in blobs, and back in place wherever an item is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, CorruptionError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import PREFIX, Spill
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, PIPELINES, STREAM_CHECKPOINTS
from headgate.store.model.conditions import absent, differs, equals, has, version_is
from headgate.store.model.requests import ChangeKind, Check, Delete, Put, Query, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import BLOB, Item
from tests.contract.conftest import AnyStore, Eventually, contents

TABLES = (CONTROL, EVIDENCE_CACHE, PIPELINES, STREAM_CHECKPOINTS)
KEY = Key("p", "s")
BIG = "é" * 300_000  # 600 KB
OTHER = "x" * 600_000
LONG_AFTER_SECONDS = 27 * 3600


def _item(**attributes: Any) -> Item:
    return {"PK": "p", "SK": "s", "n": 1, **attributes}


def _blobs(blobs: FolderBlobs) -> list[str]:
    return list(blobs.list(PREFIX))


# Every way in and out


def test_get__large_attribute__comes_back(store: AnyStore, blobs: FolderBlobs) -> None:
    store.put(CONTROL, _item(big=BIG))

    assert store.get(CONTROL, KEY, consistent=True) == _item(big=BIG)
    assert len(_blobs(blobs)) == 1


@pytest.mark.parametrize(
    "value",
    [b"\x00\xff" * 300_000, ["y" * 50_000] * 12, {"$x": {"deep": "z" * 600_000, "raw": b"1", "tags": frozenset({1})}}],
    ids=["bytes", "list", "map"],
)
def test_get__large_value_of_any_type__comes_back(store: AnyStore, value: object) -> None:
    store.put(CONTROL, _item(big=value))

    assert store.get(CONTROL, KEY, consistent=True) == _item(big=value)


def test_get__several_large_attributes__come_back(store: AnyStore, blobs: FolderBlobs) -> None:
    item = _item(one=BIG, two=OTHER, three=[OTHER], small="s")

    store.put(CONTROL, item)

    assert store.get(CONTROL, KEY, consistent=True) == item
    assert len(_blobs(blobs)) == 3


def test_get_many__large_attributes__come_back(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    assert store.get_many(CONTROL, [KEY, Key("p", "t"), KEY], consistent=True) == [_item(big=BIG), None, _item(big=BIG)]


def test_query__large_attributes__come_back(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    assert contents(store, CONTROL, "p") == [_item(big=BIG)]


def test_query__index_with_large_attributes__gives_whole_items(store: AnyStore, eventually: Eventually) -> None:
    item = {"evidence_id": "e", "dataset_urn": "u", "created_at": "t", "payload": BIG}
    store.put(EVIDENCE_CACHE, item)
    query = Query(table=EVIDENCE_CACHE, index="dataset-time-index", partition="u")

    eventually(lambda: store.query(query).items, lambda found: found == [item])


def test_changes__large_attributes__are_in_both_images(store: AnyStore, eventually: Eventually) -> None:
    store.put(PIPELINES, _item(big=BIG))
    store.put(PIPELINES, _item(big=OTHER))
    store.delete(PIPELINES, KEY)

    batch = eventually(lambda: store.changes(PIPELINES, "reader"), lambda batch: len(batch.changes) == 3)

    assert [(change.old, change.new) for change in batch.changes] == [
        (None, _item(big=BIG)),
        (_item(big=BIG), _item(big=OTHER)),
        (_item(big=OTHER), None),
    ]


def test_conflict__current_item_with_a_large_attribute__comes_whole(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    with pytest.raises(ConflictError) as caught:
        store.put(CONTROL, _item(), condition=absent())

    assert caught.value.current == _item(big=BIG)


def test_conflict__of_a_transaction_with_large_attributes__comes_whole(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    with pytest.raises(ConflictError) as caught:
        store.transact([Put(CONTROL, {"PK": "p", "SK": "t"}), Check(CONTROL, KEY, equals("n", 2))])

    assert caught.value.current == _item(big=BIG)
    assert caught.value.failures == {1: _item(big=BIG)}


def test_update__of_an_item_with_a_large_attribute__returns_it_whole(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    assert store.update(CONTROL, KEY, set={"n": 2}) == _item(big=BIG, n=2)


def test_update__large_value__comes_back(store: AnyStore) -> None:
    store.put(CONTROL, _item())

    after = store.update(CONTROL, KEY, set={"big": BIG})

    assert after == _item(big=BIG)
    assert store.get(CONTROL, KEY, consistent=True) == _item(big=BIG)


def test_update__value_of_100_kilobytes__comes_back(store: AnyStore, blobs: FolderBlobs) -> None:
    store.put(CONTROL, _item())

    # Five of them would not fit together: an update spills by the size of the value alone.
    for number in range(5):
        after = store.update(CONTROL, KEY, set={f"text{number}": f"{number}" * 100_000})

    assert after == _item(**{f"text{number}": f"{number}" * 100_000 for number in range(5)})
    assert store.get(CONTROL, KEY, consistent=True) == after


def test_update__large_attribute_removed_or_replaced__is_gone(store: AnyStore) -> None:
    store.put(CONTROL, _item(one=BIG, two=OTHER))

    after = store.update(CONTROL, KEY, set={"one": "small"}, remove=["two"])

    assert after == _item(one="small")


def test_delete__item_with_a_large_attribute__returns_it_whole(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    assert store.delete(CONTROL, KEY) == _item(big=BIG)


def test_transact__large_values__come_back(store: AnyStore) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "updated"})

    store.transact([Put(CONTROL, _item(big=BIG)), Update(CONTROL, Key("p", "updated"), set={"big": OTHER})])

    assert contents(store, CONTROL, "p") == [_item(big=BIG), {"PK": "p", "SK": "updated", "big": OTHER}]


def test_batch_write__large_values__come_back(store: AnyStore) -> None:
    items = [{"PK": "p", "SK": f"{n}", "big": f"{n}" * 600_000} for n in range(4)]

    store.batch_write([*(Put(CONTROL, item) for item in items), Delete(CONTROL, Key("p", "nowhere"))])

    assert contents(store, CONTROL, "p") == items


def test_put__the_item_that_was_read__can_be_put_back(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))
    item = store.get(CONTROL, KEY, consistent=True)
    assert item is not None

    store.put(CONTROL, {**item, "n": 2})

    assert store.get(CONTROL, KEY, consistent=True) == _item(big=BIG, n=2)


def test_condition__on_an_item_with_a_large_attribute__is_decided_by_the_rest(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG, version=1))

    after = store.update(CONTROL, KEY, set={"version": 2}, condition=version_is(1))

    assert after == _item(big=BIG, version=2)


def test_condition__on_the_large_attribute_itself__sees_that_it_is_there_and_different(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    store.transact([Check(CONTROL, KEY, has("big"))])
    store.update(CONTROL, KEY, set={"n": 2}, condition=differs("big", "small"))
    with pytest.raises(ConflictError):
        store.update(CONTROL, KEY, set={"n": 3}, condition=equals("big", "small"))


# How it is kept


def test_get_raw__large_attribute__is_a_reference(store: AnyStore, blobs: FolderBlobs) -> None:
    store.put(CONTROL, _item(big=BIG))

    raw = store.get_raw(CONTROL, KEY)

    assert raw is not None
    assert raw["n"] == 1
    assert raw["big"][BLOB] in _blobs(blobs)


def test_get_raw__small_missing_or_expired_item__is_what_is_stored(store: AnyStore, clock: VirtualClock) -> None:
    store.put(CONTROL, _item(ttl=int(clock.seconds()) + 60))
    assert store.get_raw(CONTROL, KEY) == _item(ttl=int(clock.seconds()) + 60)
    assert store.get_raw(CONTROL, Key("p", "t")) is None

    clock.advance(61)

    # Expired and not yet deleted: a blob it points to is still needed, for the change that its removal will be.
    assert store.get_raw(CONTROL, KEY) is not None
    assert store.get(CONTROL, KEY) is None


def test_put__refused_by_its_condition__leaves_the_old_value_readable(store: AnyStore) -> None:
    store.put(CONTROL, _item(big=BIG))

    with pytest.raises(ConflictError):
        store.put(CONTROL, _item(big=OTHER), condition=equals("n", 2))

    assert store.get(CONTROL, KEY, consistent=True) == _item(big=BIG)


def test_get__blob_gone__is_corruption(store: AnyStore, blobs: FolderBlobs) -> None:
    store.put(CONTROL, _item(big=BIG))
    for name in _blobs(blobs):
        blobs.delete(name)

    with pytest.raises(CorruptionError) as caught:
        store.get(CONTROL, KEY, consistent=True)

    assert caught.type is CorruptionError


def test_put__text_that_looks_like_a_reference__stays_text(store: AnyStore) -> None:
    item = _item(text=json.dumps({BLOB: "spill/x/y", "bytes": 1}))

    store.put(CONTROL, item)

    assert store.get(CONTROL, KEY, consistent=True) == item


# Sweeping blobs


def test_sweep__blobs_that_rows_point_to__are_kept(
    store: AnyStore, blobs: FolderBlobs, spill: Spill, clock: VirtualClock
) -> None:
    store.put(CONTROL, _item(big=BIG))
    clock.advance(LONG_AFTER_SECONDS)

    assert spill.sweep(store) == 0
    assert store.get(CONTROL, KEY, consistent=True) == _item(big=BIG)


def test_sweep__blobs_of_deleted_and_overwritten_items__go_in_time(
    store: AnyStore, blobs: FolderBlobs, spill: Spill, clock: VirtualClock
) -> None:
    deleted, overwritten, expired = ({"PK": "p", "SK": name, "big": BIG} for name in ("d", "o", "x"))
    store.batch_write([Put(CONTROL, deleted), Put(CONTROL, overwritten)])
    store.put(CONTROL, {**expired, "ttl": int(clock.seconds()) + 60})
    store.put(CONTROL, _item(big=BIG))
    store.delete(CONTROL, Key("p", "d"))
    store.put(CONTROL, {"PK": "p", "SK": "o"})

    for _ in range(2):
        clock.advance(LONG_AFTER_SECONDS)
        spill.sweep(store)

    # The expired item goes when its row does, which is the backend's affair.
    assert len(_blobs(blobs)) == 2
    assert store.get(CONTROL, KEY, consistent=True) == _item(big=BIG)


def test_sweep__blob_of_a_refused_write__goes_in_time(
    store: AnyStore, blobs: FolderBlobs, spill: Spill, clock: VirtualClock
) -> None:
    store.put(CONTROL, _item())
    with pytest.raises(ConflictError):
        store.put(CONTROL, _item(big=BIG), condition=absent())

    for _ in range(2):
        clock.advance(LONG_AFTER_SECONDS)
        spill.sweep(store)

    assert _blobs(blobs) == []


def test_sweep__old_blob_whose_row_was_just_overwritten__is_kept_while_the_stream_still_reports_it(
    store: AnyStore, spill: Spill, clock: VirtualClock, eventually: Eventually
) -> None:
    store.put(PIPELINES, _item(big=BIG))
    first = eventually(lambda: store.changes(PIPELINES, "reader"), lambda batch: len(batch.changes) == 1)
    store.checkpoint(PIPELINES, "reader", first.position)
    clock.advance(LONG_AFTER_SECONDS)
    store.put(PIPELINES, _item(big="small"))

    spill.sweep(store)

    batch = eventually(lambda: store.changes(PIPELINES, "reader"), lambda batch: len(batch.changes) == 1)
    assert batch.changes[0].kind is ChangeKind.MODIFY
    assert batch.changes[0].old == _item(big=BIG)
    assert batch.changes[0].new == _item(big="small")
