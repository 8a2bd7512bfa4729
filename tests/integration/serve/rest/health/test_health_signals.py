"""Signals over HTTP: taken over in the order of their windows, listed while they are in breach, and their history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.roles import Role
from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import SIGNATURE, HealthApi, done, health_api, of

FIELDS = {
    "dataset_urn", "signal_type", "state", "previous_state", "state_changed_at", "last_ok_at", "score", "slo_threshold",
    "breach_start", "window_start", "window_end", "window_type", "metrics", "failure_signature", "top_producer",
    "evidence_sample", "incident_id", "tier", "owner_team", "last_updated", "version", "stale",
}  # fmt: skip


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("signals") / "home") as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path / "home") as made:
        yield made


def _path(urn: str, kind: str = "FRESHNESS") -> str:
    return f"{of(urn)}/signals/{kind}"


def test_update__the_first__is_shown_with_everything(api: HealthApi) -> None:
    urn = api.fresh(tier="TIER_2", owner_team="orders")
    producer = {"producer_id": "orders-service", "version": "v3.17", "confidence": "HIGH"}

    answer = api.put(_path(urn), api.value("WARNING", top_producer=producer, expected_version=0))

    result = done(answer, 200)
    assert (result["success"], result["new_version"], result["duplicate"], result["error_code"]) == (
        True,
        1,
        False,
        None,
    )
    assert answer.headers["etag"] == '"1"'
    shown = api.get(_path(urn), params={"consistent": "true"})
    signal = done(shown, 200)
    assert shown.headers["etag"] == '"1"'
    assert signal.keys() >= FIELDS
    assert signal == result["current"]
    assert (signal["state"], signal["previous_state"], signal["tier"], signal["owner_team"]) == (
        "WARNING", None, "TIER_2", "orders",
    )  # fmt: skip
    assert signal["metrics"] == {"evidence_count": 1247, "pass_count": 127, "fail_count": 1120}
    assert (signal["score"], signal["slo_threshold"], signal["failure_signature"]) == (0.102, 0.95, SIGNATURE)
    assert signal["top_producer"]["producer_id"] == "orders-service"
    assert done(api.get(f"{of(urn)}/signals"), 200)["signals"] == [signal]


def test_update__to_critical__opens_an_incident_that_the_signal_names(api: HealthApi) -> None:
    urn = api.fresh()

    opened = done(api.put(_path(urn), api.value("CRITICAL")), 200)["current"]["incident_id"]

    assert done(api.get(f"/incidents/{opened}"), 200)["primary_dataset_urn"] == urn


def test_update__the_same_twice__is_one_version(api: HealthApi) -> None:
    urn, value = api.fresh(), api.value("OK")
    done(api.put(_path(urn), value), 200)

    again = done(api.put(_path(urn), value), 200)

    assert (again["success"], again["duplicate"], again["new_version"]) == (True, True, 1)


def test_update__a_late_window__is_reported_as_a_problem_with_what_stands(api: HealthApi) -> None:
    urn = api.fresh()
    done(api.put(_path(urn), api.value("WARNING")), 200)

    late = problem(api.put(_path(urn), api.value("OK", minutes=-60)), 409, "stale_window")

    assert (late["current_version"], late["current"]["state"]) == (1, "WARNING")
    assert done(api.get(_path(urn)), 200)["state"] == "WARNING"
    history = done(api.get(f"{_path(urn)}/history"), 200)["snapshots"]
    assert [(each["state"], each["late"]) for each in history] == [("OK", True), ("WARNING", False)]


def test_update__of_another_version__is_409_by_body_and_412_by_header_with_what_stands(api: HealthApi) -> None:
    urn = api.fresh()
    done(api.put(_path(urn), api.value("WARNING")), 200)
    value = api.value("OK", minutes=1)

    by_body = problem(api.put(_path(urn), {**value, "expected_version": 9}), 409, "version_conflict")
    as_absent = problem(api.put(_path(urn), {**value, "expected_version": 0}), 409, "version_conflict")
    by_header = problem(api.put(_path(urn), value, headers={"if-match": '"9"'}), 412, "precondition_failed")

    for result in (by_body, as_absent, by_header):
        assert (result["current_version"], result["current"]["state"]) == (1, "WARNING")
    twice = api.put(_path(urn), {**value, "expected_version": 9}, headers={"if-match": '"1"'})
    problem(twice, 400, "bad_payload")
    assert done(api.get(_path(urn)), 200)["version"] == 1
    assert done(api.put(_path(urn), value, headers={"if-match": '"1"'}), 200)["new_version"] == 2


def test_update__of_one_version_by_many_at_once__is_taken_once(api: HealthApi) -> None:
    urn = api.fresh()
    done(api.put(_path(urn), api.value("OK")), 200)
    asked = [
        ("PUT", _path(urn), api.value("OK", minutes=1, score=number / 10), {"if-match": '"1"'}) for number in range(8)
    ]

    answers = api.at_once(*asked)

    assert sorted(each.status_code for each in answers) == [200] + [412] * 7
    assert done(api.get(_path(urn), params={"consistent": "true"}), 200)["version"] == 2


def test_update__of_what_is_not_registered__is_404(api: HealthApi) -> None:
    problem(api.put(_path("urn:dp:nobody:knows:v1"), api.value()), 404, "dataset_not_found")
    deleted = api.fresh()
    done(api.delete(of(deleted)), 200)
    problem(api.put(_path(deleted), api.value()), 404, "dataset_not_found")


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "MEH"},
        {"state": None},
        {"score": 1.01},
        {"score": -0.01},
        {"score": "0.5"},
        {"score": None},
        {"window_start": "yesterday"},
        {"window_end": "2026-01-15T10:00:00"},
        {"window_start": "2027-01-01T00:00:00Z"},
        {"window_end": "2027-01-01T00:00:00Z"},
        {"metrics": {"evidence_count": -1}},
        {"metrics": {"evidence_count": 1, "pass_count": 1, "fail_count": 1}},
        {"metrics": {"evidence_count": 10**30}},
        {"metrics": {"bogus": 1}},
        {"metrics": []},
        {"failure_signature": ""},
        {"failure_signature": "with#hash"},
        {"evidence_sample": [f"evd-{number}" for number in range(11)]},
        {"evidence_sample": ["a b"]},
        {"evidence_sample": "evd-1"},
        {"top_producer": {"version": "1"}},
        {"top_producer": {"producer_id": "p", "confidence": "SOME"}},
        {"slo_threshold": -1},
        {"expected_version": -2},
        {"expected_version": 1.5},
        {"bogus": 1},
        {"dataset_urn": "urn:dp:other:one"},
        {"signal_type": "OTHER"},
        {"window_type": "x" * 5000},
    ],
)
def test_update__with_a_wrong_field__is_refused_and_nothing_is_kept(api: HealthApi, wrong: dict[str, Any]) -> None:
    urn = api.fresh()

    problem(api.put(_path(urn), {**api.value("CRITICAL"), **wrong}), 400, "bad_payload")

    problem(api.get(_path(urn)), 404, "not_found")
    assert done(api.get("/incidents", params={"dataset_urn": urn}), 200)["items"] == []
    assert done(api.get(f"{_path(urn)}/history"), 200)["snapshots"] == []


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"score": NaN}', b'{"score": 1e999}', b"{" * 3000, b"\xff"])
def test_update__what_is_no_object_of_json__is_refused(api: HealthApi, content: bytes) -> None:
    problem(api.put(_path(api.fresh()), content=content), 400, "bad_payload")


def test_update__words_of_neighbours__are_understood(api: HealthApi) -> None:
    urn = api.fresh()

    done(api.put(_path(urn, "volume_anomaly"), api.value("fail", failure_signature="LOW:events")), 200)

    signal = done(api.get(_path(urn, "VOLUME")), 200)
    assert (signal["signal_type"], signal["state"]) == ("VOLUME", "CRITICAL")
    assert done(api.get(_path(urn, "Volume-Anomaly")), 200) == signal


@pytest.mark.parametrize("kind", ["%00", "a%2Fb", "x" * 65, "%E2%82%AC", "%23"])
def test_show__what_can_be_no_signal__is_refused(api: HealthApi, kind: str) -> None:
    problem(api.get(_path(api.fresh(), kind)), 400, "bad_payload")


def test_update__misspelled_type__is_refused_with_the_nearest_name(api: HealthApi) -> None:
    urn = api.fresh()

    refused = problem(api.put(_path(urn, "FRESHNES"), api.value("OK")), 400, "bad_payload")
    batch = {**api.value("OK"), "dataset_urn": urn, "signal_type": "volum"}
    (result,) = done(api.post("/signals/batch", {"updates": [batch]}), 200)["results"]

    assert "did you mean FRESHNESS?" in refused["detail"]
    assert (result["error_code"], "did you mean VOLUME?" in result["error_message"]) == ("VALIDATION_ERROR", True)
    assert done(api.get(f"{of(urn)}/signals"), 200)["signals"] == []
    done(api.put(_path(urn, "X_FRESHNES"), api.value("OK")), 200)
    assert "did you mean" in problem(api.get(_path(urn, "FRESHNES")), 404, "not_found")["detail"]


def test_batch__some_wrong__each_is_judged_by_itself_in_its_place(api: HealthApi) -> None:
    urn, gone = api.fresh(), "urn:dp:nobody:knows:v1"
    done(api.put(_path(urn, "LATE"), api.value("OK", minutes=1)), 200)
    good, late = api.value("OK"), api.value("OK", minutes=-10)
    updates = [
        {**good, "dataset_urn": urn, "signal_type": "ONE"},
        {**good, "dataset_urn": gone, "signal_type": "ONE"},
        {**good, "dataset_urn": "nonsense", "signal_type": "ONE"},
        {**good, "dataset_urn": urn, "signal_type": "TWO", "score": 7},
        {**late, "dataset_urn": urn, "signal_type": "LATE"},
        {**good, "dataset_urn": urn, "signal_type": "THREE", "expected_version": 4},
        {**good, "dataset_urn": urn.removesuffix(":v1"), "signal_type": "FOUR"},
    ]

    response = done(api.post("/signals/batch", {"updates": updates}), 200)

    assert (response["success_count"], response["failure_count"]) == (2, 5)
    assert [each["success"] for each in response["results"]] == [True, False, False, False, False, False, True]
    assert [each["error_code"] for each in response["results"]][1:6] == [
        "DATASET_NOT_FOUND", "VALIDATION_ERROR", "VALIDATION_ERROR", "STALE_WINDOW", "VERSION_CONFLICT",
    ]  # fmt: skip
    kept = {each["signal_type"] for each in done(api.get(f"{of(urn)}/signals"), 200)["signals"]}
    assert kept == {"ONE", "LATE", "FOUR"}


def test_batch__one_signal_twice__the_second_is_refused(api: HealthApi) -> None:
    update = {**api.value("OK"), "dataset_urn": api.fresh(), "signal_type": "ONE"}

    response = done(api.post("/signals/batch", {"updates": [update, {**update, "score": 0.9}]}), 200)

    assert [each["success"] for each in response["results"]] == [True, False]


@pytest.mark.parametrize("updates", [[], None, {}, [1], [[]], "x"])
def test_batch__that_is_none__is_refused(api: HealthApi, updates: Any) -> None:
    problem(api.post("/signals/batch", {"updates": updates}), 400, "bad_payload")


def test_batch__of_too_many__is_refused_whole(api: HealthApi) -> None:
    urn = api.fresh()
    updates = [{**api.value("OK"), "dataset_urn": urn, "signal_type": f"S{number}"} for number in range(501)]

    problem(api.post("/signals/batch", {"updates": updates}), 400, "bad_payload")

    assert done(api.get(f"{of(urn)}/signals"), 200)["signals"] == []


def test_history__of_a_time__has_its_transitions(api: HealthApi) -> None:
    urn = api.fresh()
    for minutes, state in ((-30, "OK"), (-20, "WARNING"), (-10, "CRITICAL"), (0, "OK")):
        done(api.put(_path(urn), api.value(state, minutes=minutes)), 200)

    everything = done(api.get(f"{_path(urn)}/history"), 200)["snapshots"]

    assert [each["state"] for each in everything] == ["OK", "WARNING", "CRITICAL", "OK"]
    assert [each["previous_state"] for each in everything] == [None, "OK", "WARNING", "CRITICAL"]
    problem(api.get(f"{_path(urn)}/history", params={"from": "x"}), 400, "bad_payload")
    problem(api.get(f"{_path(urn)}/history", params={"to": "2026-01-15"}), 400, "bad_payload")
    assert done(api.get(f"{_path(urn, 'OTHER')}/history"), 200)["snapshots"] == []


def test_breaches__by_state_and_tier__page_by_page__show_each_once(alone: HealthApi) -> None:
    expected = set()
    for number in range(9):
        urn, state = f"urn:dp:breach:d{number}", ("CRITICAL", "WARNING", "OK")[number % 3]
        alone.dataset(urn, tier=f"TIER_{number // 3 + 1}")
        done(alone.put(_path(urn), alone.value(state)), 200)
        if state != "OK":
            expected.add(urn)
    found, token = [], None
    while True:
        page = done(alone.get("/signals", params={"page_size": 2, **({"page_token": token} if token else {})}), 200)
        found += [each["dataset_urn"] for each in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break

    assert len(found) == len(expected)
    assert set(found) == expected
    only = done(alone.get("/signals", params={"state": "CRITICAL", "tier": "TIER_1"}), 200)["items"]
    assert [each["dataset_urn"] for each in only] == ["urn:dp:breach:d0"]
    first = alone.get("/signals", params={"page_size": 2}).json()["next_page_token"]
    for query in ({"state": "CRITICAL"}, {"tier": "TIER_1"}):
        problem(alone.get("/signals", params={"page_token": first, **query}), 400, "bad_cursor")


@pytest.mark.parametrize("query", ["state=OK", "state=MEH", "tier=9", "page_size=0", "bogus=1", "page_token=x"])
def test_breaches__a_query_that_is_wrong__is_refused(api: HealthApi, query: str) -> None:
    assert api.get(f"/signals?{query}").status_code == 400


def test_engine__with_its_scope__may_do_all_this(api: HealthApi) -> None:
    urn = api.fresh()
    key = api.key("engine", Role.SIGNAL_ENGINE, scopes=(f"{urn.removesuffix(':created:v1')}:*",))

    done(api.put(_path(urn), api.value("CRITICAL"), key=key), 200)
    done(
        api.post("/signals/batch", {"updates": [{**api.value("OK"), "dataset_urn": urn, "signal_type": "B"}]}, key=key),
        200,
    )
    done(api.get(_path(urn), key=key), 200)
    problem(api.get("/incidents", key=key), 403, "forbidden")


def test_volume_history__of_counted_windows__has_every_hour_and_no_zero_for_a_gap(alone: HealthApi) -> None:
    urn = alone.fresh()
    for minutes, result in ((-115, {"metrics": {"evidence_count": 40}}), (-110, {}), (-5, {"metrics": {}})):
        value = {**alone.value("OK", minutes=minutes), **result}
        done(alone.put(_path(urn, "VOLUME_ANOMALY"), value if result else _without_metrics(value)), 200)
    late = {**alone.value("OK", minutes=-112), "metrics": {"evidence_count": 2}}
    problem(alone.put(_path(urn, "VOLUME"), late), 409, "stale_window")

    found = done(alone.get(f"{of(urn)}/volume-history?days=1"), 200)

    assert (found["dataset_urn"], found["days"], found["known_count"], len(found["points"])) == (urn, 1, 2, 24)
    assert found["points"][-3:] == [
        {"hour": alone.at(-120), "event_count": 42, "window_count": 2, "is_over": True},
        {"hour": alone.at(-60), "event_count": 0, "window_count": 1, "is_over": True},
        {"hour": alone.at(), "event_count": None, "window_count": 0, "is_over": False},
    ]
    assert len(done(alone.get(f"{of(urn.removesuffix(':v1'))}/volume-history"), 200)["points"]) == 7 * 24
    for days in ("0", "15", "x"):
        assert alone.get(f"{of(urn)}/volume-history?days={days}").status_code == 400


def _without_metrics(value: dict[str, Any]) -> dict[str, Any]:
    return {name: said for name, said in value.items() if name != "metrics"}


def test_reset__signals_and_incidents__are_gone_and_what_comes_next_is_the_first(api: HealthApi) -> None:
    urn = api.fresh()
    api.signal("CRITICAL", urn, "VOLUME")
    api.signal("OK", urn, "FRESHNESS")
    (incident,) = done(api.get("/incidents", params={"dataset_urn": urn}), 200)["items"]
    path = f"{of(urn.removesuffix(':v1'))}/signals/reset"

    problem(api.post(path, {"reason": " "}), 400, "bad_payload")
    response = done(api.post(path, {"reason": "a bad deployment of the engine"}), 200)

    assert response == {
        "dataset_urn": urn, "signal_types": ["FRESHNESS", "VOLUME"], "incident_ids": [incident["incident_id"]],
    }  # fmt: skip
    assert done(api.get(f"{of(urn)}/signals"), 200)["signals"] == []
    assert not any(each["dataset_urn"] == urn for each in done(api.get("/signals"), 200)["items"])
    ended = done(api.get(f"/incidents/{incident['incident_id']}"), 200)
    assert (ended["status"], ended["resolution"]["root_cause"]) == (
        "RESOLVED",
        "signals were reset: a bad deployment of the engine",
    )
    audited = done(api.get("/audit", params={"entity": urn}), 200)["items"]
    assert (audited[0]["action"], audited[0]["actor"], audited[0]["changed"]) == (
        "signal.reset",
        "local",
        ["FRESHNESS", "VOLUME"],
    )
    assert done(api.post(path, {"reason": "again"}), 200)["signal_types"] == []
    again = done(api.put(f"{of(urn)}/signals/VOLUME", api.value("CRITICAL", minutes=-30)), 200)
    assert (again["new_version"], again["current"]["incident_id"] != incident["incident_id"]) == (1, True)
    assert len(done(api.get(f"{of(urn)}/signals/VOLUME/history"), 200)["snapshots"]) == 2


@pytest.mark.parametrize("path", ["/signals", "/signals/FRESHNESS"])
def test_read__of_what_no_one_has_registered__is_404(api: HealthApi, path: str) -> None:
    problem(api.get(f"{of('urn:dp:nobody:knows')}{path}"), 404, "dataset_not_found")
    problem(api.post(f"{of('urn:dp:nobody:knows')}/signals/reset", {"reason": "x"}), 404, "dataset_not_found")
