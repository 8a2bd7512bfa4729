"""Schedules over HTTP. It is 2025-06-15 15:06:40 UTC, a Sunday."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.serve.durable_api import Api, problem, serving

HOURLY = {"id": "hourly", "workflow": "pay", "cron": "@hourly", "input": 5}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as made:
        yield made


def test_create__new__is_201_and_fires(api: Api) -> None:
    answer = api.post("/schedules", {**HOURLY, "tags": {"a": "b"}})

    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/schedules/hourly"
    assert answer.headers["etag"] == '"1"'
    assert answer.json()["next"] == "2025-06-15T16:00:00Z"
    api.env.advance("2h")
    shown = api.get("/schedules/hourly").json()
    assert [fire["execution_id"] for fire in shown["fires"]] == [
        "hourly/2025-06-15T16:00:00Z",
        "hourly/2025-06-15T17:00:00Z",
    ]
    assert api.get("/executions/hourly%2F2025-06-15T16:00:00Z").json()["result"] == "receipt-5"
    # All of them have ended.
    assert shown.get("open_executions", []) == []


def test_create__again__is_the_same_and_another_is_409(api: Api) -> None:
    api.post("/schedules", HOURLY)

    assert api.post("/schedules", HOURLY).status_code == 201
    problem(api.post("/schedules", {**HOURLY, "cron": "@daily"}), 409, "conflict")


@pytest.mark.parametrize(
    ("change", "status", "code", "message"),
    [
        ({"cron": "61 * * * *"}, 400, "bad_schedule", "minute"),
        ({"cron": "0 0 30 2 *"}, 400, "bad_schedule", "day-of-month"),
        ({"zone": "Mars/Base"}, 400, "bad_schedule", "Mars/Base"),
        ({"workflow": "nothing"}, 404, "unknown_workflow", "nothing"),
        ({"input": "five"}, 400, "bad_payload", "amount"),
        ({"id": "a/b"}, 400, "bad_id", "a/b"),
        ({"overlap": "maybe"}, 400, "bad_payload", "overlap"),
        ({"catchup_window": "x"}, 400, "user", "catchup_window"),
        ({"start": "2025-06-15T00:00:00"}, 400, "bad_payload", "start"),
        ({"crn": 1}, 400, "bad_payload", "crn"),
    ],
)
def test_create__cannot_be__says_why(api: Api, change: dict[str, Any], status: int, code: str, message: str) -> None:
    assert message in problem(api.post("/schedules", {**HOURLY, **change}), status, code)["detail"]
    assert api.get("/schedules").json()["schedules"] == []


def test_update__if_match__only_changes_what_was_seen(api: Api) -> None:
    tag = api.post("/schedules", HOURLY).headers["etag"]
    spec = {"workflow": "pay", "cron": "@daily", "input": 6}

    first = api.ask("PUT", "/schedules/hourly", json=spec, headers={"If-Match": tag})
    second = api.ask("PUT", "/schedules/hourly", json={**spec, "input": 7}, headers={"If-Match": tag})

    assert (first.status_code, first.json()["cron"], first.json()["revision"]) == (200, "@daily", 2)
    problem(second, 412, "precondition_failed")
    assert api.get("/schedules/hourly").json()["input"] == 6
    problem(api.ask("PUT", "/schedules/hourly", json=spec, headers={"If-Match": "x"}), 400, "bad_payload")
    problem(api.ask("PUT", "/schedules/none", json=spec), 404, "not_found")
    assert api.ask("PUT", "/schedules/hourly", json={**spec, "input": 8}).json()["input"] == 8


def test_delete__if_match__is_gone_or_412(api: Api) -> None:
    tag = api.post("/schedules", HOURLY).headers["etag"]
    api.post("/schedules/hourly/pause", {"reason": "holiday"})

    problem(api.ask("DELETE", "/schedules/hourly", headers={"If-Match": tag}), 412, "precondition_failed")
    assert api.ask("DELETE", "/schedules/hourly", headers={"If-Match": '"2"'}).status_code == 204
    problem(api.get("/schedules/hourly"), 404, "not_found")
    problem(api.ask("DELETE", "/schedules/hourly"), 404, "not_found")


def test_pause_and_resume__slots_meanwhile_are_skipped(api: Api) -> None:
    api.post("/schedules", HOURLY)

    paused = api.post("/schedules/hourly/pause", {"reason": "holiday"}).json()
    api.env.advance("2h")
    resumed = api.post("/schedules/hourly/resume").json()

    assert (paused["paused"], paused["reason"]) == (True, "holiday")
    assert "next" not in paused
    assert (resumed["paused"], resumed["skipped_count"], resumed["next"]) == (False, 2, "2025-06-15T18:00:00Z")


def test_trigger__twice_with_one_key__starts_one(api: Api) -> None:
    api.post("/schedules", HOURLY)

    answers = [api.post("/schedules/hourly/trigger", headers={"Idempotency-Key": "t1"}) for _ in range(2)]
    api.env.run()

    assert [each.status_code for each in answers] == [201, 201]
    assert {each.json()["execution_id"] for each in answers} == {"hourly/trigger-t1"}
    assert len(api.get("/executions?workflow=pay").json()["executions"]) == 1
    problem(api.post("/schedules/hourly/trigger", {"overlap": "buffer_one"}), 400, "bad_schedule")
    problem(api.post("/schedules/none/trigger"), 404, "not_found")


def test_trigger__skip_while_one_is_open__is_200_with_the_reason(api: Api) -> None:
    api.post("/schedules", {**HOURLY, "workflow": "nap", "input": 9999.0})
    api.post("/schedules/hourly/trigger", {"id": "a"})

    answer = api.post("/schedules/hourly/trigger", {"id": "b", "overlap": "skip"})

    assert (answer.status_code, answer.json()["skipped"]) == (200, "overlap")
    assert answer.json()["blocked_by"] == "hourly/trigger-a"


def test_backfill__past_range__starts_its_slots(api: Api) -> None:
    api.post("/schedules", HOURLY)
    body = {"since": "2025-06-15T10:00:00Z", "until": "2025-06-15T13:00:00Z", "overlap": "allow"}

    answer = api.post("/schedules/hourly/backfill", body)
    api.env.advance("1m")

    assert (answer.status_code, len(answer.json()["backfills"])) == (202, 1)
    started = {each["id"] for each in api.get("/executions?workflow=pay").json()["executions"]}
    assert started == {f"hourly/2025-06-15T{hour}:00:00Z" for hour in (10, 11, 12)}
    problem(api.post("/schedules/hourly/backfill", {**body, "until": body["since"]}), 400, "bad_schedule")
    problem(api.post("/schedules/hourly/backfill", {**body, "overlap": "skip"}), 400, "bad_schedule")


def test_preview__n__gives_the_next_slots(api: Api) -> None:
    api.post("/schedules", HOURLY)

    slots = api.get("/schedules/hourly/preview?n=2").json()["slots"]

    assert [each["slot"] for each in slots] == ["2025-06-15T16:00:00Z", "2025-06-15T17:00:00Z"]
    problem(api.get("/schedules/hourly/preview?n=0"), 400, "bad_payload")
    problem(api.get("/schedules/none/preview"), 404, "not_found")


def test_preview__another_zone__reports_what_time_it_is_there(api: Api) -> None:
    api.post("/schedules", {**HOURLY, "id": "berlin", "cron": "0 6 * * *", "zone": "Europe/Berlin"})

    shown = api.get("/schedules/berlin/preview?n=1").json()

    assert shown["zone"] == "Europe/Berlin"
    assert [(each["slot"], each["local"]) for each in shown["slots"]] == [
        ("2025-06-16T04:00:00Z", "2025-06-16T06:00:00+02:00")
    ]


def test_list__filtered_by_workflow_and_state__has_only_those(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.post("/schedules", {**HOURLY, "id": name, "paused": name == "c"})

    def ids(**params: Any) -> list[str]:
        return [each["id"] for each in api.get("/schedules", params=params).json()["schedules"]]

    assert ids(paused="true") == ["c"]
    assert ids(paused="false") == ["a", "b"]
    assert ids(workflow=HOURLY["workflow"], paused="true") == ["c"]
    assert ids(workflow="other") == []
    assert api.get("/schedules").json()["cursor"] is None


def test_list__pages__have_every_schedule_once(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.post("/schedules", {**HOURLY, "id": name, "paused": name == "c"})

    seen: list[str] = []
    query: dict[str, Any] = {"limit": 1}
    for _ in range(10):
        page = api.get("/schedules", params=query).json()
        seen += [each["id"] for each in page["schedules"]]
        if page["cursor"] is None:
            break
        query = {"limit": 1, "cursor": page["cursor"]}

    assert sorted(seen) == ["a", "b", "c"]
    problem(api.get("/schedules?cursor=zzz"), 400, "bad_cursor")


def test_stop_backfills__under_way__start_no_further_slots(api: Api) -> None:
    api.post("/schedules", {**HOURLY, "paused": True})
    backfill = {"since": "2025-06-01T00:00:00Z", "until": "2025-06-02T00:00:00Z"}
    begun = api.post("/schedules/hourly/backfill", backfill)
    assert len(begun.json()["backfills"]) == 1

    stopped = api.post("/schedules/hourly/stop-backfills")

    assert stopped.status_code == 200
    assert "backfills" not in stopped.json()
    assert stopped.headers["etag"] != begun.headers["etag"]
    assert stopped.json() == api.get("/schedules/hourly").json()
    assert api.post("/schedules/hourly/stop-backfills").status_code == 200
    problem(api.post("/schedules/none/stop-backfills"), 404, "not_found")
    stale = api.post("/schedules/hourly/stop-backfills", headers={"If-Match": begun.headers["etag"]})
    problem(stale, 412, "precondition_failed")
