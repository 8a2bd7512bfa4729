"""Settings of evidence: what they say is what is kept, for how long, and how much of it at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from headgate.bootstrap.health import open_health
from headgate.bootstrap.store import AppService, open_cache, open_store
from headgate.clock import VirtualClock
from headgate.durable.sdk.app import App
from headgate.errors import SettingsError
from headgate.health.evidence.rows import Evidence, Result, Validation
from headgate.health.service import HealthService
from headgate.settings import Settings

URN = "urn:dp:orders:created:v1"
DAY = 86_400


@contextmanager
def opened(home: Path, clock: VirtualClock, **variables: object) -> Iterator[HealthService]:
    environ = {f"HEADGATE_EVIDENCE_{name.upper()}": str(value) for name, value in variables.items()}
    settings = Settings.load(environ, None, {"home": str(home)})
    store = open_store(settings, clock)
    service = AppService(App("test"), store, clock)
    with (
        closing(store.store),
        closing(open_cache(settings, clock)) as cache,
        closing(open_health(store, cache, clock, service)) as health,
    ):
        yield health


def evidence(said: Result, number: int = 0) -> Evidence:
    reasons = () if said is Result.PASS else ("MISSING_FIELD:customer_id",)
    return Evidence(
        evidence_id=f"evd-01JD0000000000000000{number:06d}",
        dataset_urn=URN,
        validation=Validation(result=said, reason_codes=reasons),
    )


@pytest.mark.parametrize(("rate", "kept"), [(0, 0), (1, 200)])
def test_rates__of_what_fails__are_those_of_the_settings(tmp_path: Path, rate: int, kept: int) -> None:
    with opened(tmp_path, VirtualClock(), fail_rate=rate) as health:
        answers = health.evidence.put_many([evidence(Result.FAIL, number) for number in range(200)])
    # The first failure of a dataset is kept whatever the rate.
    assert sum(answer.stored for answer in answers) in (kept, kept + 1)


def test_rates__of_what_passes__are_those_of_the_settings(tmp_path: Path) -> None:
    with opened(tmp_path, VirtualClock(), pass_rate=1) as health:
        answers = health.evidence.put_many([evidence(Result.PASS, number) for number in range(200)])
    assert all(answer.stored for answer in answers)


def test_hot_hours__over__it_is_no_longer_in_the_table(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock, hot_hours=2) as health:
        stored = health.evidence.put(evidence(Result.FAIL))
        clock.advance(2 * 3600 - 1)
        assert health.evidence.get(stored.evidence_id, include_archived=False) is not None
        clock.advance(1)
        assert health.evidence.get(stored.evidence_id, include_archived=False) is None


@pytest.mark.parametrize("limit", ["per_signature_per_minute", "total_per_minute"])
def test_limits__reached__the_rest_is_turned_away_and_counted(tmp_path: Path, limit: str) -> None:
    with opened(tmp_path, VirtualClock(), **{limit: 20}) as health:
        answers = health.evidence.put_many([evidence(Result.FAIL, number) for number in range(50)])
        assert health.evidence.stats.shed_fail == 50 - sum(answer.stored for answer in answers)
    assert 10 <= sum(answer.stored for answer in answers) <= 20


@pytest.mark.parametrize(("days", "is_there"), [(3, False), (0, True)])
def test_archive_days__over__it_is_deleted_unless_it_is_kept_for_ever(
    tmp_path: Path, days: int, is_there: bool
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock, archive_days=days) as health:
        stored = health.evidence.put(evidence(Result.FAIL))
        clock.advance(3600)
        assert health.archive() == 1
        clock.advance(600 * DAY)
        health.purge()
        assert (health.evidence.get(stored.evidence_id, include_archived=True) is not None) is is_there


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("pass_rate", "2", "a number from 0 to 1"),
        ("hot_hours", "0", "a whole number from 1 to 8,760"),
        ("total_per_minute", "0", "a whole number of at least 1"),
        ("archive_days", "-1", "a whole number from 0 to 36,500"),
    ],
)
def test_settings__of_evidence_that_cannot_be__are_refused_with_what_is_allowed(
    tmp_path: Path, name: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingsError, match=f"HEADGATE_EVIDENCE_{name.upper()}.*{allowed}"):
        Settings.load({f"HEADGATE_EVIDENCE_{name.upper()}": value}, None, {"home": str(tmp_path)})
