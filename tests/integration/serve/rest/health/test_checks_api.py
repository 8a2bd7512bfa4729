"""The check API: what is declared in the project can be listed, tried, run and back-tested, and not defined."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.auth.roles import Role
from headgate.checks.definitions import load_check_text
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import ORDERS, PAYMENTS, HealthApi, done, health_api, of

FILE = """\
dataset: urn:dp:orders:created
every: 60s
checks:
  - id: usual
    anomaly: {}
"""
CHECK = f"{of(ORDERS)}/checks/usual"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path) as made:
        made.dataset()
        loaded = load_check_text(FILE, "checks/orders.yaml")
        made.checks.catalog.replace(loaded.files)
        yield made


def test_checks__declared__are_listed_before_and_after_they_ran(api: HealthApi) -> None:
    [before] = done(api.get(f"{of(ORDERS)}/checks"), 200)["checks"]
    assert (before["id"], before["kind"], before["signal_type"]) == ("usual", "anomaly", "ANOMALY")
    assert (before["state"], before["at"], before["history"]) == (None, None, [])

    api.checks.poller.tick()
    api.clock.advance(3)
    assert api.checks.poller.tick() == 1

    found = done(api.get(CHECK), 200)
    assert found["state"] == "UNKNOWN"
    assert found["reason"] == "the last whole hour has no value"
    assert [each["state"] for each in found["history"]] == ["UNKNOWN"]
    assert found["definition"]["anomaly"] == {}
    assert done(api.get("/checks?state=UNKNOWN"), 200)["checks"][0]["id"] == "usual"
    assert done(api.get("/checks?state=OK"), 200)["checks"] == []


def test_run__of_a_check__is_due_now_and_audited(api: HealthApi) -> None:
    assert done(api.post(f"{CHECK}/run", {"reason": "after a fix"}), 202) == {"dataset_urn": ORDERS, "id": "usual"}

    assert api.checks.poller.tick() == 1
    entries = done(api.get("/audit"), 200)["items"]
    assert any(each["action"] == "check.run" for each in entries)


def test_try_and_backtest__store_nothing(api: HealthApi) -> None:
    assert done(api.post(f"{CHECK}/try"), 200)["state"] == "UNKNOWN"
    tested = done(api.post(f"{CHECK}/backtest", {"days": 2}), 200)

    assert (tested["days"], tested["judged"], tested["flagged"], len(tested["hours"])) == (2, 0, 0, 48)
    assert done(api.get(f"{of(ORDERS)}/results"), 200)["results"] == []
    assert done(api.get(f"{of(ORDERS)}/expected-volumes?days=1"), 200)["warm_up"] == 24


def test_check__that_is_unknown__names_the_nearest(api: HealthApi) -> None:
    assert "did you mean usual?" in problem(api.get(f"{of(ORDERS)}/checks/usuall"), 404, "not_found")["detail"]


def test_checks__of_other_datasets__are_hidden_from_a_scoped_key(tmp_path: Path) -> None:
    with health_api(tmp_path, is_required=True) as api:
        loaded = load_check_text(f"{FILE}---\n{FILE.replace('orders:created', 'payments:settled')}", "checks/a.yaml")
        api.checks.catalog.replace(loaded.files)
        admin = api.key("root", Role.ADMIN)
        for urn in (ORDERS, PAYMENTS):
            done(api.post("/datasets", {"dataset_urn": urn}, key=admin), 201)
        key = api.key("viewer", Role.VIEWER, scopes=("urn:dp:orders:*",))

        found = done(api.get("/checks", key=key), 200)["checks"]

        assert [each["dataset_urn"] for each in found] == [ORDERS]
        problem(api.get(f"{of(PAYMENTS)}/checks", key=key), 403, "forbidden")
        problem(api.post(f"{CHECK}/run", {}, key=key), 403, "forbidden")
