"""A process that dies at each SQL statement of its life in turn: nothing half done, nothing acknowledged lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.store.catalogue.tables import CONTROL, INCIDENT_INDEX, SIGNAL_STATE
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import ChangeKind, Put, Query, Update, Write
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore
from tests.stores import create_sqlite

SIGNAL = Key("urn:dp:orders", "FRESHNESS")
DIED = 77
TRANSACTIONS = 4


def transaction(number: int) -> list[Write]:
    """One step of a story: the signal moves on, an incident opens, a dedup key is taken."""
    moved: Write = (
        Put(SIGNAL_STATE, {**SIGNAL_STATE.key_attributes(SIGNAL), "version": 1, "seen": 0}, absent())
        if number == 0
        else Update(SIGNAL_STATE, SIGNAL, {"version": number + 1}, {"seen": 1}, (), version_is(number))
    )
    incident = {"PK": f"INC#{number}", "SK": "META", "GSI1PK": "DS#urn:dp:orders", "GSI1SK": str(number)}
    dedup = {"PK": f"DEDUP#{number}", "SK": "DEDUP", "due_pk": "D", "due_at_ms": number}
    return [moved, Put(INCIDENT_INDEX, incident, absent()), Put(CONTROL, dedup)]


def live_until(folder: Path, statement_count: int) -> tuple[int, int]:
    """Run the story in a child that dies at the given statement; return its exit code and what it acknowledged."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        store = create_sqlite(folder)
        left = [statement_count]

        def count_down(_: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                os._exit(DIED)

        store._commits._connection.set_trace_callback(count_down)
        for number in range(TRANSACTIONS):
            store.transact(transaction(number), token=f"story-{number}")
            os.write(writer, b".")
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    acknowledged = len(os.read(reader, 100))
    os.close(reader)
    return os.waitstatus_to_exitcode(status), acknowledged


def steps_done(store: SqliteStore) -> int:
    """Return how many transactions took place, having checked that each of them is whole."""
    signal = store.get(SIGNAL_STATE, SIGNAL)
    done = 0 if signal is None else int(signal["version"])
    incidents = store.query(Query(table=INCIDENT_INDEX, index="dataset-time-index", partition="DS#urn:dp:orders"))
    dedups = store.query(Query(table=CONTROL, index="due-index", partition="D"))
    assert [item["PK"] for item in incidents.items] == [f"INC#{number}" for number in range(done)]
    assert [item["PK"] for item in dedups.items] == [f"DEDUP#{number}" for number in range(done)]
    kinds = [change.kind for change in store.changes(SIGNAL_STATE, "crash-test").changes]
    assert kinds == [ChangeKind.INSERT, *[ChangeKind.MODIFY] * (done - 1)][:done]
    return done


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_crash__at_every_statement__whole_transactions_only_and_the_rest_can_be_sent_again(tmp_path: Path) -> None:
    for statement_count in range(1, 200):
        folder = tmp_path / str(statement_count)
        folder.mkdir()
        code, acknowledged = live_until(folder, statement_count)

        store = create_sqlite(folder)
        done = steps_done(store)
        assert acknowledged <= done <= acknowledged + 1
        # A client without an answer sends everything again under the same tokens.
        for number in range(TRANSACTIONS):
            store.transact(transaction(number), token=f"story-{number}")
        assert steps_done(store) == TRANSACTIONS
        signal = store.get(SIGNAL_STATE, SIGNAL)
        assert signal is not None
        assert signal["seen"] == TRANSACTIONS - 1
        store.close()
        if code == 0:
            assert statement_count > 20, "the story has more statements than that"
            return
        assert code == DIED
    pytest.fail("the story never came to its end")
