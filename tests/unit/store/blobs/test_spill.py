"""Large attributes move to blobs and back; the sweep deletes what no row points to, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import CorruptionError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import PREFIX, SPILL_BYTES_MIN, UPDATE_SPILL_BYTES, Spill
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, PIPELINES, TURNS
from headgate.store.model.schema import Key, Table
from headgate.store.model.validation import ITEM_BYTES_MAX
from headgate.store.model.values import BLOB, Item, stored_bytes

KB = 1024
HOUR = 3600
LONG_AFTER_SECONDS = 27 * HOUR


class Rows:
    """The least a sweep needs of a store: stored items by key."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, Key], Item] = {}
        self.on_read: Callable[[], None] = lambda: None

    def store(self, table: Table, item: Item) -> None:
        self._items[table.name, table.key_of(item)] = item

    def drop(self, table: Table, item: Item) -> None:
        del self._items[table.name, table.key_of(item)]

    def get_raw(self, table: Table, key: Key) -> Item | None:
        self.on_read()
        return self._items.get((table.name, key))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(2_208_988_800.0)


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path)


@pytest.fixture
def spill(blobs: FolderBlobs, clock: VirtualClock) -> Spill:
    return Spill(blobs, clock)


@pytest.fixture
def rows() -> Rows:
    return Rows()


def _item(**attributes: Any) -> Item:
    return {"PK": "a", "SK": "b", **attributes}


def _spilled(item: Item) -> set[str]:
    return {name for name, value in item.items() if isinstance(value, dict) and BLOB in value}


def _names(blobs: FolderBlobs) -> list[str]:
    return list(blobs.list(PREFIX))


def _sweep_twice(spill: Spill, rows: Rows, clock: VirtualClock) -> int:
    """Sweep after a day and again after another, for a blob may have to be found unreferenced before it is deleted."""
    swept = 0
    for _ in range(2):
        clock.advance(LONG_AFTER_SECONDS)
        swept += spill.sweep(rows)
    return swept


def test_fit__item_within_the_limit__is_left_alone(spill: Spill, blobs: FolderBlobs) -> None:
    item = _item(big="x" * (ITEM_BYTES_MAX - 100))

    assert spill.fit(CONTROL, item) is item
    assert _names(blobs) == []


def test_fit__item_over_the_limit__spills_its_largest_attribute_first(spill: Spill) -> None:
    item = _item(small="s" * 20 * KB, large="l" * 300 * KB, middle="m" * 200 * KB)

    fitted = spill.fit(CONTROL, item)

    assert _spilled(fitted) == {"large"}
    assert stored_bytes(fitted) <= ITEM_BYTES_MAX


def test_fit__one_spilled_attribute_is_not_enough__spills_the_next(spill: Spill) -> None:
    item = _item(one="1" * 500 * KB, two="2" * 500 * KB, three="3" * 20 * KB)

    fitted = spill.fit(CONTROL, item)

    assert _spilled(fitted) == {"one", "two"}


@pytest.mark.parametrize(
    "value",
    [
        "é" * 300_000,
        b"\x00\xff" * 300_000,
        ["text" * 50_000] * 3,
        {"$x": {"deep": ["y" * 500_000, b"z", frozenset({1})]}},
    ],
    ids=["text", "bytes", "list", "map"],
)
def test_restore__of_a_fitted_item__gives_it_back(spill: Spill, value: object) -> None:
    item = _item(value=value, other=1)

    fitted = spill.fit(CONTROL, item)

    assert _spilled(fitted) == {"value"}
    assert spill.restore(fitted) == item


def test_fit__any_item__leaves_the_callers_item_alone(spill: Spill) -> None:
    item = _item(big="x" * 500 * KB)

    spill.fit(CONTROL, item)

    assert item == _item(big="x" * 500 * KB)


def test_fit__many_small_attributes__stay_and_the_item_stays_too_large(spill: Spill, blobs: FolderBlobs) -> None:
    item = _item(**{f"a{number:03d}": "x" * 4 * KB for number in range(120)})

    fitted = spill.fit(CONTROL, item)

    assert stored_bytes(fitted) > ITEM_BYTES_MAX
    assert _names(blobs) == []


def test_fit__keys_and_index_attributes__are_never_spilled(spill: Spill) -> None:
    item = {
        "evidence_id": "e",
        "dataset_urn": "u" * SPILL_BYTES_MIN,
        "created_at": "c" * SPILL_BYTES_MIN,
        "payload": "x" * 500 * KB,
    }

    assert _spilled(spill.fit(EVIDENCE_CACHE, item)) == {"payload"}


def test_fit__spilled_reference__says_how_large_the_blob_is(spill: Spill, blobs: FolderBlobs) -> None:
    reference = spill.fit(CONTROL, _item(big="x" * 500 * KB))["big"]

    assert set(reference) == {BLOB, "bytes"}
    assert reference["bytes"] == len(blobs.get(reference[BLOB]))


def test_fit__same_item_within_the_hour__writes_one_blob(spill: Spill, blobs: FolderBlobs, clock: VirtualClock) -> None:
    first = spill.fit(CONTROL, _item(big="x" * 500 * KB))
    clock.advance(HOUR - 1)
    second = spill.fit(CONTROL, _item(big="x" * 500 * KB))

    assert first == second
    assert len(_names(blobs)) == 1


def test_fit__same_item_an_hour_later__takes_a_new_name(spill: Spill, blobs: FolderBlobs, clock: VirtualClock) -> None:
    spill.fit(CONTROL, _item(big="x" * 500 * KB))
    clock.advance(HOUR)
    spill.fit(CONTROL, _item(big="x" * 500 * KB))

    assert len(_names(blobs)) == 2


@pytest.mark.parametrize(
    "other", [(CONTROL, "a", "c"), (CONTROL, "b", "b"), (PIPELINES, "a", "b")], ids=["sort", "partition", "table"]
)
def test_fit__same_value_in_another_item__has_a_blob_of_its_own(
    spill: Spill, blobs: FolderBlobs, other: tuple[Table, str, str]
) -> None:
    table, partition, sort = other
    spill.fit(CONTROL, _item(big="x" * 500 * KB))

    spill.fit(table, {"PK": partition, "SK": sort, "big": "x" * 500 * KB})

    # One name for both would let a sweep of the one delete the other's.
    assert len(_names(blobs)) == 2


def test_fit__same_value_in_another_attribute__has_a_blob_of_its_own(spill: Spill, blobs: FolderBlobs) -> None:
    spill.fit(CONTROL, _item(one="x" * 500 * KB, two="x" * 500 * KB))

    assert len(_names(blobs)) == 2


def test_fit_update__large_value__is_spilled_by_its_own_size(spill: Spill) -> None:
    values = {"large": "x" * UPDATE_SPILL_BYTES, "small": "x" * (UPDATE_SPILL_BYTES - 100), "n": 1}

    fitted = spill.fit_update(CONTROL, Key("a", "b"), values)

    assert _spilled(fitted) == {"large"}
    assert spill.restore(fitted) == values


def test_fit_update__small_values__are_left_alone(spill: Spill, blobs: FolderBlobs) -> None:
    values = {"a": "x" * 1000, "b": [1, 2]}

    assert spill.fit_update(CONTROL, Key("a", "b"), values) is values
    assert _names(blobs) == []


def test_restore__nothing_was_spilled__is_the_very_same_item(spill: Spill) -> None:
    item = {"PK": "p", "SK": "s", "map": {"$other": 1}}

    assert spill.restore(item) is item


def test_restore__blob_gone__is_corruption(spill: Spill, blobs: FolderBlobs) -> None:
    fitted = spill.fit(CONTROL, _item(big="x" * 500 * KB))
    blobs.delete(fitted["big"][BLOB])

    with pytest.raises(CorruptionError) as caught:
        spill.restore(fitted)

    assert caught.type is CorruptionError


def test_restore__blob_damaged__is_corruption(spill: Spill, blobs: FolderBlobs, tmp_path: Path) -> None:
    name = spill.fit(CONTROL, _item(big="x" * 500 * KB))["big"][BLOB]
    content = bytearray((tmp_path / name).read_bytes())
    content[-10] ^= 1
    (tmp_path / name).write_bytes(content)

    with pytest.raises(CorruptionError):
        spill.restore(_item(big={BLOB: name, "bytes": 1}))


def test_spilled_blob__name__carries_the_hour_and_the_digest(spill: Spill, blobs: FolderBlobs) -> None:
    (name,) = [spill.fit(CONTROL, _item(big="x" * 500 * KB))["big"][BLOB]]

    assert name == f"spill/2040010100/{hashlib.sha256(blobs.get(name)).hexdigest()}"


def test_sweep__blob_that_a_row_points_to__is_kept(
    spill: Spill, blobs: FolderBlobs, rows: Rows, clock: VirtualClock
) -> None:
    rows.store(CONTROL, spill.fit(CONTROL, _item(big="x" * 500 * KB)))
    clock.advance(LONG_AFTER_SECONDS)

    assert spill.sweep(rows) == 0
    assert len(_names(blobs)) == 1


def test_sweep__crash_between_blob_and_row__leaves_an_orphan_that_is_deleted(
    spill: Spill, blobs: FolderBlobs, rows: Rows, clock: VirtualClock
) -> None:
    spill.fit(CONTROL, _item(big="x" * 500 * KB))

    assert _sweep_twice(spill, rows, clock) == 1
    assert _names(blobs) == []


def test_sweep__row_deleted_or_overwritten__deletes_its_blob(
    spill: Spill, blobs: FolderBlobs, rows: Rows, clock: VirtualClock
) -> None:
    first, second = ({"PK": key, "SK": "s", "big": "x" * 500 * KB} for key in ("deleted", "overwritten"))
    for item in (first, second):
        rows.store(CONTROL, spill.fit(CONTROL, item))
    rows.drop(CONTROL, first)
    rows.store(CONTROL, {"PK": "overwritten", "SK": "s", "big": "small"})

    assert _sweep_twice(spill, rows, clock) == 2
    assert _names(blobs) == []


@pytest.mark.parametrize("age_seconds", [0, HOUR, 24 * HOUR, 25 * HOUR])
def test_sweep__young_orphan__is_kept(
    spill: Spill, blobs: FolderBlobs, rows: Rows, clock: VirtualClock, age_seconds: float
) -> None:
    spill.fit(CONTROL, _item(big="x" * 500 * KB))
    clock.advance(age_seconds)

    assert spill.sweep(rows) == 0
    assert len(_names(blobs)) == 1


def test_sweep__same_value_written_again_later__keeps_the_newer_blob(
    spill: Spill, rows: Rows, clock: VirtualClock
) -> None:
    spill.fit(CONTROL, _item(big="x" * 500 * KB))
    clock.advance(2 * HOUR)
    fitted = spill.fit(CONTROL, _item(big="x" * 500 * KB))
    rows.store(CONTROL, fitted)

    assert _sweep_twice(spill, rows, clock) == 1
    assert spill.restore(fitted) == _item(big="x" * 500 * KB)


def test_sweep__limit__is_not_exceeded(spill: Spill, blobs: FolderBlobs, rows: Rows, clock: VirtualClock) -> None:
    for number in range(5):
        spill.fit(CONTROL, {"PK": "a", "SK": f"{number}", "big": "x" * 500 * KB})

    left = [5]
    while left[-1] and len(left) < 10:
        clock.advance(LONG_AFTER_SECONDS)
        swept = spill.sweep(rows, limit=2)
        assert swept <= 2
        left.append(left[-1] - swept)

    assert left[-1] == 0
    assert _names(blobs) == []


def test_sweep__item_with_a_number_key__is_looked_up_by_it(spill: Spill, rows: Rows, clock: VirtualClock) -> None:
    rows.store(TURNS, spill.fit(TURNS, {"execution_id": "e", "turn": 7, "big": "x" * 500 * KB}))
    clock.advance(LONG_AFTER_SECONDS)

    assert spill.sweep(rows) == 0


def test_sweep__blobs_outside_its_folder__are_not_touched(
    spill: Spill, blobs: FolderBlobs, rows: Rows, clock: VirtualClock
) -> None:
    blobs.put("archive/2026/01/15/evd-1.json.gz", b"kept")
    clock.advance(LONG_AFTER_SECONDS)

    assert spill.sweep(rows) == 0
    assert blobs.get("archive/2026/01/15/evd-1.json.gz") == b"kept"


def test_sweep__another_sweeper_is_faster__goes_on(
    spill: Spill, blobs: FolderBlobs, rows: Rows, clock: VirtualClock
) -> None:
    for number in range(3):
        spill.fit(CONTROL, {"PK": "a", "SK": f"{number}", "big": "x" * 500 * KB})
    last = _names(blobs)[-1]
    rows.on_read = lambda: blobs.delete(last)

    assert _sweep_twice(spill, rows, clock) >= 2
    assert _names(blobs) == []
