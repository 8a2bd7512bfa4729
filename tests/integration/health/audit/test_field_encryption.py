"""Secret fields: unreadable in raw rows, bound to their place, and readable after any rotation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import CorruptionError
from headgate.health.audit.field_encryption import MASK, FieldSealer, mask
from headgate.store.catalogue.tables import INCIDENT_INDEX
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

PLAIN_TEXT = {"pagerduty_incident_id": "PD-77", "slack_thread_ts": "17.5"}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def keyring(clock: VirtualClock) -> Keyring:
    return Keyring.generate(clock)


@pytest.fixture
def fields(keyring: Keyring) -> FieldSealer:
    return FieldSealer(keyring)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as opened:
        yield opened


def incident(number: int = 1, status: str = "OPEN", **more: Any) -> dict[str, Any]:
    return {
        "PK": f"INC#{number}", "SK": "META", "GSI2PK": f"STATUS#{status}", "GSI2SK": f"SEV_1#{number:04d}",
        "version": 3, "title": "late", "oncall_user": "ann@example.com", "notification_state": PLAIN_TEXT, **more,
    }  # fmt: skip


def test_seal__given_row__hides_the_secret_fields_alone_and_open_gives_them_back(fields: FieldSealer) -> None:
    row = incident()
    sealed = fields.seal(row)

    assert "ann@example.com" not in str(sealed)
    assert "PD-77" not in str(sealed)
    assert {name: sealed[name] for name in row if name not in ("oncall_user", "notification_state")} == {
        name: row[name] for name in row if name not in ("oncall_user", "notification_state")
    }
    assert fields.open(sealed) == row == incident()


def test_seal__given_store__leaves_nothing_readable_on_disk(
    fields: FieldSealer, store: SqliteStore, tmp_path: Path
) -> None:
    store.put(INCIDENT_INDEX, fields.seal(incident()))

    kept = store.get(INCIDENT_INDEX, Key("INC#1", "META"), consistent=True)
    assert kept is not None
    assert fields.open(kept)["oncall_user"] == "ann@example.com"
    raw = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"late" in raw
    assert b"ann@example" not in raw
    assert b"PD-77" not in raw


def test_seal__given_same_value_twice__looks_different(fields: FieldSealer) -> None:
    assert fields.seal(incident())["oncall_user"] != fields.seal(incident())["oncall_user"]


def test_seal__given_sealed_row__changes_nothing(fields: FieldSealer) -> None:
    sealed = fields.seal(incident())

    assert fields.seal(sealed) == sealed


@pytest.mark.parametrize("value", ["sealed:1:", "sealed:1:abcd.efgh", "sealed:1:é"])
def test_seal__given_text_that_looks_sealed__is_sealed_as_any_other(fields: FieldSealer, value: str) -> None:
    sealed = fields.seal(incident(oncall_user=value))

    assert sealed["oncall_user"] != value
    assert fields.open(sealed)["oncall_user"] == value


def test_seal__given_value_of_another_incident__is_not_taken_for_this_ones(fields: FieldSealer) -> None:
    other = fields.seal(incident(2))["oncall_user"]

    assert fields.open(fields.seal(incident(oncall_user=other)))["oncall_user"] == other


@pytest.mark.parametrize("row", [{"PK": "INC#1"}, {"PK": "INC#1", "oncall_user": None, "notification_state": None}])
def test_seal__given_nothing_secret__leaves_it(fields: FieldSealer, row: dict[str, Any]) -> None:
    assert fields.seal(row) == row
    assert fields.open(row) == row
    assert fields.view(row, is_allowed=False) == row
    assert fields.reseal(row) is None


def test_open__given_row_from_before_encryption__reads_it_as_it_is(fields: FieldSealer) -> None:
    assert fields.open(incident()) == incident()


@pytest.mark.parametrize(
    "tamper",
    [
        lambda row, _other: {**row, "oncall_user": row["oncall_user"][:-4] + "AAAA"},
        lambda row, other: {**row, "oncall_user": other["oncall_user"]},
        lambda row, _other: {**row, "oncall_user": row["notification_state"]},
        lambda row, _other: {**row, "PK": "INC#9"},
        lambda row, _other: {**row, "oncall_user": row["oncall_user"].replace("sealed:1:", "sealed:1:0000")},
        lambda row, _other: {**row, "oncall_user": "sealed:1:"},
    ],
)
def test_open__given_value_altered_or_moved__is_refused(
    fields: FieldSealer, tamper: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
) -> None:
    row, other = fields.seal(incident()), fields.seal(incident(2))

    with pytest.raises(CorruptionError, match="INC#"):
        fields.open(tamper(row, other))


def test_open__given_another_keyring__is_refused(fields: FieldSealer, clock: VirtualClock) -> None:
    with pytest.raises(CorruptionError):
        FieldSealer(Keyring.generate(clock)).open(fields.seal(incident()))


def test_view__given_no_right__shows_that_there_is_something_and_no_more(fields: FieldSealer) -> None:
    sealed = fields.seal(incident())

    seen = fields.view(sealed, is_allowed=False)
    assert seen["oncall_user"] == MASK
    assert seen["notification_state"] == {"pagerduty_incident_id": MASK, "slack_thread_ts": MASK}
    assert seen["title"] == "late"
    assert fields.view(sealed, is_allowed=True) == incident()


def test_mask__given_values__hides_all_of_them() -> None:
    assert mask("ann") == MASK
    assert mask("") == MASK
    assert mask(None) is None
    assert mask({"a": 1, "b": None}) == {"a": MASK, "b": MASK}


def test_rotation__given_old_values__still_open_and_new_ones_are_under_the_new_key(
    keyring: Keyring, clock: VirtualClock
) -> None:
    old = FieldSealer(keyring).seal(incident())
    for _ in range(10):
        keyring = keyring.rotated(Purpose.FIELD, clock)
    fields = FieldSealer(keyring)

    assert fields.open(old) == incident()
    changed = fields.reseal(old)
    assert changed is not None
    active = keyring.keys(Purpose.FIELD)[-1].id
    assert all(value.startswith(f"sealed:1:{active}.") for value in changed.values())
    assert set(changed) == {"oncall_user", "notification_state"}
    assert fields.open({**old, **changed}) == incident()
    assert fields.reseal({**old, **changed}) is None


def test_reseal_all__given_rows_of_all_ages__brings_them_under_the_active_key(
    store: SqliteStore, keyring: Keyring, clock: VirtualClock
) -> None:
    rotated = keyring.rotated(Purpose.FIELD, clock)
    for number in range(1, 260):
        store.put(INCIDENT_INDEX, FieldSealer(keyring).seal(incident(number)))
    store.put(INCIDENT_INDEX, incident(300, "RESOLVED"))
    store.put(INCIDENT_INDEX, FieldSealer(rotated).seal(incident(301, "ACKNOWLEDGED")))
    store.put(INCIDENT_INDEX, incident(302, "ACKNOWLEDGED", oncall_user=None, notification_state=None))

    assert FieldSealer(rotated).reseal_all(store) == 260
    assert FieldSealer(rotated).reseal_all(store) == 0
    # The old key can now be lost.
    alone = FieldSealer(Keyring({purpose: rotated.keys(purpose)[-1:] for purpose in Purpose}))
    for number in (1, 259, 300, 301):
        row = store.get(INCIDENT_INDEX, Key(f"INC#{number}", "META"), consistent=True)
        assert row is not None
        assert alone.open(row)["oncall_user"] == "ann@example.com"
        assert row["version"] == 3


def test_reseal_all__given_row_changed_meanwhile__does_not_undo_that(
    store: SqliteStore, keyring: Keyring, clock: VirtualClock
) -> None:
    rotated = FieldSealer(keyring.rotated(Purpose.FIELD, clock))
    store.put(INCIDENT_INDEX, FieldSealer(keyring).seal(incident()))
    newer = rotated.seal(incident(oncall_user="bob", version=4))

    class Racing:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def update(self, *args: Any, **options: Any) -> Any:
            store.put(INCIDENT_INDEX, newer)
            return store.update(*args, **options)

    racing: Store = Racing()
    assert rotated.reseal_all(racing) == 0
    assert store.get(INCIDENT_INDEX, Key("INC#1", "META"), consistent=True) == newer
