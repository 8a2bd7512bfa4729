"""Updates: set, add and remove attributes of an item that exists."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import ConflictError, InvalidItemError
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, TURNS
from headgate.store.model.conditions import all_of, exists, version_is
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import assert_refused, contents

READS_INDEXES = False

TABLES = (CONTROL, EVIDENCE_CACHE, TURNS)
KEY = Key("p", "s")


def _item(**attributes: Any) -> dict[str, Any]:
    return {"PK": "p", "SK": "s", **attributes}


def test_update__set__changes_and_adds_attributes_and_returns_the_item(store: Store) -> None:
    store.put(CONTROL, _item(kept=1, changed="old"))

    after = store.update(CONTROL, KEY, set={"changed": "new", "added": [1, 2.0, {"x": None}]})

    assert after == _item(kept=1, changed="new", added=[1, 2, {"x": None}])
    assert store.get(CONTROL, KEY, consistent=True) == after


def test_update__set_a_map__replaces_the_whole_map(store: Store) -> None:
    store.put(CONTROL, _item(nested={"a": 1, "b": 2}))

    after = store.update(CONTROL, KEY, set={"nested": {"c": 3}})

    assert after == _item(nested={"c": 3})


def test_update__remove__takes_attributes_away(store: Store) -> None:
    store.put(CONTROL, _item(kept=1, gone=2, also_gone=3))

    after = store.update(CONTROL, KEY, remove=["gone", "also_gone"])

    assert after == _item(kept=1)
    assert store.get(CONTROL, KEY, consistent=True) == after


def test_update__remove_what_is_not_there__is_harmless(store: Store) -> None:
    store.put(CONTROL, _item(kept=1))

    assert store.update(CONTROL, KEY, remove=["never_was"]) == _item(kept=1)


def test_update__add_under_a_version__counts(store: Store) -> None:
    store.put(CONTROL, _item(version=1, done=5))

    after = store.update(CONTROL, KEY, add={"version": 1, "done": -2, "fresh": 7}, condition=version_is(1))

    # An attribute that is not there counts from zero.
    assert after == _item(version=2, done=3, fresh=7)
    assert store.get(CONTROL, KEY, consistent=True) == after


def test_update__set_add_and_remove_together__all_happen(store: Store) -> None:
    store.put(CONTROL, _item(version=1, status="PENDING", error="x"))

    after = store.update(
        CONTROL,
        KEY,
        set={"status": "RUNNING"},
        add={"version": 1},
        remove=["error"],
        condition=all_of(exists(), version_is(1)),
    )

    assert after == _item(version=2, status="RUNNING")


@pytest.mark.parametrize(
    ("start", "amount", "total"),
    [
        (0.1, 0.2, 0.3),
        (1, 0.5, 1.5),
        (1.5, 0.5, 2),
        (0, -3, -3),
        (2**63 - 1, 1, 2**63),
        # MiniStack adds with 28 digits; DynamoDB itself, like SQLite here, with 38.
        (10**27, 1, 10**27 + 1),
        (1e-7, 1e-7, 2e-7),
        (5, 0, 5),
    ],
)
def test_update__add_two_numbers__is_the_decimal_sum(store: Store, start: float, amount: float, total: float) -> None:
    store.put(CONTROL, _item(version=1, sum=start))

    after = store.update(CONTROL, KEY, set={"version": 2}, add={"sum": amount}, condition=version_is(1))

    assert after["sum"] == total
    assert type(after["sum"]) is type(total)
    assert store.get(CONTROL, KEY, consistent=True) == after


@pytest.mark.parametrize("value", ["5", None, True, [1], {"a": 1}], ids=repr)
def test_update__add_to_what_is_not_a_number__is_refused(store: Store, value: object) -> None:
    store.put(CONTROL, _item(version=1, sum=value))

    assert_refused(
        InvalidItemError,
        lambda: store.update(CONTROL, KEY, set={"version": 2}, add={"sum": 1}, condition=version_is(1)),
        lambda: store.get(CONTROL, KEY, consistent=True),
    )


def test_update__add_without_version_or_token__is_refused(store: Store) -> None:
    store.put(CONTROL, _item(count=1))

    for condition in (None, exists()):
        assert_refused(
            InvalidItemError,
            lambda condition=condition: store.update(CONTROL, KEY, add={"count": 1}, condition=condition),  # type: ignore[misc]
            lambda: store.get(CONTROL, KEY, consistent=True),
        )


def test_update__missing_item__conflicts_and_creates_nothing(store: Store) -> None:
    with pytest.raises(ConflictError) as caught:
        store.update(CONTROL, KEY, set={"status": "COMPLETED"})

    assert caught.type is ConflictError
    assert caught.value.current is None
    assert store.get(CONTROL, KEY, consistent=True) is None
    assert contents(store, CONTROL, "p") == []


def test_update__values_changed_by_the_caller_afterwards__are_stored_as_they_were(store: Store) -> None:
    store.put(CONTROL, _item())
    tags = ["a"]

    after = store.update(CONTROL, KEY, set={"tags": tags})
    tags.append("b")

    assert after == _item(tags=["a"])
    assert store.get(CONTROL, KEY, consistent=True) == _item(tags=["a"])


def test_update__tables_without_sort_key_and_with_number_key__are_updated(store: Store) -> None:
    store.put(EVIDENCE_CACHE, {"evidence_id": "e"})
    store.put(TURNS, {"execution_id": "x", "turn": 7})

    assert store.update(EVIDENCE_CACHE, Key("e"), set={"n": 1}) == {"evidence_id": "e", "n": 1}
    assert store.update(TURNS, Key("x", 7), set={"n": 1}) == {"execution_id": "x", "turn": 7, "n": 1}
