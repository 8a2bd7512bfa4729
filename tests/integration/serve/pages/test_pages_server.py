"""Operations page: checks with remedies, figures and charts from samples, backups, and who may see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from headgate.auth.authenticator import Authenticator
from headgate.auth.roles import Role
from headgate.bootstrap.backup_record import BackupRecord, record_backup
from headgate.errors import StoreFullError
from headgate.serve.application import build_http
from headgate.serve.metrics_history import MetricsHistory
from headgate.serve.pages.routes import page_routes
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.serve.server_monitor import REPORT_SECONDS, ServerMonitor
from headgate.store.faults import StoreFaults
from headgate.telemetry import Metrics, Tracing
from tests.integration.serve.health_rig import HealthApi
from tests.integration.serve.pages.test_routes import ORIGIN, Document, text_of

PAGE = "/ui/operations"


class Site(HealthApi):
    """A server with the page of operations, whose samples the test takes."""

    def __init__(self, home: Path, *, is_required: bool = False) -> None:
        super().__init__(home, is_required=is_required)
        registry = CollectorRegistry()
        self.reads = Counter("headgate_store_reads", "Reads.", registry=registry)
        self.shed = Counter("headgate_http_requests_shed", "Shed.", ["priority"], registry=registry)
        self.size = Gauge("headgate_store_bytes", "Size.", registry=registry)
        self.history = MetricsHistory(registry, self.clock)
        self.faults = StoreFaults()
        probes = ServerProbes(
            version="1.2.3",
            store=self.opened.store,
            sweepers=[],
            clock=self.clock,
            disk=self.settings.home,
            faults=self.faults,
        )
        probes.phase = Phase.SERVING
        monitor = ServerMonitor(probes, self.history, self.clock, home=self.settings.home)
        watches = WatchHub(self.opened.store, stopping=lambda: False)
        self.app = build_http(
            version="1.2.3",
            probes=probes,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=self.clock,
            routes=[*self.routes, *page_routes(self.health, self.pool, watches, self.routes, monitor=monitor)],
            authenticator=Authenticator(self.keys, is_required=is_required),
        )

    def sample(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(15)
            self.history.sample()

    def page(self, query: str = "", *, key: str | None = None, status: int = 200) -> str:
        answer = self.get(f"{ORIGIN}{PAGE}{query}", key=key)
        assert answer.status_code == status, answer.text
        return answer.text


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "home")
    yield made
    made.close()


def charts(html: str) -> list[Any]:
    return [msgspec.json.decode(str(each["data-chart"])) for tag, each in Document.read(html).tags if tag == "hg-chart"]


def test_operations__healthy__all_checks_pass(site: Site) -> None:
    page = site.page()

    assert "All 4 checks pass." in text_of(page)
    assert "store write" in text_of(page)
    assert "/ui/operations" in Document.read(page).links


def test_operations__full_disk__comes_first_with_its_remedy(site: Site) -> None:
    site.faults.record(StoreFullError("home: the disk is full; free disk space"))

    found = text_of(site.page())

    assert "1 of 5 checks need someone: store full." in found
    assert "1 check fails" in found, "in the rail"
    assert "Remedy: free disk space." in found


def test_operations__no_sample_yet__says_so(site: Site) -> None:
    found = text_of(site.page())

    assert "The first sample follows" in found


def test_operations__samples__are_drawn_with_the_time_of_the_first(site: Site) -> None:
    site.size.set(8 * 2**20)
    site.sample()
    for _ in range(50):
        site.reads.inc(30)
        site.size.inc(2**10)
        site.sample()
    site.shed.labels("low").inc(4)
    site.sample()

    page = site.page()

    first = charts(page)[0]
    assert [each["name"] for each in first["series"]] == ["reads", "writes"]
    assert {value for _, value in first["series"][0]["points"][:-1]} == {2.0}
    found = text_of(page)
    assert "One sample every 15 s since" in found
    assert "4 shed, 0 over a limit" in found
    assert "a day, from 12 min" in found


def test_operations__six_hours_of_samples__have_few_points(site: Site) -> None:
    site.sample(1_440)

    page = site.page("?within=6h")

    assert max(len(line["points"]) for chart in charts(page) for line in chart["series"]) <= 120
    assert len(page) < 200_000


def test_operations__backup__is_shown_with_its_age(site: Site) -> None:
    assert "No backup of this home is known." in text_of(site.page())

    record_backup(site.settings.home, BackupRecord(site.at(-60), "/backups/x.tar", 7))

    found = text_of(site.page())
    assert "Last backup 1 h ago" in found
    assert "/backups/x.tar" in found


def test_operations__many_readers__share_one_deep_check(site: Site) -> None:
    def checked_at() -> int:
        return site.opened.store.generation()

    site.page()
    before = checked_at()
    site.page()
    assert checked_at() == before

    site.clock.advance(REPORT_SECONDS)
    site.page()
    assert checked_at() > before


def test_operations__reader_without_the_permission__is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path / "home", is_required=True)
    try:
        site.page(key=site.key("engine", Role.SIGNAL_ENGINE), status=403)
        site.page(key=site.key("vera", Role.VIEWER))
        changes = site.get(f"{ORIGIN}/ui/changes?of=server", key=site.key("engine", Role.SIGNAL_ENGINE))
        assert changes.status_code == 403
    finally:
        site.close()
