"""Many threads, and two handles, on one item: nothing is lost, and races have one winner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headgate.errors import ConflictError
from headgate.store.catalogue.tables import CONTROL, IDEMPOTENCY, PIPELINES, STREAM_CHECKPOINTS
from headgate.store.model.conditions import absent, at_least, version_is
from headgate.store.model.requests import Put, Query, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import Eventually, OpenStore, contents, items_of, pages_of

TABLES = (CONTROL, IDEMPOTENCY, PIPELINES, STREAM_CHECKPOINTS)
KEY = Key("p", "s")

T = TypeVar("T")


def _together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of `works` at once, each in a thread of its own, and return their results."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], T]) -> T:
        barrier.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(60) for future in [pool.submit(run, work) for work in works]]


def _increment(store: Store, times: int) -> list[int]:
    """Raise the counter by compare-and-swap, going on from the current item whenever the race is lost."""
    versions: list[int] = []
    current = store.get(CONTROL, KEY, consistent=True)
    while len(versions) < times:
        assert current is not None
        version = current["version"]
        try:
            current = store.update(CONTROL, KEY, add={"version": 1, "count": 1}, condition=version_is(version))
            versions.append(current["version"])
        except ConflictError as conflict:
            current = conflict.current
            assert current is not None, "the loser was not shown the item that beat it"
            assert current["version"] > version, "the loser was shown the item it had already"
    return versions


def test_update__sixteen_threads_incrementing_one_counter__gives_gapless_versions(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s", "version": 0, "count": 0})

    won = _together([lambda: _increment(store, 4)] * 16)

    assert sorted(version for versions in won for version in versions) == list(range(1, 65))
    assert all(versions == sorted(versions) for versions in won)
    assert contents(store, CONTROL, "p") == [{"PK": "p", "SK": "s", "version": 64, "count": 64}]


def test_update__threads_on_two_handles__gives_gapless_versions(store: Store, open_store: OpenStore) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s", "version": 0, "count": 0})
    other = open_store()

    won = _together([lambda: _increment(store, 5)] * 4 + [lambda: _increment(other, 5)] * 4)

    assert sorted(version for versions in won for version in versions) == list(range(1, 41))


def test_put__eight_threads_racing_for_one_absent_item__has_one_winner_whom_all_see(store: Store) -> None:
    for attempt in range(5):
        item = {"PK": "p", "SK": f"{attempt}"}

        def claim(owner: int, item: Item = item) -> Item | None:
            try:
                store.put(CONTROL, {**item, "owner": owner}, condition=absent())
            except ConflictError as conflict:
                return conflict.current
            return {**item, "owner": owner, "won": True}

        seen = _together([lambda owner=owner: claim(owner) for owner in range(8)])  # type: ignore[misc]

        winners = [outcome for outcome in seen if outcome is not None and "won" in outcome]
        assert len(winners) == 1
        stored = {**item, "owner": winners[0]["owner"]}
        assert [outcome for outcome in seen if outcome is not None and "won" not in outcome] == [stored] * 7
        assert store.get(CONTROL, Key("p", f"{attempt}"), consistent=True) == stored


def test_transact__eight_threads_racing_for_one_absent_item__has_one_winner(store: Store) -> None:
    def claim(owner: int) -> int | None:
        try:
            store.transact(
                [
                    Put(CONTROL, {"PK": "p", "SK": "dedup", "owner": owner}, absent()),
                    Put(CONTROL, {"PK": "p", "SK": f"incident-{owner}"}),
                ]
            )
        except ConflictError as conflict:
            assert conflict.current is not None
            return None
        return owner

    outcomes = _together([lambda owner=owner: claim(owner) for owner in range(8)])  # type: ignore[misc]

    winners = [owner for owner in outcomes if owner is not None]
    assert len(winners) == 1
    assert contents(store, CONTROL, "p") == [
        {"PK": "p", "SK": "dedup", "owner": winners[0]},
        {"PK": "p", "SK": f"incident-{winners[0]}"},
    ]


def test_transact__threads_moving_between_two_items__keep_the_sum(store: Store) -> None:
    store.batch_write([Put(CONTROL, {"PK": "p", "SK": name, "balance": 50}) for name in ("a", "b")])

    def move(worker: int) -> int:
        moved = 0
        for number in range(10):
            source, target = ("a", "b") if (worker + number) % 2 else ("b", "a")
            writes = [
                Update(CONTROL, Key("p", source), add={"balance": -7}, condition=at_least("balance", 7)),
                Update(CONTROL, Key("p", target), add={"balance": 7}),
            ]
            try:
                store.transact(writes, token=f"{worker}-{number}")
                moved += 1
            except ConflictError:
                pass
        return moved

    moved = _together([lambda worker=worker: move(worker) for worker in range(6)])  # type: ignore[misc]

    balances = [item["balance"] for item in contents(store, CONTROL, "p")]
    assert sum(balances) == 100
    assert min(balances) >= 0
    assert sum(moved) > 0


def test_transact__one_token_from_many_threads__is_applied_once(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s", "count": 0})

    _together([lambda: store.transact([Update(CONTROL, KEY, add={"count": 1})], token="once")] * 8)

    assert contents(store, CONTROL, "p") == [{"PK": "p", "SK": "s", "count": 1}]


def test_put__many_threads_on_different_items__are_all_stored(store: Store) -> None:
    def write(worker: int) -> None:
        for number in range(10):
            store.put(CONTROL, {"PK": "p", "SK": f"{worker:02d}-{number:02d}"})

    _together([lambda worker=worker: write(worker) for worker in range(12)])  # type: ignore[misc]

    assert [item["SK"] for item in contents(store, CONTROL, "p")] == [
        f"{worker:02d}-{number:02d}" for worker in range(12) for number in range(10)
    ]


def test_query__while_others_write__never_loses_what_was_there_before(store: Store) -> None:
    store.batch_write([Put(CONTROL, {"PK": "p", "SK": f"{number:03d}-old"}) for number in range(40)])
    query = Query(table=CONTROL, partition="p", limit=7, consistent=True)

    def write() -> int:
        for number in range(40):
            store.put(CONTROL, {"PK": "p", "SK": f"{number:03d}-new"})
        return 40

    def read() -> int:
        found = [item["SK"] for item in items_of(pages_of(store, query))]
        assert found == sorted(set(found))
        return sum(sort.endswith("-old") for sort in found)

    assert _together([write, read, read, read]) == [40, 40, 40, 40]


def test_changes__of_many_threads__are_chained_for_each_key(store: Store, eventually: Eventually) -> None:
    store.put(PIPELINES, {"PK": "p", "SK": "s", "version": 0})

    def bump() -> None:
        for _ in range(5):
            current = store.get(PIPELINES, KEY, consistent=True)
            while current is not None:
                try:
                    store.update(PIPELINES, KEY, add={"version": 1}, condition=version_is(current["version"]))
                    break
                except ConflictError as conflict:
                    current = conflict.current

    _together([bump] * 6)

    versions: list[int] = []

    def read_on() -> list[int]:
        batch = store.changes(PIPELINES, "reader")
        versions.extend(change.new["version"] for change in batch.changes if change.new is not None)
        store.checkpoint(PIPELINES, "reader", batch.position)
        return versions

    eventually(read_on, lambda read: len(read) >= 31)
    assert read_on() == list(range(31))
