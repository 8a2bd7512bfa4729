"""Freshness timers: silence on a freshness SLO is found by a timer, once, whatever happens to the process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.durable.model.records import instant
from headgate.health.gate.decisions import Code, GatePolicy, GateQuestion, Ruling
from headgate.health.model import freshness
from headgate.health.model.datasets import Dataset, DatasetSpec, FreshnessSlo, OnSilence, Slos
from headgate.health.model.enums import FRESHNESS, SignalState
from headgate.health.model.signals import ANY_VERSION, Signal, SignalUpdate, SignalValue, Snapshot, UpdateVerdict
from headgate.health.registry.rows import latest_item
from headgate.health.service import HealthOptions, HealthService
from headgate.health.signals.freshness_rows import freshness_key, freshness_put
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import CONTROL, DATASET_REGISTRY
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Delete, Put, Query
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

ORDERS = "urn:dp:orders:created"
OK, WARNING, CRITICAL = SignalState.OK, SignalState.WARNING, SignalState.CRITICAL
HOUR = 3600.0
HOUR_MS = 3_600_000


class Site:
    """Health on a store, as any number of processes in turn."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.clock = VirtualClock()
        self.store = stack.enter_context(closing(open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)))
        self.folder, self.keyring = folder, Keyring.generate(self.clock)
        self.health = self.process()

    def process(self, **options: Any) -> HealthService:
        self.health = HealthService(
            self.store,
            self.clock,
            IdMaker(self.clock),
            Cache(clock=self.clock),
            self.keyring,
            FolderBlobs(self.folder / "blobs"),
            options=HealthOptions(tier_1_needs_ticket=False, history_seconds=500 * 86_400, **options),
        )
        return self.health

    @property
    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    def register(self, urn: str = ORDERS, **slo: Any) -> Dataset:
        return self.health.registry.create(urn, _spec(**slo), actor="ana")

    def report(
        self, state: SignalState = OK, *, kind: str = FRESHNESS, urn: str = ORDERS, ago_ms: int = 0
    ) -> UpdateVerdict:
        at = instant(self.now_ms - ago_ms)
        signature = "LATE:x" if state.is_breach else None
        value = SignalValue(state=state, score=1.0, window_start=at, window_end=at, failure_signature=signature)
        update = SignalUpdate(dataset_urn=urn, signal_type=kind, value=value, expected_version=ANY_VERSION)
        return self.health.signals.update(update).verdict

    def sweep_after(self, seconds: float) -> Signal | None:
        self.clock.advance(seconds)
        self.health.sweep()
        return self.signal()

    def signal(self, urn: str = ORDERS) -> Signal | None:
        return self.health.signals.get(urn, FRESHNESS, consistent=True)

    def transitions(self, urn: str = ORDERS) -> list[Snapshot]:
        start = "2020-01-01T00:00:00.000Z"
        found = self.health.signals.history(urn, FRESHNESS, start, instant(self.now_ms))
        return sorted((each for each in found if not each.late), key=lambda each: each.version)

    def ruling(self, urn: str = ORDERS) -> Ruling:
        return self.health.gatekeeper.check([urn], GateQuestion(principal="svc")).decision


def _spec(**slo: Any) -> DatasetSpec:
    return DatasetSpec(slos=Slos(freshness=FreshnessSlo(**{"max_delay_seconds": HOUR, **slo})))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_sweep__no_report_in_time__is_a_warning_then_critical_with_an_incident_each_once(site: Site) -> None:
    site.register()
    site.report()
    assert site.sweep_after(HOUR - 60) is not None
    assert [each.state for each in site.transitions()] == [OK]
    for _ in range(3):
        found = site.sweep_after(61)
        assert found is not None
        assert (found.state, found.value.failure_signature) == (WARNING, freshness.OVERDUE)
    assert site.ruling() is Ruling.WARN
    for _ in range(3):
        found = site.sweep_after(HOUR)
        assert found is not None
        assert found.state is CRITICAL
    assert site.ruling() is Ruling.BLOCK
    assert [each.state for each in site.transitions()] == [OK, WARNING, CRITICAL], "each is found once"
    assert found is not None
    assert found.value.incident_id is not None
    assert site.health.incidents.get(found.value.incident_id).failure_signatures == (freshness.OVERDUE,)
    assert site.store.get(CONTROL, freshness_key(ORDERS)) is None, "there is nothing left to find"


def test_sweep__report_after_the_finding__is_ok_again_and_the_next_silence_is_found(site: Site) -> None:
    site.register()
    site.report()
    site.sweep_after(2 * HOUR + 1)
    assert site.report(ago_ms=HOUR_MS // 2) is UpdateVerdict.APPLIED, "a report on any later window counts"
    assert site.ruling() is Ruling.WARN, "the incident is open until it has been quiet"
    assert site.sweep_after(60) is not None
    assert [each.state for each in site.transitions()] == [OK, CRITICAL, OK]
    found = site.sweep_after(HOUR)
    assert found is not None
    assert found.state is WARNING


def test_update__last_report_is_sent_again_after_the_finding__does_not_end_it(site: Site) -> None:
    site.register()
    site.report()
    found = site.sweep_after(HOUR + 1)
    assert found is not None
    assert site.report(ago_ms=int(HOUR_MS + 1000)) is UpdateVerdict.STALE_WINDOW
    assert site.signal() == found


def test_sweep__never_a_report__is_found_from_the_registration_on(site: Site) -> None:
    site.register()
    assert site.sweep_after(HOUR) is None
    found = site.sweep_after(1)
    assert found is not None
    assert (found.state, found.value.window_end) == (WARNING, instant(site.now_ms - HOUR_MS - 1000))


def test_sweep__run_of_a_pipeline_writes_the_dataset__counts_as_report_and_ends_the_finding(site: Site) -> None:
    site.register()
    site.report(kind=freshness.PIPELINE_RUN)
    assert site.sweep_after(HOUR - 1) is None
    found = site.sweep_after(2)
    assert found is not None
    assert found.state is WARNING
    site.report(kind=freshness.PIPELINE_RUN)
    found = site.sweep_after(5)
    assert found is not None
    assert found.state is OK
    assert site.ruling() is Ruling.ALLOW
    found = site.sweep_after(HOUR)
    assert found is not None
    assert found.state is WARNING


@pytest.mark.parametrize(
    "spec",
    [DatasetSpec(), _spec(max_delay_seconds=10 * HOUR), _spec(on_silence=OnSilence.IGNORE)],
    ids=["removed", "relaxed", "ignored"],
)
def test_update_dataset__slo_is_removed_or_relaxed__the_finding_ends(site: Site, spec: DatasetSpec) -> None:
    site.register()
    site.report()
    site.sweep_after(2 * HOUR + 1)
    site.health.registry.update(ORDERS, spec, expected_version=-1, actor="ana")
    found = site.sweep_after(5)
    assert found is not None
    assert found.state is OK


def test_update_dataset__slo_is_added__reports_are_expected_from_then_on(site: Site) -> None:
    site.health.registry.create(ORDERS, DatasetSpec(), actor="ana")
    site.clock.advance(100 * HOUR)
    site.health.registry.update(ORDERS, _spec(), expected_version=-1, actor="ana")
    assert site.sweep_after(HOUR) is None
    assert site.sweep_after(1) is not None


@pytest.mark.parametrize(("policy", "states"), [("warn", [OK, WARNING]), ("ignore", [OK])])
def test_sweep__policy_of_the_server__decides_how_bad_silence_is(site: Site, policy: str, states: list[Any]) -> None:
    site.process(gate=GatePolicy(on_silence=OnSilence(policy)))
    site.register()
    site.report()
    site.sweep_after(HOUR + 1)
    site.sweep_after(10 * HOUR)
    assert [each.state for each in site.transitions()] == states


def test_sweep__dataset_of_an_earlier_release__gets_its_timer_once(site: Site) -> None:
    site.register()
    site.store.transact([Delete(CONTROL, freshness_key(ORDERS)), Delete(CONTROL, Key("FRESHNESS-BACKFILL", "STATE"))])
    site.process()
    site.sweep_after(1)
    assert site.sweep_after(HOUR + 1) is not None
    site.store.transact([Delete(CONTROL, freshness_key(ORDERS))])
    site.process()
    site.sweep_after(1)
    assert site.store.get(CONTROL, freshness_key(ORDERS)) is None, "the backfill runs once per store"


def test_sweep__crash_after_the_finding__is_not_found_twice(site: Site) -> None:
    site.register()
    site.report()
    site.clock.advance(HOUR + 1)
    row = site.store.get(CONTROL, freshness_key(ORDERS))
    assert row is not None
    site.health.freshness_timers.sweep()
    site.store.transact([Put(CONTROL, row)])
    site.process().freshness_timers.sweep()
    assert [each.state for each in site.transitions()] == [OK, WARNING]


def test_sweep__two_processes__find_it_once(site: Site) -> None:
    site.register()
    site.report()
    first, second = site.process(), site.process()
    site.clock.advance(HOUR + 1)
    first.sweep()
    second.sweep()
    assert [each.state for each in site.transitions()] == [OK, WARNING]


def test_year__daily_reports_with_outages_of_engine_and_server__each_silence_is_found_once(site: Site) -> None:
    """A dataset of a year: reports each day, except on some; the server is restarted and down at times."""
    chance = random.Random(20261118)
    site.register(max_delay_seconds=26 * HOUR, warning_delay_seconds=25 * HOUR)
    start, silent = site.now_ms, {40, 41, 42, 100, 180, 181, 300}
    down = {41, 181, 222}
    expected = [OK]
    for day in range(365):
        if day not in silent:
            if expected[-1] is not OK:
                expected.append(OK)
            assert site.report() is UpdateVerdict.APPLIED
        for _ in range(6):
            site.clock.advance(4 * HOUR)
            if day in down:
                continue
            if chance.random() < 0.02:
                site.process()
            site.health.freshness_timers.sweep()
        late_hours = (site.now_ms - _last_report(start, day, silent)) / HOUR_MS
        if late_hours > 25 and day not in down and expected[-1] is not CRITICAL:
            # Sweeps are four hours apart, and both limits pass between two of them.
            expected.append(CRITICAL)
    assert [each.state for each in site.transitions()] == expected
    assert expected.count(CRITICAL) == 4


def _last_report(start_ms: int, day: int, silent: set[int]) -> int:
    return start_ms + max(each for each in range(day + 1) if each not in silent) * 24 * HOUR_MS


class Counted:
    """A store that counts calls."""

    def __init__(self, store: Any) -> None:
        self._store, self.calls = store, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self._store, name)


def test_sweep__ten_thousand_timers_and_none_due__is_one_query(site: Site) -> None:
    writes = [freshness_put(f"urn:dp:many:d{n}", site.now_ms + HOUR_MS, site.now_ms) for n in range(10_000)]
    for start in range(0, len(writes), 1000):
        site.store.batch_write(writes[start : start + 1000])
    site.health.sweep()
    counted = Counted(site.store)
    site.health.freshness_timers._store = counted
    assert site.health.freshness_timers.sweep() == 0
    assert counted.calls == 1


def test_sweep__many_are_due_and_in_time__moves_each_without_a_signal_write(site: Site) -> None:
    at = instant(site.now_ms)
    urns = [f"urn:dp:many:d{n}" for n in range(300)]
    datasets = [
        Dataset(dataset_urn=urn, config_version=1, slos=_spec().slos, created_at=at, updated_at=at) for urn in urns
    ]
    rows = [latest_item(each, change_id="c", feed_sequence=0) for each in datasets]
    site.store.batch_write([Put(DATASET_REGISTRY, row) for row in rows])
    for urn in urns:
        site.report(urn=urn)
    site.clock.advance(HOUR / 2)
    for urn in urns:
        site.report(urn=urn)
    site.clock.advance(HOUR / 2 + 1)
    assert site.health.freshness_timers.sweep() == 300
    due = [
        row["due_at_ms"] - site.now_ms
        for shard in range(4)
        for row in site.store.query(
            Query(table=CONTROL, index="due-index", partition=f"FRESHNESS#{shard}", limit=1000)
        ).items
    ]
    assert len(due) == 300
    assert set(due) == {HOUR_MS // 2 - 999}
    assert all(found is not None and found.version == 2 for found in map(site.signal, urns))


def test_check__silent_dataset_before_any_sweep__is_not_open(site: Site) -> None:
    site.register(max_delay_seconds=5)
    site.report()
    assert site.ruling() is Ruling.ALLOW
    site.clock.advance(20)
    answer = site.health.gatekeeper.check([ORDERS], GateQuestion(principal="svc"))
    assert answer.decision is Ruling.BLOCK
    assert [each.code for each in answer.reasons] == [Code.FRESHNESS_OVERDUE]
