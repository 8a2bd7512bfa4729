"""Executions that get stuck: people are notified, also when it is over once it goes on or has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate as hg
from headgate.bootstrap.pipelines import OpenPipelines, open_pipelines
from headgate.bootstrap.store import OpenedStore
from headgate.clock import Clock
from headgate.notify.alert_rows import Alert
from headgate.notify.enums import AlertStatus, Severity
from headgate.pipelines.stuck_executions import CHECK_SECONDS
from headgate.settings import Settings
from headgate.testing import Environment


class Site:
    """An app that breaks when asked to, with pipelines and their alerts around it."""

    def __init__(self, home: Path) -> None:
        self.app = hg.App("shop")
        self.is_broken = True

        @self.app.workflow(check=False)
        async def fragile() -> str:
            if self.is_broken:
                Path("somewhere").read_text()
            return "whole"

        self.fragile = fragile
        self._home = home
        self.env = Environment(self.app)

    def open(self) -> OpenPipelines:
        service = self.env.service
        near = OpenedStore(service.store, service._keyring, None, None, Settings(home=self._home))  # type: ignore[arg-type]
        clock: Clock = self.env.clock
        return open_pipelines(service, near, clock, environ={})


class Open(Site):
    """The same, in use."""

    pipelines: OpenPipelines

    def stuck(self, name: str) -> None:
        self.fragile.start(id=name)
        self.env.advance("1h")

    def pass_time(self) -> None:
        for _ in range(3):
            self.env.advance(2 * CHECK_SECONDS)
            self.pipelines.service.tick()
            self.env.run()

    @property
    def alerts(self) -> list[Alert]:
        return self.pipelines.alerts.ls().alerts


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Open]:
    made = Open(tmp_path)
    with made.env:
        made.pipelines = made.open()
        made.env.service.bus.register(list(made.app.subscriptions.values()), made.app.name)
        yield made


def test_stuck__reported_as_an_alert__with_the_error_and_the_remedy(site: Open) -> None:
    site.stuck("f")
    site.pass_time()

    [alert] = site.alerts
    assert (alert.event, alert.status, alert.severity) == ("EXECUTION_STUCK", AlertStatus.OPEN, Severity.CRITICAL)
    assert "execution f of workflow fragile is stuck: WorkflowViolationError: " in alert.text
    assert "headgate execution redrive f" in alert.message
    assert alert.detail["execution_id"] == "f"


@pytest.mark.parametrize("how", ["redriven", "terminated"])
def test_stuck__redriven_or_ended_by_whomever__the_alert_is_over(site: Open, how: str) -> None:
    site.stuck("f")
    site.stuck("g")
    site.pass_time()
    site.is_broken = False

    if how == "redriven":
        site.env.service.client.redrive("f")
    else:
        site.env.service.client.terminate("f")
    site.pass_time()

    status = {alert.detail["execution_id"]: (alert.status, alert.resolved_by) for alert in site.alerts}
    assert status == {"f": (AlertStatus.RESOLVED, "EXECUTION_WENT_ON"), "g": (AlertStatus.OPEN, "")}


def test_stuck__again_after_a_redrive__is_another_alert(site: Open) -> None:
    site.stuck("f")
    site.pass_time()
    site.env.service.client.redrive("f")
    site.pass_time()
    assert [alert.status for alert in site.alerts] == [AlertStatus.RESOLVED]

    site.env.advance("1h")
    site.pass_time()

    assert sorted(alert.status for alert in site.alerts) == [AlertStatus.OPEN, AlertStatus.RESOLVED]


def test_stuck__the_end_was_reported_first__the_alert_is_over_all_the_same(site: Open) -> None:
    site.fragile.start(id="f")
    site.env.run()
    site.stuck("f2")
    site.is_broken = False
    site.env.service.client.redrive("f")
    site.env.service.client.redrive("f2")

    site.pass_time()

    assert {alert.status for alert in site.alerts} <= {AlertStatus.RESOLVED}


def test_tick__nothing_is_stuck__costs_one_look_every_few_seconds(site: Open) -> None:
    site.pass_time()

    assert site.alerts == []
    assert site.pipelines.service.stuck.tick() == 0
