"""Steps: the writes of a step of an execution mean the same as a list of them, whichever way a backend takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, HeadgateError
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, TURNS, WORKERS
from headgate.store.model.conditions import Compare, Comparison, all_of, at_least, exists, lacks, version_is
from headgate.store.model.requests import Check, Delete, Put, Query, StepWrites, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, TrustedItem, trusted_item
from tests.contract.conftest import NOW, AnyStore, Eventually

TABLES = (EXECUTIONS, TURNS, ACTIVITIES, WORKERS)
MEMBER = all_of(exists(), lacks("is_given_up"))


def trusted(item: Item) -> TrustedItem:
    return trusted_item(item, msgspec.json.encode(item).decode())


def execution(name: str, version: int, **facts: object) -> Item:
    return {"execution_id": name, "workflow": "serial", "status": "RUNNING", "version": version, **facts}


def activity(name: str, number: int, **facts: object) -> Item:
    token, lease = f"t{number}", {"lease_pk": f"worker-{name}", "lease_expires_ms": 2**53}
    return {"activity_id": f"{name}#{number}", "execution_id": name, "seq": number, "token": token, **lease, **facts}


def step(name: str, number: int) -> StepWrites:
    """The step that ends activity `number` and begins the next one."""
    turn = {"execution_id": name, "turn": number, "run": 1, "at_ms": number, "body": "{}"}
    return StepWrites(
        Put(EXECUTIONS, trusted(execution(name, number + 1)), version_is(number)),
        Put(TURNS, trusted(turn)),
        Delete(ACTIVITIES, Key(f"{name}#{number}"), Compare("token", Comparison.EQUALS, f"t{number}")),
        Put(ACTIVITIES, trusted(activity(name, number + 1))),
        Check(WORKERS, Key(f"worker-{name}"), MEMBER),
    )


def begin(store: AnyStore, name: str) -> None:
    """Store an execution with its first activity, and take three steps."""
    store.put(WORKERS, {"worker_id": f"worker-{name}", "fleet": "FLEET"})
    store.put(EXECUTIONS, trusted(execution(name, 1)))
    store.put(ACTIVITIES, trusted(activity(name, 1)))
    for number in (1, 2, 3):
        store.transact(step(name, number))


def commit(store: AnyStore, writes: Sequence[Write], *, is_batch: bool) -> HeadgateError | None:
    if is_batch:
        (outcome,) = store.transact_many([writes])
        return outcome
    try:
        store.transact(writes)
    except ConflictError as exc:
        return exc
    return None


def rows(store: AnyStore, name: str) -> list[Item]:
    """Every row that belongs to an execution or its worker."""
    turns = store.query(Query(table=TURNS, partition=name, consistent=True)).items
    keys = [(EXECUTIONS, Key(name)), (WORKERS, Key(f"worker-{name}"))]
    keys += [(ACTIVITIES, Key(f"{name}#{number}")) for number in range(1, 8)]
    found = [store.get(table, key, consistent=True) for table, key in keys]
    return [*turns, *(item for item in found if item is not None)]


Change = Callable[[AnyStore, str, StepWrites], StepWrites]


def unchanged(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    return writes


def other_index_keys(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    closed = execution(name, 5, status="SUCCEEDED", parent_id="parent")
    return writes._replace(advanced=replace(writes.advanced, item=trusted(closed)))


def fewer_index_keys(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    begun = {"activity_id": f"{name}#5", "token": "t5", "queue_pk": "Q#default", "available_at_ms": 7}
    return writes._replace(begun=replace(writes.begun, item=trusted(begun)))


def begun_exists(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(ACTIVITIES, trusted(activity(name, 5, worker="another")))
    return writes


def recorded_exists(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(TURNS, {"execution_id": name, "turn": 4, "run": 9, "at_ms": 9, "body": "[]"})
    return writes


def items_are_not_trusted(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    return writes._replace(begun=replace(writes.begun, item=activity(name, 5, input="Ünïcode")))


def items_without_text(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    return writes._replace(begun=replace(writes.begun, item=TrustedItem(activity(name, 5))))


def large(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    return writes._replace(begun=replace(writes.begun, item=trusted(activity(name, 5, input="x" * 300_000))))


def other_version(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(EXECUTIONS, trusted(execution(name, 17)))
    return writes


def execution_is_gone(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.delete(EXECUTIONS, Key(name))
    return writes


def version_is_a_bool(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(EXECUTIONS, trusted(execution(name, 4) | {"version": True}))
    return writes._replace(advanced=replace(writes.advanced, condition=version_is(1)))


def other_token(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(ACTIVITIES, trusted(activity(name, 4, token="of another claim")))
    return writes


def activity_is_gone(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.delete(ACTIVITIES, Key(f"{name}#4"))
    return writes


def activity_has_expired(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(ACTIVITIES, trusted(activity(name, 4, ttl=NOW - 1)))
    return writes


def execution_expires_later(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(EXECUTIONS, trusted(execution(name, 4, ttl=NOW + 60)))
    return writes


def worker_is_given_up(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    store.put(WORKERS, {"worker_id": f"worker-{name}", "fleet": "FLEET", "is_given_up": True})
    return writes


def all_refused(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    return worker_is_given_up(store, name, other_token(store, name, other_version(store, name, writes)))


def another_comparison(store: AnyStore, name: str, writes: StepWrites) -> StepWrites:
    return writes._replace(advanced=replace(writes.advanced, condition=at_least("version", 2)))


CHANGES = [
    unchanged, other_index_keys, fewer_index_keys, begun_exists, recorded_exists, items_are_not_trusted,
    items_without_text, large, other_version, execution_is_gone, version_is_a_bool, other_token, activity_is_gone,
    activity_has_expired, execution_expires_later, worker_is_given_up, all_refused, another_comparison,
]  # fmt: skip


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_step__committed_as_a_step_or_as_a_list__the_same_is_stored_and_answered(
    store: AnyStore, change: Change, *, is_batch: bool
) -> None:
    answers = []
    for name, kind in (("step-1", tuple), ("list-1", list)):
        begin(store, name)
        writes = change(store, name, step(name, 4))
        refusal = commit(store, list(writes) if kind is list else writes, is_batch=is_batch)
        failures = refusal.failures if isinstance(refusal, ConflictError) else refusal
        answers.append(repr((failures, rows(store, name))).replace("list-1", "step-1"))

    assert answers[0] == answers[1]
    is_refused = "{0:" in answers[0] or "{2:" in answers[0] or "{4:" in answers[0]
    assert is_refused == (change in REFUSED)


REFUSED = (
    other_version, execution_is_gone, version_is_a_bool, other_token, activity_is_gone, activity_has_expired,
    worker_is_given_up, all_refused,
)  # fmt: skip


def test_step__many_in_one_call__each_is_alone(store: AnyStore) -> None:
    names = [f"many-{number}" for number in range(6)]
    for name in names:
        begin(store, name)
    other_token(store, names[2], step(names[2], 4))

    outcomes = store.transact_many([step(name, 4) for name in names])

    assert [outcome is None for outcome in outcomes] == [True, True, False, True, True, True]
    assert store.get(ACTIVITIES, Key("many-3#5"), consistent=True) == activity("many-3", 5)
    assert store.get(ACTIVITIES, Key("many-3#4"), consistent=True) is None
    assert store.get(EXECUTIONS, Key("many-2"), consistent=True) == execution("many-2", 4)


def test_step__index_of_leases__has_the_new_activity_alone(store: AnyStore, eventually: Eventually) -> None:
    begin(store, "leased")
    store.transact(step("leased", 4))

    def leased() -> list[Item]:
        return store.query(Query(table=ACTIVITIES, index="lease-index", partition="worker-leased")).items

    found = eventually(leased, lambda items: [item["activity_id"] for item in items] == ["leased#5"])
    assert found[0]["token"] == "t5"


def test_step__execution_has_expired_since__is_refused(store: AnyStore, clock: VirtualClock) -> None:
    begin(store, "expiring")
    store.put(EXECUTIONS, trusted(execution("expiring", 4, ttl=NOW + 60)))
    store.put(WORKERS, {"worker_id": "worker-expiring", "fleet": "FLEET"})
    clock.advance(61)

    with pytest.raises(ConflictError):
        store.transact(step("expiring", 4))
