"""Baselines and alert quotas over HTTP: kept, counted, refused, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.auth.roles import Role
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import HealthApi, done, health_api, of

NORMAL = {"baseline_value": 1200.5, "stddev": 40, "sample_count": 168}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("baselines") / "home") as made:
        yield made


def test_baseline__put_and_changed__is_shown_with_its_version(api: HealthApi) -> None:
    urn = api.fresh()
    made = api.put(f"{of(urn)}/baselines/event_count", NORMAL)

    assert done(made, 200)["version"] == 1
    assert made.headers["etag"]
    changed = {**NORMAL, "baseline_value": 1300}
    assert done(api.put(f"{of(urn)}/baselines/event_count", {**changed, "expected_version": 1}), 200)["version"] == 2
    problem(api.put(f"{of(urn)}/baselines/event_count", {**NORMAL, "expected_version": 1}), 409, "version_conflict")
    stale = {"if-match": made.headers["etag"]}
    problem(api.put(f"{of(urn)}/baselines/event_count", NORMAL, headers=stale), 412, "precondition_failed")
    (listed,) = done(api.get(f"{of(urn)}/baselines"), 200)["baselines"]
    assert listed == done(api.get(f"{of(urn)}/baselines/event_count"), 200)
    assert (listed["dataset_urn"], listed["baseline_value"], listed["sample_count"]) == (urn, 1300, 168)
    problem(api.get(f"{of(urn)}/baselines/nothing"), 404, "not_found")


@pytest.mark.parametrize("wrong", [{"stddev": -1}, {"sample_count": 0}, {"baseline_value": "many"}, {"more": 1}])
def test_baseline__with_a_wrong_field__is_refused(api: HealthApi, wrong: dict[str, Any]) -> None:
    answer = api.put(f"{of(api.fresh())}/baselines/event_count", {**NORMAL, **wrong})

    assert answer.status_code in (400, 422), answer.text


def test_baseline__of_a_dataset_out_of_scope__is_refused(api: HealthApi) -> None:
    urn, other = api.fresh(), api.fresh()
    key = api.key("engine", Role.SIGNAL_ENGINE, scopes=(urn,))

    done(api.put(f"{of(urn)}/baselines/m", NORMAL, key=key), 200)
    problem(api.put(f"{of(other)}/baselines/m", NORMAL, key=key), 403, "forbidden")


def test_quota__of_a_team__is_granted_until_the_hour_is_full(api: HealthApi) -> None:
    asked = {"per_hour": 2}
    granted = [done(api.post("/alert-quotas/orders/acquire", asked), 200)["is_granted"] for _ in range(3)]

    assert granted == [True, True, False]
    shown = done(api.get("/alert-quotas/orders?per_hour=2"), 200)
    assert (shown["team"], shown["alert_count"], shown["is_granted"]) == ("orders", 2, False)
    api.clock.advance(3600)
    assert done(api.post("/alert-quotas/orders/acquire", asked), 200)["alert_count"] == 1


def test_quota__the_same_request_sent_again__counts_once(api: HealthApi) -> None:
    again = {"idempotency-key": "one-alert"}
    first = done(api.post("/alert-quotas/twice/acquire", {}, headers=again), 200)

    assert done(api.post("/alert-quotas/twice/acquire", {}, headers=again), 200) == first
    assert done(api.get("/alert-quotas/twice"), 200)["alert_count"] == 1
