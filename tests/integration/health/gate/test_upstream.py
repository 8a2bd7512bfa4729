"""Upstream health: an unhealthy dataset upstream is a reason at the gate, as far and as strictly as the policy says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.health.gate.decisions import Code, GatePolicy, GateQuestion, Ruling, Verb
from headgate.health.gate.gate import GateAnswer
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import DatasetGate, DatasetSpec, OnUpstream
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.incidents import Changes, IncidentReport
from headgate.health.model.signals import ANY_VERSION, SignalUpdate
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthOptions, HealthService
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Query
from headgate.store.sqlite.store import Synchronous
from tests.health_rig import CRITICAL, OK, value
from tests.stores import open_sqlite

NAMES = ("raw", "clean", "mart", "report", "board")
QUESTION = GateQuestion(principal="svc")


def urn(name: str) -> str:
    return f"urn:dp:d:{name}"


class Site:
    """A chain: raw feeds clean, which feeds mart, which feeds report, which feeds board."""

    def __init__(self, folder: Path, stack: ExitStack, **options: Any) -> None:
        self.clock = VirtualClock()
        self.store = stack.enter_context(closing(open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)))
        self.health = HealthService(
            self.store,
            self.clock,
            IdMaker(self.clock),
            Cache(clock=self.clock),
            Keyring.generate(self.clock),
            FolderBlobs(folder / "blobs"),
            options=HealthOptions(tier_1_needs_ticket=False, **options),
        )
        for name in NAMES:
            self.health.registry.create(urn(name), DatasetSpec(tier=Tier.TIER_2), actor="ana")
            self.say(name, OK)
        for read, written in itertools.pairwise(NAMES):
            self.health.lineage.update(
                LineageSpec(
                    spec_id=f"lspec:job:{read}:git:1",
                    producer_id=f"job:{read}",
                    updated_at=instant(self.now_ms),
                    dataset_reads=(urn(read),),
                    dataset_writes=(urn(written),),
                )
            )
        self.clock.advance(2)

    @property
    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    def say(self, name: str, state: SignalState) -> None:
        said = value(state, self.now_ms)
        update = SignalUpdate(dataset_urn=urn(name), signal_type="VOLUME", value=said, expected_version=ANY_VERSION)
        assert self.health.signals.update(update).is_success
        self.clock.advance(2)

    def ask(self, *names: str, verb: Verb = Verb.READ) -> GateAnswer:
        return self.health.gatekeeper.check([urn(each) for each in names], GateQuestion(principal="svc", verb=verb))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_check__dataset_upstream_is_critical__warns_up_to_three_hops_and_names_it(site: Site) -> None:
    site.say("raw", CRITICAL)
    rulings = {name: site.ask(name) for name in NAMES}
    assert [each.decision for each in rulings.values()] == [
        Ruling.BLOCK, Ruling.WARN, Ruling.WARN, Ruling.WARN, Ruling.ALLOW,
    ]  # fmt: skip
    (reason,) = rulings["mart"].reasons
    assert (reason.code, reason.upstream_urn, reason.signal_type) == (Code.UPSTREAM_UNHEALTHY, urn("raw"), "VOLUME")
    assert reason.incident_id is not None
    assert (
        f"{urn('mart')} is fed by {urn('raw')}, 2 hops upstream: VOLUME of {urn('raw')} is CRITICAL" in reason.message
    )
    site.say("raw", OK)
    assert site.ask("mart").decision is Ruling.ALLOW


def test_check__person_opened_a_sev_1_upstream__is_a_reason_until_it_is_resolved(site: Site) -> None:
    report = IncidentReport(dataset_urn=urn("raw"), signal_types=(), title="Lost a day", state=CRITICAL)
    opened = site.health.incidents.open(report, actor="ana").incident
    site.health.incidents.change(opened.incident_id, Changes(severity="SEV_1"), actor="ana")
    site.clock.advance(2)
    (reason,) = site.ask("clean").reasons
    assert (reason.code, reason.incident_id) == (Code.UPSTREAM_UNHEALTHY, opened.incident_id)
    site.health.incidents.change(opened.incident_id, Changes(status="RESOLVED"), actor="ana")
    site.clock.advance(2)
    assert site.ask("clean").decision is Ruling.ALLOW


def test_check__trouble_that_holds_ended_a_moment_ago__is_held_no_longer(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack, gate=GatePolicy(upstream=OnUpstream.HOLD))
        site.say("raw", CRITICAL)
        report = IncidentReport(dataset_urn=urn("clean"), signal_types=(), title="Lost a day", state=CRITICAL)
        opened = site.health.incidents.open(report, actor="ana").incident
        site.health.incidents.change(opened.incident_id, Changes(severity="SEV_1"), actor="ana")
        site.clock.advance(2)
        assert len(site.ask("mart").reasons) == 2

        site.health.incidents.change(opened.incident_id, Changes(status="RESOLVED"), actor="ana")
        assert [each.upstream_urn for each in site.ask("mart").reasons] == [urn("raw")]
        update = SignalUpdate(
            dataset_urn=urn("raw"), signal_type="VOLUME", value=value(OK, site.now_ms), expected_version=ANY_VERSION
        )
        assert site.health.signals.update(update).is_success

        # In the same second: a pipeline that the recovery has woken is not held by an older reading.
        assert site.ask("mart").decision is Ruling.ALLOW


@pytest.mark.parametrize(("own", "ruling"), [
    (DatasetGate(upstream=OnUpstream.IGNORE), Ruling.ALLOW),
    (DatasetGate(upstream=OnUpstream.WARN), Ruling.WARN),
    (DatasetGate(upstream=OnUpstream.HOLD), Ruling.BLOCK),
    (DatasetGate(upstream_hops=1), Ruling.ALLOW),
    (DatasetGate(upstream_hops=2), Ruling.WARN),
])  # fmt: skip
def test_check__policy_of_the_dataset__decides(site: Site, own: DatasetGate, ruling: Ruling) -> None:
    site.health.registry.update(urn("mart"), DatasetSpec(gate=own), expected_version=-1, actor="ana")
    site.say("raw", CRITICAL)
    assert site.ask("mart").decision is ruling
    assert site.ask("mart", verb=Verb.PUBLISH).decision is ruling, "it would publish what it was fed"


def test_check__policy_of_the_server__holds_where_the_dataset_has_none(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack, gate=GatePolicy(upstream=OnUpstream.HOLD, upstream_hops=4))
        site.health.registry.update(
            urn("clean"), DatasetSpec(gate=DatasetGate(upstream=OnUpstream.WARN)), expected_version=-1, actor="ana"
        )
        site.say("raw", CRITICAL)
        assert [site.ask(each).decision for each in ("clean", "board")] == [Ruling.WARN, Ruling.BLOCK]


class Recorded:
    """A store that records the queries of each call."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: list[Sequence[Query]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def query_many(self, queries: Sequence[Query]) -> Any:
        self.calls.append(queries)
        return self._store.query_many(queries)


def test_check__many_requests_in_a_second__read_what_is_upstream_once(site: Site) -> None:
    site.say("raw", CRITICAL)
    gate = site.health.gatekeeper
    recorded = Recorded(site.store)
    gate._store = recorded
    gate._upstream.__self__._store = recorded  # type: ignore[attr-defined]
    for _ in range(20):
        site.ask("mart", "report")
    assert len(recorded.calls) == 21, "one call each, and one for all of what is in trouble"
