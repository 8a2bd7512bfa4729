"""Attention counts: who sees which, how often they are read, and what happens while the store is unavailable."""

from __future__ import annotations

import pytest

from headgate.auth.principals import LOCAL, Principal
from headgate.auth.roles import Role
from headgate.clock import VirtualClock
from headgate.errors import StoreFullError
from headgate.serve.pages.attention import COUNTED_MAX, INTERVAL_SECONDS, Attention, RailCount, Reading

ORDERS, PAYMENTS = "urn:dp:orders:created:v1", "urn:dp:payments:settled:v1"
ALL = Reading(incidents=(ORDERS, PAYMENTS), pipelines=2, executions=1, dead_letters=3, alerts=1, checks=1)


class Source:
    """Counts that change, and how often they were read. A reading takes `seconds`."""

    def __init__(self, reading: Reading = ALL, *, seconds: float = 0.0) -> None:
        self.clock = VirtualClock(1_000.0)
        self.reading: Reading | Exception = reading
        self.seconds = seconds
        self.reads = 0
        self.commits = 1
        self.attention = Attention(self._read, self.clock, lambda: self.commits)

    def _read(self) -> Reading:
        self.reads += 1
        self.clock.advance(self.seconds)
        if isinstance(self.reading, Exception):
            raise self.reading
        return self.reading

    def texts(self, principal: Principal = LOCAL) -> dict[str, str]:
        return {page: each.text for page, each in self.attention.counts(principal).items()}

    def after(self, seconds: float, *, commits: int = 1) -> dict[str, str]:
        self.clock.advance(seconds)
        self.commits += commits
        return self.texts()


def reader(*roles: Role, scopes: tuple[str, ...] = ("*",)) -> Principal:
    return Principal("ann", frozenset(roles), scopes)


def test_counts__administrator__sees_all() -> None:
    assert Source().texts() == {
        "incidents": "2", "pipelines": "2", "executions": "1", "events": "3", "alerts": "1", "operations": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("principal", "pages"),
    [
        (reader(Role.VIEWER), {"incidents", "pipelines", "executions", "events", "alerts", "operations"}),
        (reader(Role.RCA_COPILOT), {"incidents"}),
        (reader(Role.CONTROL_PLANE), {"pipelines"}),
        (reader(Role.ENFORCER), set()),
    ],
)
def test_counts__by_role__only_those_it_may_list(principal: Principal, pages: set[str]) -> None:
    assert set(Source().texts(principal)) == pages


def test_counts__anonymous__sees_none_and_reads_nothing() -> None:
    source = Source()

    assert source.attention.counts(None) == {}
    assert source.reads == 0


def test_counts__limited_scope__only_incidents_in_it() -> None:
    source = Source()

    assert source.texts(reader(Role.VIEWER, scopes=("urn:dp:orders:*",)))["incidents"] == "1"
    assert "incidents" not in source.texts(reader(Role.VIEWER, scopes=("urn:dp:stock:*",)))
    assert source.reads == 1, "callers share one reading"


def test_counts__zero__is_not_shown() -> None:
    assert Source(Reading()).texts() == {}


def test_counts__words__are_singular_and_plural_and_limited() -> None:
    counts = Source(Reading(incidents=(ORDERS,) * COUNTED_MAX, executions=1)).attention.counts(LOCAL)

    assert counts["executions"] == RailCount("1", "1 execution is stuck")
    assert counts["incidents"] == RailCount("99+", "More than 99 incidents are not acknowledged")


def test_counts__many_pages_within_the_interval__one_reading() -> None:
    source = Source()
    source.texts()
    source.reading = Reading(executions=9)

    assert source.after(INTERVAL_SECONDS / 2)["executions"] == "1"
    assert source.after(INTERVAL_SECONDS / 2)["executions"] == "9"
    assert source.reads == 2


def test_counts__no_commit__no_reading_until_time_may_have_changed_it() -> None:
    source = Source()
    source.texts()

    source.after(10, commits=0)
    assert source.reads == 1
    source.after(5, commits=0)
    assert source.reads == 2


def test_counts__backend_that_reports_no_commits__are_read_by_time_alone() -> None:
    source = Source()
    source.commits = 0
    source.texts()

    source.after(INTERVAL_SECONDS, commits=0)
    assert source.reads == 2


def test_counts__slow_reading__is_repeated_less_often() -> None:
    source = Source(seconds=0.5)
    source.texts()

    source.after(9)
    assert source.reads == 1
    source.after(1)
    assert source.reads == 2


def test_counts__store_unavailable__the_last_ones_stay() -> None:
    source = Source()
    source.texts()
    source.reading = StoreFullError("home: the disk is full; free disk space")

    assert source.after(2)["executions"] == "1"
    source.reading = Reading(executions=7)
    assert source.after(2)["executions"] == "7"
