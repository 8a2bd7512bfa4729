"""Signals on every backend: window order, versions without gaps, and an index that healthy signals do not touch."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.durable.model.records import instant
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.signals import Metrics, Signal, UpdateResult, UpdateVerdict
from headgate.health.signals.volumes import Volumes
from headgate.store.catalogue.tables import BREACH_SHARDS, SIGNAL_STATE
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Query
from tests.contract.conftest import DYNAMODB_BACKENDS, AnyStore, Eventually
from tests.health_rig import CRITICAL, HEALTH_TABLES, OK, ORDERS, UNKNOWN, WARNING, Rig, evidence_id, value

TABLES = HEALTH_TABLES


@pytest.fixture
def rig(store: AnyStore, clock: VirtualClock, keyring: Keyring, tmp_path: Path) -> Rig:
    return Rig(store, clock, keyring, tmp_path)


def test_late_window__on_every_backend__never_overwrites(rig: Rig) -> None:
    rig.say(OK, ago_ms=600_000, version=0)
    newest = rig.say(CRITICAL, version=1)
    for version in (-1, 0, 1, 2):
        late = rig.say(OK, ago_ms=300_000, version=version)
        assert late.verdict is UpdateVerdict.STALE_WINDOW
        assert late.signal == newest.signal
    assert rig.signal() == newest.signal
    found = rig.signals.history(ORDERS, "FRESHNESS", instant(rig.now_ms - 900_000), instant(rig.now_ms))
    assert [(each.state, each.late) for each in found] == [(OK, False), (OK, True), (CRITICAL, False)]


def test_same_twice__on_every_backend__is_one_version(rig: Rig) -> None:
    update = rig.update(
        CRITICAL, score=0.102, evidence=[evidence_id(1)], breach_start=instant(rig.now_ms - 1), version=0
    )
    first, second = rig.signals.update(update), rig.signals.update(update)
    assert (first.verdict, second.verdict) == (UpdateVerdict.APPLIED, UpdateVerdict.DUPLICATE)
    assert rig.signal().version == 1
    assert rig.signal() == first.signal


@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, 0.102, 1 / 3, 1e-100])
def test_value__on_every_backend__comes_back_as_it_was(rig: Rig, score: float) -> None:
    said = rig.say(WARNING, score=score)
    assert said.signal is not None
    assert rig.signal() == said.signal
    assert rig.signal().value.score == score
    assert rig.say(WARNING, score=score).verdict is UpdateVerdict.DUPLICATE


def test_many_writers__of_one_signal__versions_have_no_gaps_and_no_update_is_lost(rig: Rig, backend: str) -> None:
    writers, each_writes = (8, 2) if backend in DYNAMODB_BACKENDS else (100, 2)
    said: list[UpdateResult] = []
    problems: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for number in range(each_writes):
                end_ms = rig.now_ms - 60_000 + number * 1_000 + writer
                update = replace(rig.update(OK), value=value(OK, end_ms))
                while (result := rig.signals.update(update)).verdict is UpdateVerdict.UNAVAILABLE:
                    pass
                said.append(result)
        except BaseException as exc:
            problems.append(exc)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert len(said) == writers * each_writes
    applied = sorted(
        each.signal.version for each in said if each.verdict is UpdateVerdict.APPLIED and each.signal is not None
    )
    assert applied == list(range(1, len(applied) + 1))
    assert rig.signal().version == len(applied)
    assert rig.signal().value.window_end == instant(rig.now_ms - 60_000 + (each_writes - 1) * 1_000 + writers - 1)
    assert {each.verdict for each in said} <= {UpdateVerdict.APPLIED, UpdateVerdict.STALE_WINDOW}


def test_healthy_signals__many__leave_the_breach_index_empty(rig: Rig, backend: str) -> None:
    count = {"sqlite": 5_000, "sqlite-lagging": 500}.get(backend, 100)
    for start in range(0, count, 500):
        updates = [rig.update(OK, urn=f"urn:dp:b:d{n}") for n in range(start, min(count, start + 500))]
        results = rig.signals.update_many(updates)
        assert Counter(each.verdict for each in results) == {UpdateVerdict.APPLIED: len(updates)}
    queries = [
        Query(table=SIGNAL_STATE, index="breach-index", partition=f"BREACH#{state}#{tier}#{shard}", limit=1)
        for state in SignalState
        for tier in Tier
        for shard in range(BREACH_SHARDS)
    ]
    assert all(page.items == [] for page in rig.store.query_many(queries))


def test_breaches__of_two_states_by_tier__are_merged_and_paged(
    store: AnyStore, clock: VirtualClock, keyring: Keyring, tmp_path: Path, eventually: Eventually
) -> None:
    tiers = list(Tier)
    profiles = {f"urn:dp:b:d{n}": DatasetProfile(tiers[n % 3], "t") for n in range(18)}
    rig = Rig(store, clock, keyring, tmp_path, profiles=profiles)
    states = (WARNING, CRITICAL, OK, UNKNOWN)
    rig.signals.update_many([
        replace(rig.update(states[n % 4], urn=urn), value=value(states[n % 4], rig.now_ms - 1_000 * (n // 3)))
        for n, urn in enumerate(profiles)
    ])  # fmt: skip
    for tier in (None, Tier.TIER_1):
        expected = {
            urn for n, urn in enumerate(profiles) if n % 4 in (0, 1) and (tier is None or profiles[urn].tier is tier)
        }

        def read(tier: Tier | None = tier) -> list[Signal]:
            found: list[Signal] = []
            cursor: str | None = None
            while True:
                page = rig.signals.breaches(tier=tier, limit=2, cursor=cursor)
                found += page.signals
                cursor = page.cursor
                if cursor is None:
                    return found

        found = eventually(read, lambda found, want=expected: {each.dataset_urn for each in found} == want)  # type: ignore[misc]
        assert len(found) == len(expected)
        changed = [each.state_changed_at for each in found]
        assert changed == sorted(changed, reverse=True)


def test_expired__not_yet_deleted__is_as_if_it_never_was(rig: Rig, clock: VirtualClock) -> None:
    rig.say(OK, version=0)
    rig.say(CRITICAL, kind="VOLUME")
    clock.advance(31 * 86_400)
    assert rig.signals.get(ORDERS, "FRESHNESS", consistent=True) is None
    assert [each.signal_type for each in rig.signals.of_dataset(ORDERS, consistent=True)] == ["VOLUME"]
    again = rig.say(OK, version=0)
    assert again.verdict is UpdateVerdict.APPLIED
    assert again.signal is not None
    assert again.signal.version == 1


def test_volumes__late_again_and_with_gaps__are_kept_by_the_hour_without_another_commit(
    rig: Rig, store: AnyStore, clock: VirtualClock
) -> None:
    clock.advance(3600 - clock.seconds() % 3600)
    end_ms, volumes = rig.now_ms, Volumes(store, clock)

    def count(minute: int, events: int, state: SignalState = OK) -> int:
        """Report a window that ended some minutes into the three hours that are now over, and return the commits."""
        said = replace(value(state, end_ms - (180 - minute) * 60_000), metrics=Metrics(evidence_count=events))
        before = store.stats.commits
        rig.signals.update(replace(rig.update(OK, kind="VOLUME"), value=said))
        return store.stats.commits - before

    def known() -> list[int | None]:
        return [each.event_count for each in volumes.history(ORDERS, 1).points[-4:]]

    assert [count(5, 10), count(15, 30), count(60, 1), count(125, 7)] == [1, 1, 1, 1]
    assert known() == [41, None, 7, None]
    count(10, 20)
    count(10, 20)
    count(15, 30)
    count(125, 8)
    count(180, 0, CRITICAL)
    assert known() == [61, None, 8, None]
    count(70, 2)
    assert known() == [61, 2, 8, None]
    found = volumes.history(ORDERS)
    assert (len(found.points), found.known_count) == (168, 3)
    clock.advance(15 * 86_400)
    assert volumes.history(ORDERS, 14).known_count == 0


def test_batch__on_every_backend__has_a_result_for_each(rig: Rig) -> None:
    rig.say(OK, kind="OLD")
    results = rig.signals.update_many([
        rig.update(CRITICAL, kind="A"),
        rig.update(CRITICAL, kind="B"),
        rig.update(OK, kind="OLD", ago_ms=700_000),
        rig.update(OK, kind="OLD", score=0.1),
        rig.update(OK, kind="C", version=4),
        rig.update(OK, urn="urn:dp:unregistered:x"),
    ])  # fmt: skip
    assert [each.verdict for each in results] == [
        UpdateVerdict.APPLIED,
        UpdateVerdict.APPLIED,
        UpdateVerdict.STALE_WINDOW,
        UpdateVerdict.REPEATED_KEY,
        UpdateVerdict.VERSION_CONFLICT,
        UpdateVerdict.DATASET_NOT_FOUND,
    ]
    assert rig.incident_of("A").incident_id == rig.incident_of("B").incident_id
