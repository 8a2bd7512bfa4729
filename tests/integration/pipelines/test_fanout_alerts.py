"""Fan-outs that stall, are failing and end: each is published once, and what is over is resolved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate as hg
from headgate.bootstrap.pipelines import OpenPipelines, open_pipelines
from headgate.bootstrap.store import OpenedStore
from headgate.clock import Clock
from headgate.durable.bus.events import Event
from headgate.errors import ConflictError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.campaigns import counts_of_row
from headgate.fanout.core.splitter import Order
from headgate.fanout.insight.fanout_watch import FanoutWatch, findings, marked
from headgate.fanout.model.rows import Policy, chunk_id_at
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.repair.redrive import ChunkSelection
from headgate.notify.enums import INFRASTRUCTURE, AlertStatus
from headgate.settings import Settings
from headgate.testing import Environment

RUN = "survey"


class Site:
    """Fan-outs with the pipelines and alerts around them, and an app that subscribes to their events."""

    def __init__(self, app: hg.App, env: Environment, home: Path) -> None:
        self.env = env
        self.received: list[str] = []
        service = env.service
        near = OpenedStore(service.store, service._keyring, None, None, Settings(home=home))  # type: ignore[arg-type]
        clock: Clock = env.clock
        self.pipelines: OpenPipelines = open_pipelines(service, near, clock, environ={})
        self.fanouts = service.fanouts
        app.on_event("headgate.fanout.stalled", "headgate.fanout.failing", "headgate.fanout.ended")(self.receive)
        service.bus.register(list(app.subscriptions.values()), app.name)

    def receive(self, event: Event) -> None:
        assert event.subject == RUN
        self.received.append(event.type)

    def split(self, chunks: int, *, tolerated_failures: int | None = None, submitted_by: str | None = None) -> None:
        # It has no handler, so that no worker of the environment takes it.
        policy = Policy(max_attempts=1, tolerated_failures=tolerated_failures)
        order = Order(group="g", chunk_size=1, policy=policy, submitted_by=submitted_by)
        self.fanouts.splitter.split(order, RangeSource(0, chunks), run_id=RUN)

    def end(self, number: int, *, is_failed: bool = False) -> None:
        claim = self.fanouts.tracker.start(RUN, chunk_id_at(number, 7), worker="w").claim
        assert claim is not None
        if is_failed:
            self.fanouts.tracker.fail(claim, AttemptFailure("ValueError", "bad"))
        else:
            self.fanouts.tracker.complete(claim, AttemptResult())

    def watch(self) -> int:
        """Have several processes examine the fan-outs, and return how many events they published."""
        fanouts = self.fanouts
        fanouts.maintenance.run_once()
        published = 0
        for _ in range(3):
            watch = FanoutWatch(fanouts.store, fanouts.queries, fanouts.chunk_workers, fanouts.observer)
            published += watch.run_once()
        self.env.run()
        return published

    def events(self) -> list[tuple[str, str]]:
        found = self.pipelines.service.events.ls(INFRASTRUCTURE, descending=False).events
        return [(event.name, event.text) for event in found if event.name.startswith("FANOUT")]

    def names(self) -> list[str]:
        return [name for name, _ in self.events()]

    def alerts(self) -> dict[str, AlertStatus]:
        return {alert.event: alert.status for alert in self.pipelines.alerts.ls().alerts}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    app = hg.App("shop")
    with Environment(app) as env:
        yield Site(app, env, tmp_path)


def test_stall__no_worker__is_published_once_and_resolved_when_it_goes_on(site: Site) -> None:
    site.split(3)
    site.env.advance("4m")
    assert site.watch() == 0

    site.env.advance("2m")
    assert site.watch() == 1
    assert site.watch() == 0
    assert site.names() == ["FANOUT_STALLED"]
    assert site.events()[0][1].startswith(f"fan-out {RUN} makes no progress: ")
    assert site.alerts() == {"FANOUT_STALLED": AlertStatus.OPEN}

    site.end(0)
    assert site.watch() == 1
    assert site.names() == ["FANOUT_STALLED", "FANOUT_WENT_ON"]
    assert site.alerts() == {"FANOUT_STALLED": AlertStatus.RESOLVED}
    assert site.fanouts.queries.fanout(RUN).stalled_at is None
    assert site.received == ["headgate.fanout.stalled"]


def test_stall__again__is_another_event(site: Site) -> None:
    site.split(3)
    site.env.advance("6m")
    site.watch()
    site.end(0)
    site.watch()

    site.env.advance("6m")

    assert site.watch() == 1
    assert site.names() == ["FANOUT_STALLED", "FANOUT_WENT_ON", "FANOUT_STALLED"]


def test_failures__more_than_a_fifth_of_many__are_published_once_and_resolved_at_the_end(site: Site) -> None:
    site.split(30)
    for number in range(25):
        site.end(number, is_failed=number < 6)

    assert site.watch() == 1
    assert site.watch() == 0
    assert site.events() == [("FANOUT_FAILING", f"fan-out {RUN} is failing: 6 of 25 ended chunks failed")]
    assert site.alerts() == {"FANOUT_FAILING": AlertStatus.OPEN}

    for number in range(25, 30):
        site.end(number)
    site.watch()

    assert site.events()[1:] == [
        ("FANOUT_ENDED", f"fan-out {RUN} ended as PARTIAL: 24 of 30 chunks completed, 6 failed"),
        ("FANOUT_FAILED", f"fan-out {RUN} ended as PARTIAL: 6 of 30 chunks failed"),
    ]
    assert site.alerts() == {"FANOUT_FAILING": AlertStatus.RESOLVED, "FANOUT_FAILED": AlertStatus.OPEN}
    assert site.received == ["headgate.fanout.failing", "headgate.fanout.ended"]


def test_failures__as_many_as_tolerated__are_not_published(site: Site) -> None:
    site.split(30, tolerated_failures=10)
    for number in range(30):
        site.end(number, is_failed=number < 6)

    assert site.watch() == 0
    assert site.names() == ["FANOUT_ENDED"]
    assert site.alerts() == {}


def test_end__more_failures_than_tolerated__is_an_alert_until_a_redrive_succeeds(site: Site) -> None:
    site.split(4, tolerated_failures=0)
    site.end(0, is_failed=True)
    for _ in range(3):
        site.watch()

    assert site.names()[-2:] == ["FANOUT_ENDED", "FANOUT_FAILED"]
    assert "ended as FAILED: " in site.events()[-1][1]
    assert site.alerts()["FANOUT_FAILED"] is AlertStatus.OPEN

    site.fanouts.redriver.redrive(RUN, ChunkSelection(all=True))
    for number in range(4):
        site.end(number)
    site.watch()

    assert site.names()[-1] == "FANOUT_ENDED"
    assert site.alerts()["FANOUT_FAILED"] is AlertStatus.RESOLVED


def test_end__failed_job_of_a_pipeline__is_left_to_the_alert_of_its_run(site: Site) -> None:
    site.split(1, submitted_by="pipeline silver")
    site.end(0, is_failed=True)
    site.watch()

    assert site.names() == ["FANOUT_ENDED"]
    assert site.alerts() == {}


def test_watch__two_processes_find_the_same_stall__the_later_commit_is_refused_with_its_event(site: Site) -> None:
    site.split(3)
    site.env.advance("6m")
    fanouts = site.fanouts
    stale = fanouts.queries.fanout(RUN)
    [finding] = findings(stale, counts_of_row(stale), [], fanouts.queries.now_ms())
    # This process is slow: another one publishes first.
    late = marked(stale, [finding], fanouts.queries.now()).replacing(stale.version)
    writes = [late, *fanouts.observer.notice_writes(finding.event_type, stale, counts_of_row(stale))]
    assert site.watch() == 1

    with pytest.raises(ConflictError):
        fanouts.store.transact(writes)
    site.env.run()

    assert site.names() == ["FANOUT_STALLED"]
    assert site.received == ["headgate.fanout.stalled"]


def test_stall__the_end_was_reported_first__the_alert_is_over_all_the_same(site: Site) -> None:
    site.split(1)
    site.env.advance("6m")
    fanouts = site.fanouts
    FanoutWatch(fanouts.store, fanouts.queries, fanouts.chunk_workers, fanouts.observer).run_once()
    site.end(0)
    fanouts.maintenance.run_once()

    site.env.run()

    assert sorted(site.names()) == ["FANOUT_ENDED", "FANOUT_STALLED"]
    assert site.alerts() == {"FANOUT_STALLED": AlertStatus.RESOLVED}
