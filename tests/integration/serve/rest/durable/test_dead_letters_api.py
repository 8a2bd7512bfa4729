"""Dead letters over HTTP: found, shown, delivered again and thrown away, or only counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.durable.bus import dead_letters
from tests.integration.serve.durable_api import Api, problem, serving

NOBODY = "evt_00000000000000000000000000"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as made:
        yield made


@pytest.fixture
def dead(api: Api) -> list[str]:
    """Three events that could not be delivered, a day apart, the newest just now; their ids."""
    api.shop.is_broken = True
    ids = []
    for number in range(3):
        if number:
            api.env.clock.advance(86_400)
        answer = api.post("/events", {"type": "order.created", "data": number})
        ids.append(answer.json()["ids"][0])
        api.env.run()
    api.shop.is_broken = False
    return ids


def left(api: Api, query: str = "") -> list[str]:
    return [each["event_id"] for each in api.get(f"/dead-letters?{query}").json()["dead_letters"]]


def test_list__by_type_and_age__is_what_matches(api: Api, dead: list[str]) -> None:
    assert left(api) == dead
    assert left(api, "type=order.*&older_than=12h") == dead[:2]
    assert left(api, "newer_than=1d&older_than=1s") == [dead[1]]
    assert left(api, "subscription=hear&type=user.*") == []
    problem(api.get("/dead-letters?older_than=soon"), 400, "user")
    problem(api.get("/dead-letters?type=*.a"), 400, "bad_definition")


@pytest.fixture
def stuck(api: Api) -> list[str]:
    """Three executions that are stuck, the newest first."""
    api.shop.is_broken = True
    ids = ["f-0", "f-1", "f-2"]
    for identifier in ids:
        api.started("fragile", id=identifier)
        api.env.advance("1h")
    api.shop.is_broken = False
    return ids[::-1]


def test_list__executions_that_are_stuck__are_there_with_why_since_when_and_the_remedy(
    api: Api, stuck: list[str]
) -> None:
    found = api.get("/dead-letters").json()

    assert (found["dead_letters"], found["cursor"]) == ([], None)
    assert [each["id"] for each in found["executions"]] == stuck
    first = found["executions"][0]
    assert (first["workflow"], first["failures"], first["error"]["type"]) == ("fragile", 5, "WorkflowViolationError")
    assert first["since"] > api.get(f"/executions/{first['id']}").json()["started_at"]
    assert first["redrive"] == f"headgate execution redrive {first['id']}"
    api.post(f"/executions/{first['id']}/redrive")
    api.env.advance("5s")
    assert [each["id"] for each in api.get("/dead-letters").json()["executions"]] == stuck[1:]


def test_list__of_a_kind__holds_the_others_back(api: Api, stuck: list[str], dead: list[str]) -> None:
    def both(query: str) -> tuple[int, int]:
        found = api.get(f"/dead-letters?{query}").json()
        return len(found["executions"]), len(found["dead_letters"])

    assert both("") == (3, 3)
    assert both("kind=execution") == (3, 0)
    assert both("kind=delivery") == (0, 3)
    # What only deliveries have leaves executions out.
    assert both("subscription=hear") == both("type=order.*") == (0, 3)
    assert both("newer_than=1d") == (0, 2)
    assert both("older_than=1d") == (3, 2)
    problem(api.get("/dead-letters?kind=execution&subscription=hear"), 400, "user")
    problem(api.get("/dead-letters?kind=letter"), 400, "bad_payload")


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_list__both_kinds_in_pages__has_each_once(api: Api, stuck: list[str], dead: list[str], limit: int) -> None:
    executions: list[str] = []
    deliveries: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"/dead-letters?limit={limit}{cursor}").json()
        assert len(page["executions"]) + len(page["dead_letters"]) <= limit
        executions += [each["id"] for each in page["executions"]]
        deliveries += [each["event_id"] for each in page["dead_letters"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"

    assert (executions, deliveries) == (stuck, dead)


def test_list__cursor_of_another_kind__is_refused(api: Api, stuck: list[str], dead: list[str]) -> None:
    of_executions = api.get("/dead-letters?limit=1").json()["cursor"]
    of_deliveries = api.get("/dead-letters?kind=delivery&limit=1").json()["cursor"]

    problem(api.get(f"/dead-letters?kind=delivery&cursor={of_executions}"), 400, "bad_cursor")
    problem(api.get(f"/dead-letters?kind=execution&cursor={of_deliveries}"), 400, "bad_cursor")
    assert left(api, f"cursor={of_deliveries}") == dead[1:]


def test_list__large_events__a_page_ends_early_and_the_next_goes_on(
    api: Api, dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE_BYTES_MAX", 1)
    monkeypatch.setattr(dead_letters, "CHUNK", 2)

    first = api.get("/dead-letters").json()
    rest = api.get(f"/dead-letters?cursor={first['cursor']}").json()

    assert [each["event_id"] for each in first["dead_letters"]] == dead[:2]
    assert [each["event_id"] for each in rest["dead_letters"]] == dead[2:]
    assert rest["cursor"] is None


def test_show__one__is_the_event_and_its_error(api: Api, dead: list[str]) -> None:
    shown = api.get(f"/dead-letters/hear/{dead[1]}").json()

    assert (shown["subscription"], shown["event_id"], shown["attempts"]) == ("hear", dead[1], 1)
    assert (shown["error"]["message"], shown["event"]["data"]) == ("no ears", 1)
    assert shown == api.get("/dead-letters").json()["dead_letters"][1]
    problem(api.get(f"/dead-letters/hear/{NOBODY}"), 404, "not_found")
    problem(api.get(f"/dead-letters/nobody/{dead[1]}"), 404, "not_found")


@pytest.mark.parametrize("action", ["redeliver", "purge"])
def test_dry_run__whichever_are_chosen__counts_them_and_changes_nothing(api: Api, dead: list[str], action: str) -> None:
    chosen: list[tuple[dict[str, Any], int]] = [
        ({"event_ids": dead[:2]}, 2),
        ({"type": "order.*"}, 3),
        ({"older_than": "36h"}, 1),
        ({"newer_than": "1h"}, 1),
        ({"type": "user.*"}, 0),
    ]
    for choice, count in chosen:
        answer = api.post(f"/dead-letters/{action}", {"subscription": "hear", **choice, "dry_run": True})
        assert answer.json() == {"count": count, "more": False, "dry_run": True}

    problem(
        api.post(f"/dead-letters/{action}", {"subscription": "hear", "event_ids": [NOBODY], "dry_run": True}),
        404,
        "not_found",
    )
    assert left(api) == dead
    api.env.run()
    assert api.shop.received == []


def test_redeliver__by_age__is_received_and_the_others_stay(api: Api, dead: list[str]) -> None:
    answer = api.post("/dead-letters/redeliver", {"subscription": "hear", "older_than": "12h"})
    api.env.run()

    assert answer.json() == {"count": 2, "more": False}
    assert sorted(api.shop.received) == [0, 1]
    assert left(api) == dead[2:]


def test_redeliver__by_the_id_of_the_producer__is_received(api: Api) -> None:
    api.shop.is_broken = True
    stored = [
        api.post("/events", {"type": "order.created", "source": source, "id": "order-7", "data": 7}).json()["ids"][0]
        for source in ("/north", "/south")
    ]
    api.post("/events", {"type": "order.created", "source": "/north", "id": "order-8", "data": 8})
    api.env.run()
    api.shop.is_broken = False

    answer = api.post("/dead-letters/redeliver", {"subscription": "hear", "event_ids": ["order-8"]})
    api.env.run()

    assert answer.json()["count"] == 1
    assert api.shop.received == [8]
    refused = api.post("/dead-letters/redeliver", {"subscription": "hear", "event_ids": ["order-7"]})
    detail = problem(refused, 409, "conflict")["detail"]
    assert all(each in detail for each in stored)
    assert sorted(left(api)) == sorted(stored)


def test_purge__by_id_filter_and_all__is_gone_for_good(api: Api, dead: list[str]) -> None:
    assert api.post("/dead-letters/purge", {"subscription": "hear", "event_ids": [dead[1]]}).json()["count"] == 1
    problem(api.post("/dead-letters/purge", {"subscription": "hear", "event_ids": [dead[1]]}), 404, "not_found")
    assert left(api) == [dead[0], dead[2]]
    assert api.post("/dead-letters/purge", {"subscription": "hear", "older_than": "1d"}).json()["count"] == 1
    assert left(api) == [dead[2]]
    assert api.post("/dead-letters/purge", {"subscription": "hear", "all": True}).json()["count"] == 1
    assert left(api) == []
    api.env.run()
    assert api.shop.received == []


@pytest.mark.parametrize("action", ["redeliver", "purge"])
def test_many__more_than_the_limit__go_on_by_the_cursor(api: Api, dead: list[str], action: str) -> None:
    # The first one does not match, and must neither be taken nor hide the others.
    body: dict[str, Any] = {"subscription": "hear", "newer_than": "1d", "limit": 1}
    counts = []
    for _ in range(10):
        answer = api.post(f"/dead-letters/{action}", body).json()
        counts.append(answer["count"])
        if not answer["more"]:
            break
        body["cursor"] = answer["cursor"]

    assert sum(counts) == 2
    assert left(api) == dead[:1]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("purge", {"subscription": "hear"}, 400, "user"),
        ("purge", {"subscription": "hear", "all": True, "type": "order.*"}, 400, "user"),
        ("purge", {"subscription": "hear", "all": True, "event_ids": [NOBODY]}, 400, "user"),
        ("purge", {"all": True}, 400, "bad_payload"),
        ("purge", {"subscription": "nobody", "all": True}, 404, "not_found"),
        ("redeliver", {"subscription": "hear", "event_ids": [NOBODY], "type": "order.*"}, 400, "user"),
        ("redeliver", {"subscription": "hear", "older_than": "soon"}, 400, "user"),
        ("redeliver", {"subscription": "hear", "limit": 0}, 400, "bad_payload"),
        ("redeliver", {"subscription": "hear", "kind": "x"}, 400, "bad_payload"),
        ("redeliver", {"subscription": "hear", "cursor": "x"}, 400, "bad_cursor"),
    ],
)
def test_many__what_makes_no_sense__is_refused_and_changes_nothing(
    api: Api, dead: list[str], path: str, body: dict[str, Any], status: int, code: str
) -> None:
    problem(api.post(f"/dead-letters/{path}", body), status, code)

    assert left(api) == dead


def test_redeliver__to_a_subscription_that_is_retired__is_a_conflict(api: Api, dead: list[str]) -> None:
    api.post("/subscriptions/hear/retire")

    problem(api.post("/dead-letters/redeliver", {"subscription": "hear"}), 409, "conflict")
    problem(api.post("/dead-letters/redeliver", {"subscription": "hear", "event_ids": dead[:1]}), 409, "conflict")
    assert left(api) == dead
    assert api.post("/dead-letters/purge", {"subscription": "hear", "all": True}).json()["count"] == 3
