"""Cursors come back as they were given out, to the query they were given out for, or not at all."""

from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest

from headgate.clock import VirtualClock
from headgate.errors import CursorError
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, FANOUT, PIPELINES, TURNS
from headgate.store.keyring import RETIRED_KEPT_MAX, Keyring, Purpose
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Query, Range, Sort

CLOCK = VirtualClock(2_208_988_800.0)
QUERY = Query(table=PIPELINES, partition="PIPELINE#a", sort=Sort(Range.BEGINS_WITH, "RUN#"))
LAST = {"PK": "PIPELINE#a", "SK": "RUN#7", "status": "RUNNING"}
URL_SAFE = string.ascii_letters + string.digits + "-_"


@pytest.fixture
def keyring() -> Keyring:
    return Keyring.generate(CLOCK)


@pytest.fixture
def cursors(keyring: Keyring) -> Cursors:
    return Cursors(keyring)


def _resumed(query: Query, cursor: str, **changes: Any) -> Query:
    return msgspec.structs.replace(query, cursor=cursor, **changes)


def test_position__no_cursor__is_the_first_page(cursors: Cursors) -> None:
    assert cursors.position(QUERY) is None


def test_position__cursor_of_a_table_query__is_the_key_of_the_last_item(cursors: Cursors) -> None:
    cursor = cursors.after(QUERY, LAST)

    assert cursors.position(_resumed(QUERY, cursor)) == {"PK": "PIPELINE#a", "SK": "RUN#7"}


def test_position__table_without_a_sort_key__is_the_partition_key(cursors: Cursors) -> None:
    query = Query(table=EVIDENCE_CACHE, partition="evd-1")

    cursor = cursors.after(query, {"evidence_id": "evd-1", "other": 1})

    assert cursors.position(_resumed(query, cursor)) == {"evidence_id": "evd-1"}


def test_position__cursor_of_an_index_query__has_the_keys_of_index_and_table(cursors: Cursors) -> None:
    query = Query(table=CONTROL, index="due-index", partition="ESCALATION#1")
    last = {"PK": "a", "SK": "b", "due_pk": "ESCALATION#1", "due_at_ms": 12, "other": "x"}

    cursor = cursors.after(query, last)

    assert cursors.position(_resumed(query, cursor)) == {
        "due_pk": "ESCALATION#1",
        "due_at_ms": 12,
        "PK": "a",
        "SK": "b",
    }


@pytest.mark.parametrize("turn", [0, -1, 12, 2**63, 10**37])
def test_position__number_key__stays_a_number(cursors: Cursors, turn: int) -> None:
    query = Query(table=TURNS, partition="exe_1")

    cursor = cursors.after(query, {"execution_id": "exe_1", "turn": turn})

    assert cursors.position(_resumed(query, cursor)) == {"execution_id": "exe_1", "turn": turn}


def test_position__keys_of_any_text__come_back(cursors: Cursors) -> None:
    query = Query(table=PIPELINES, partition='é#"\\ \n')
    last = {"PK": 'é#"\\ \n', "SK": "漢字 \U0001f600"}

    assert cursors.position(_resumed(query, cursors.after(query, last))) == last


def test_after__any_item__gives_url_safe_text_without_other_attributes(cursors: Cursors) -> None:
    cursor = cursors.after(QUERY, LAST)

    assert set(cursor) <= set(URL_SAFE + ".")
    assert "status" not in cursor


@pytest.mark.parametrize(
    "changes",
    [
        {"table": FANOUT},
        {"partition": "PIPELINE#b"},
        {"sort": None},
        {"sort": Sort(Range.BEGINS_WITH, "RUNLOG#")},
        {"sort": Sort(Range.AT_LEAST, "RUN#")},
        {"sort": Sort(Range.BETWEEN, "RUN#", "RUN#9")},
        {"descending": True},
        {"index": "GSI1"},
    ],
    ids=str,
)
def test_position__cursor_of_another_query__is_refused(cursors: Cursors, changes: dict[str, Any]) -> None:
    cursor = cursors.after(QUERY, LAST)

    with pytest.raises(CursorError) as caught:
        cursors.position(_resumed(QUERY, cursor, **changes))

    assert caught.type is CursorError


def test_position__number_and_text_of_the_same_digits__are_different_queries(cursors: Cursors) -> None:
    number = Query(table=TURNS, partition="exe_1", sort=Sort(Range.AT_LEAST, 7))
    cursor = cursors.after(number, {"execution_id": "exe_1", "turn": 8})

    with pytest.raises(CursorError):
        cursors.position(_resumed(number, cursor, sort=Sort(Range.AT_LEAST, "7")))


@pytest.mark.parametrize("changes", [{"limit": 1}, {"limit": 1000}, {"consistent": True}], ids=str)
def test_position__another_limit_or_consistency__is_the_same_query(cursors: Cursors, changes: dict[str, Any]) -> None:
    cursor = cursors.after(QUERY, LAST)

    assert cursors.position(_resumed(QUERY, cursor, **changes)) == {"PK": "PIPELINE#a", "SK": "RUN#7"}


def test_position__any_character_replaced_by_any_other__is_refused(cursors: Cursors) -> None:
    cursor = cursors.after(QUERY, LAST)
    accepted = []

    for place, original in enumerate(cursor):
        for character in set(URL_SAFE) - {original}:
            altered = cursor[:place] + character + cursor[place + 1 :]
            if _is_accepted(cursors, altered):
                accepted.append((place, original, character))

    assert accepted == []


@pytest.mark.parametrize(
    "alter", [lambda c: c[:-1], lambda c: c[1:], lambda c: c + "A", lambda c: c + "=", lambda c: c + c]
)
def test_position__cursor_cut_or_lengthened__is_refused(cursors: Cursors, alter: Any) -> None:
    assert not _is_accepted(cursors, alter(cursors.after(QUERY, LAST)))


@pytest.mark.parametrize("garbage", ["", ".", "..", "a.b.c", "x" * 5000, "é.é.é", "null", "\0", "a.b.c.d", "🎈"])
def test_position__not_a_cursor__is_refused(cursors: Cursors, garbage: str) -> None:
    with pytest.raises(CursorError) as caught:
        cursors.position(_resumed(QUERY, garbage))

    assert caught.type is CursorError


def test_position__token_signed_for_another_purpose__is_refused(cursors: Cursors, keyring: Keyring) -> None:
    _, _, payload = cursors.after(QUERY, LAST).split(".")
    forged = keyring.sign(Purpose.TOKEN, payload.encode())

    assert not _is_accepted(cursors, forged)


def test_position__cursor_of_another_keyring__is_refused(cursors: Cursors) -> None:
    foreign = Cursors(Keyring.generate(CLOCK)).after(QUERY, LAST)

    assert not _is_accepted(cursors, foreign)


def test_position__key_rotated_meanwhile__is_still_accepted(cursors: Cursors, keyring: Keyring) -> None:
    cursor = cursors.after(QUERY, LAST)

    rotated = Cursors(keyring.rotated(Purpose.CURSOR, CLOCK))

    assert _is_accepted(rotated, cursor)


def test_position__key_rotated_away__is_refused(cursors: Cursors, keyring: Keyring) -> None:
    cursor = cursors.after(QUERY, LAST)

    for _ in range(RETIRED_KEPT_MAX + 1):
        keyring = keyring.rotated(Purpose.CURSOR, CLOCK)

    assert not _is_accepted(Cursors(keyring), cursor)


def _is_accepted(cursors: Cursors, cursor: str) -> bool:
    try:
        return cursors.position(_resumed(QUERY, cursor)) is not None
    except CursorError:
        return False
