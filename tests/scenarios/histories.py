"""What scenarios ask of a recorded history: which commands were issued and which events received, in which order."""

from __future__ import annotations

from typing import Any

import msgspec

import headgate as hg
from headgate.durable.model.history import Command, Event, Turn, dump_turn
from headgate.durable.model.records import INBOX, TIMERS_DUE, WATCH
from headgate.store.catalogue.tables import ACTIVITIES, INBOXES, TIMERS
from headgate.store.model.requests import Query

# What differs between two runs of the same scenario and says nothing about it.
_ACCIDENTS = ("worker", "seed", "trace", "started_at_ms", "ended_at_ms")


def turns(env: hg.testing.Environment, handle: hg.Handle) -> list[Turn]:
    """Return the turns of an execution."""
    return list(env.service.client.history(handle.id))


def commands(env: hg.testing.Environment, handle: hg.Handle) -> list[Command]:
    """Return the commands of an execution in the order they were issued."""
    return [command for turn in turns(env, handle) for command in turn.commands]


def events(env: hg.testing.Environment, handle: hg.Handle) -> list[Event]:
    """Return the events of an execution in the order they were received."""
    return [event for turn in turns(env, handle) for event in turn.events]


def kinds(found: list[Any]) -> list[str]:
    """Return the kinds of commands or events."""
    return [str(one.__struct_config__.tag) for one in found]


def issued(env: hg.testing.Environment, handle: hg.Handle) -> list[str]:
    """Return the kinds of the commands of an execution, in order."""
    return kinds(commands(env, handle))


def notes(env: hg.testing.Environment, handle: hg.Handle) -> list[str]:
    """Return what the execution and its activities have logged."""
    return [note.text for note in env.service.client.logs(handle.id)]


def left_behind(env: hg.testing.Environment) -> dict[str, list[str]]:
    """Return the ids of the activities, timers and messages that still wait for something."""
    places = (
        (ACTIVITIES, "queue-index", "Q#default", "activity_id"),
        (ACTIVITIES, "lease-index", WATCH, "activity_id"),
        (ACTIVITIES, "lease-index", env.worker.worker_id, "activity_id"),
        (TIMERS, "due-index", TIMERS_DUE, "timer_id"),
        (INBOXES, "ready-index", INBOX, "message_id"),
    )
    found: dict[str, list[str]] = {}
    for table, index, partition, name in places:
        page = env.service.store.query(Query(table=table, index=index, partition=partition, limit=1000))
        if page.items:
            found[f"{table.name}/{index}/{partition}"] = [str(item[name]) for item in page.items]
    return found


def plain(turn: Turn) -> Any:
    """Return a turn as plain data, without what differs between two runs of the same scenario."""
    return _without_accidents(msgspec.json.decode(dump_turn(turn)))


def _without_accidents(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_accidents(part) for name, part in value.items() if name not in _ACCIDENTS}
    if isinstance(value, list):
        return [_without_accidents(part) for part in value]
    return value
