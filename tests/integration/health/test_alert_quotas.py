"""Alert quotas: a team is sent no more than its hour allows, whichever process asks and however many at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import InvalidPayloadError
from headgate.health.alert_quotas import AlertQuotas
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

START_SECONDS = 1_768_471_200.0  # 2026-01-15T10:00:00Z


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_SECONDS)


@pytest.fixture
def quotas(tmp_path: Path, clock: VirtualClock) -> Iterator[AlertQuotas]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as store:
        yield AlertQuotas(store, clock)


def test_quota__of_an_hour__is_used_up_and_begins_anew(quotas: AlertQuotas, clock: VirtualClock) -> None:
    granted = [quotas.acquire("orders").is_granted for _ in range(11)]

    assert granted == [True] * 10 + [False]
    shown = quotas.show("orders")
    assert (shown.hour, shown.alert_count, shown.is_granted) == ("2026-01-15-10", 10, False)
    assert shown.resets_at == "2026-01-15T11:00:00.000Z"
    assert quotas.acquire("payments").is_granted, "another team"
    clock.advance(3600)
    assert quotas.acquire("orders").alert_count == 1


def test_quota__several_at_once__all_or_none(quotas: AlertQuotas) -> None:
    assert quotas.acquire("orders", alerts=3, per_hour=4).is_granted
    refused = quotas.acquire("orders", alerts=2, per_hour=4)

    assert (refused.is_granted, refused.alert_count) == (False, 3)
    assert quotas.acquire("orders", per_hour=4).is_granted


def test_quota__many_who_ask_at_once__get_no_more_than_there_is(quotas: AlertQuotas) -> None:
    granted: list[bool] = []

    def ask() -> None:
        granted.extend(quotas.acquire("orders", per_hour=7).is_granted for _ in range(3))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(granted) == [False] * 8 + [True] * 7


@pytest.mark.parametrize("team", ["", "x" * 257])
def test_quota__no_name__is_refused(quotas: AlertQuotas, team: str) -> None:
    with pytest.raises(InvalidPayloadError, match="team"):
        quotas.acquire(team)
