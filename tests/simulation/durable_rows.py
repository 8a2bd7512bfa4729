"""What must hold of the rows of durable execution, whichever process crashed when. A check sees the rows alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.durable.model.history import (
    ActivityEnded,
    ChildEnded,
    Event,
    Reapplied,
    SignalSent,
    Started,
    Status,
    TimerFired,
    Turn,
    load_event,
    load_turn,
)
from headgate.durable.model.history_reader import turn_ranges
from headgate.durable.model.records import (
    MESSAGES,
    UNDISPATCHED,
    Activity,
    Execution,
    Timer,
    activity_id,
    activity_of,
    execution_of,
    timer_id,
    timer_of,
)
from headgate.durable.replay.open_work import OpenWork, open_work
from headgate.durable.sdk.definitions import Workflow
from headgate.store.catalogue.tables import ACTIVITIES, CONTROL, EXECUTIONS, INBOXES, TIMERS, TURNS
from headgate.testing import replay

# These wait for a signal and for nothing else, in some of their states.
WAIT_FOR_SIGNALS = frozenset({"collector", "loop", "brittle"})
_RUN_FREE_SEQS = frozenset({0, -1, -2})


@dataclass
class Rows:
    """Everything in the store at one moment."""

    executions: dict[str, Execution]
    turns: dict[str, list[Turn]]
    mail: dict[str, list[Event]]
    activities: dict[str, Activity]
    timers: dict[str, Timer]
    control: list[dict[str, Any]]

    def present_run(self, row: Execution) -> list[Turn]:
        turns = self.turns.get(row.execution_id, [])
        kept = [turn for first, last in turn_ranges(row.kept_turns) for turn in turns[first - 1 : last]]
        return [*kept, *turns[row.first_turn - 1 :]]


class Reader:
    """Reads rows beside the store. Turns are read once: they never change, which is checked by their number."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._turns: dict[str, list[Turn]] = {}

    def read(self) -> Rows:
        self._read_turns()
        mail: dict[str, list[Event]] = {}
        for item in self._items(INBOXES.name):
            if item["message_id"].startswith(MESSAGES):
                event = load_event(item["body"])
                inner = event.events if isinstance(event, Reapplied) else ()
                mail.setdefault(item["execution_id"], []).extend([event, *inner])
        return Rows(
            executions={row["execution_id"]: execution_of(row) for row in self._items(EXECUTIONS.name)},
            turns=self._turns,
            mail=mail,
            activities={row["activity_id"]: activity_of(row) for row in self._items(ACTIVITIES.name)},
            timers={row["timer_id"]: timer_of(row) for row in self._items(TIMERS.name)},
            control=list(self._items(CONTROL.name)),
        )

    def close(self) -> None:
        self._connection.close()

    def _read_turns(self) -> None:
        known = {execution_id: len(turns) for execution_id, turns in self._turns.items()}
        counts = self._connection.execute(f'SELECT pk, count(*), max(sk) FROM "{TURNS.name}" GROUP BY pk').fetchall()
        for execution_id, count, last in counts:
            assert count == last, f"{execution_id}: {count} turns, and the last is number {last}"
            have = known.get(execution_id, 0)
            assert count >= have, f"{execution_id}: it had {have} turns and has {count}"
            if count == have:
                continue
            found = self._connection.execute(
                f'SELECT body FROM "{TURNS.name}" WHERE pk = ? AND sk > ? ORDER BY sk', (execution_id, have)
            ).fetchall()
            self._turns.setdefault(execution_id, []).extend(load_turn(json.loads(body)["body"]) for (body,) in found)

    def _items(self, table: str) -> Iterator[dict[str, Any]]:
        for (body,) in self._connection.execute(f'SELECT body FROM "{table}"').fetchall():
            yield json.loads(body)


@dataclass
class Checks:
    """Holds what was seen before, for what must only grow."""

    seen: dict[str, Execution] = field(default_factory=dict)

    def check(self, rows: Rows) -> None:
        """Raise `AssertionError` for the first thing that is not as it must be."""
        for row in rows.executions.values():
            self._grows(row)
            assert row.turn == len(rows.turns.get(row.execution_id, [])), f"{row.execution_id}: turns and row differ"
            check_execution(rows, row)
        check_orphans(rows)
        check_slots(rows)
        self.seen = rows.executions

    def _grows(self, row: Execution) -> None:
        before = self.seen.get(row.execution_id)
        if before is None or before == row:
            return
        name = row.execution_id
        assert row.version > before.version, f"{name}: changed without a new version"
        assert (row.run, row.turn) >= (before.run, before.turn), f"{name}: run or turn went back"
        if before.status.is_closed and row.run == before.run:
            assert row.status is before.status, f"{name}: was {before.status} and is {row.status}"
            assert row.result == before.result, f"{name}: its result changed"


def check_execution(rows: Rows, row: Execution) -> None:
    """Whatever an open execution waits for is there; a closed one has nothing left."""
    name = row.execution_id
    if row.dispatched is not None:
        assert row.ready_pk == UNDISPATCHED, f"{name}: undispatched, and no sweep will find it"
        return
    if row.status.is_closed:
        return
    events = rows.mail.get(name, [])
    if row.turn < row.first_turn:
        begins = any(isinstance(event, Started) for event in events) or timer_id(name, 0, 0) in rows.timers
        assert begins, f"{name}: run {row.run} was started, and nothing will begin it"
        return
    work = open_work(rows.present_run(row))
    missing = [*_missing_rows(rows, row, work, events), *_missing_children(rows, row, work, events)]
    assert not missing, f"{name} (run {row.run}, turn {row.turn}, {row.status}): waits for what is gone: {missing}"
    waits = bool(work.activities or work.timers or work.children or events)
    if not waits and row.status is Status.RUNNING:
        assert row.workflow in WAIT_FOR_SIGNALS, f"{name}: running, and nothing will ever wake it"


def _missing_rows(rows: Rows, row: Execution, work: OpenWork, events: list[Event]) -> list[str]:
    ended = {event.seq for event in events if isinstance(event, ActivityEnded)}
    fired = {event.seq for event in events if isinstance(event, TimerFired)}
    gone = [
        f"activity {seq}"
        for seq in work.activities
        if activity_id(row.execution_id, row.run, seq) not in rows.activities
    ]
    rung = [f"timer {seq}" for seq in work.timers if timer_id(row.execution_id, row.run, seq) not in rows.timers]
    return [what for what in gone if int(what.split()[1]) not in ended] + [
        what for what in rung if int(what.split()[1]) not in fired
    ]


def _missing_children(rows: Rows, row: Execution, work: OpenWork, events: list[Event]) -> list[str]:
    published = {event.seq for event in events if isinstance(event, ChildEnded)}
    missing = []
    for seq, command in work.children.items():
        child = rows.executions.get(command.child_id)
        is_ours = child is not None and (child.parent_id, child.parent_seq) == (row.execution_id, seq)
        if seq not in published and not (is_ours and child is not None and not child.status.is_closed):
            missing.append(f"child {seq} {command.child_id}")
    return missing


def check_orphans(rows: Rows) -> None:
    """No activity or timer is there without a waiter."""
    for activity in rows.activities.values():
        if activity.subscription is None:
            _check_wanted(rows, activity.execution_id, activity.run, activity.seq, f"activity {activity.activity_id}")
    for timer in rows.timers.values():
        if timer.seq in _RUN_FREE_SEQS:
            row = rows.executions[timer.execution_id]
            assert not row.status.is_closed, f"timer {timer.timer_id}: its execution is {row.status}"
        else:
            _check_wanted(rows, timer.execution_id, timer.run, timer.seq, f"timer {timer.timer_id}")


def _check_wanted(rows: Rows, execution_id: str, run: int, seq: int, what: str) -> None:
    row = rows.executions.get(execution_id)
    assert row is not None, f"{what}: there is no such execution"
    if row.dispatched is not None:
        return
    assert not row.status.is_closed, f"{what}: its execution is {row.status}"
    assert row.run == run, f"{what}: left over from run {run}, and run {row.run} is under way"
    work = open_work(rows.present_run(row))
    assert seq in work.activities or seq in work.timers, f"{what}: the history has its end"


def check_slots(rows: Rows) -> None:
    """Never more than a limit allows are claimed at once, and no two hold the same slot."""
    holders: dict[str, list[str]] = {}
    for activity in rows.activities.values():
        if activity.limit_slot is not None:
            holders.setdefault(activity.limit_slot, []).append(activity.activity_id)
            assert activity.queue_pk is None, f"activity {activity.activity_id}: it waits, and holds a slot"
    for slot, held_by in holders.items():
        assert len(held_by) == 1, f"slot {slot}: held by {held_by}"


def ended_activities(turns: list[Turn]) -> dict[tuple[int, int], ActivityEnded]:
    """Return how the activities of an execution ended, by run and number."""
    return {(t.run, e.seq): e for t in turns for e in t.events if isinstance(e, ActivityEnded)}


def check_received_once(rows: Rows) -> None:
    """No ending of an activity, timer, child or signal is received twice by the same run."""
    for execution_id, turns in rows.turns.items():
        result: set[tuple[int, str, int]] = set()
        for turn in turns:
            for event in turn.events:
                if isinstance(event, ActivityEnded | TimerFired | ChildEnded | SignalSent):
                    mark = (turn.run, type(event).__name__, event.seq)
                    assert mark not in result, f"{execution_id} turn {turn.turn}: {mark} was received before"
                    result.add(mark)


def check_replays(rows: Rows, workflows: Mapping[str, Workflow[..., Any]]) -> None:
    """Every history, run by run, makes the code ask for the same again."""
    for row in rows.executions.values():
        replay(workflows[row.workflow], row.execution_id, rows.turns.get(row.execution_id, []))


def check_quiet(rows: Rows) -> None:
    """Once all has come to rest nothing is left but what waits for good reason."""
    for row in rows.executions.values():
        assert row.dispatched is None, f"{row.execution_id}: its commands were never all carried out"
    for execution_id, events in rows.mail.items():
        addressee = rows.executions.get(execution_id)
        status = None if addressee is None else addressee.status
        assert status is Status.STUCK, f"{execution_id} ({status}): unread mail: {events}"
    for item in rows.control:
        if str(item["SK"]).startswith("SLOT#"):
            holder = rows.activities.get(item["activity_id"])
            assert holder is None or holder.token != item["token"], f"slot {item}: held by {holder}"
