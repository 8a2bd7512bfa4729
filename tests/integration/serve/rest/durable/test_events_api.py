"""Events over HTTP: in every form, listed, followed, delivered again."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.durable.bus.events import BATCH_TYPE, EVENT_BYTES_MAX, STRUCTURED_TYPE
from headgate.serve.rest.durable import events as served
from tests.integration.serve.durable_api import Api, problem, serving


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as made:
        yield made


def cloud_event(**more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created", "data": {"n": 1}, **more}


def emit(api: Api, body: Any, content_type: str = "application/json", **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return api.ask("POST", "/events", content=content, headers={"content-type": content_type, **headers})


# Emitting


def test_emit__plain__is_delivered(api: Api) -> None:
    answer = emit(api, {"type": "order.created", "data": {"id": 7}, "subject": "7"})
    api.env.run()

    assert answer.status_code == 202
    assert api.shop.received == [{"id": 7}]
    (listed,) = api.get("/events").json()["events"]
    assert listed["id"] == answer.json()["ids"][0]
    assert (listed["event"]["subject"], listed["event"]["specversion"]) == ("7", "1.0")


def test_emit__every_form_of_a_cloud_event__is_the_same_event(api: Api) -> None:
    binary = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-type": "order.created"}
    answers = [
        emit(api, cloud_event(), STRUCTURED_TYPE),
        emit(api, [cloud_event()], BATCH_TYPE),
        emit(api, {"n": 1}, **binary),
        emit(api, cloud_event()),
    ]
    api.env.run()

    assert [each.status_code for each in answers] == [202] * 4
    assert len({each.json()["ids"][0] for each in answers}) == 1
    assert api.shop.received == [{"n": 1}]


def test_emit__batch__is_accepted_in_order(api: Api) -> None:
    answer = emit(api, [cloud_event(id=str(number), data=number) for number in range(3)], BATCH_TYPE)

    listed = {each["id"]: each["event"]["data"] for each in api.get("/events").json()["events"]}
    assert [listed[identifier] for identifier in answer.json()["ids"]] == [0, 1, 2]


def test_emit__idempotency_key__is_the_id_of_a_plain_event(api: Api) -> None:
    headers = {"idempotency-key": "k1"}

    first = emit(api, {"type": "order.created"}, **headers)
    again = emit(api, {"type": "order.created"}, **headers)

    assert first.json() == again.json()
    assert len(api.get("/events").json()["events"]) == 1


def test_emit__binary_data__is_kept_as_it_is(api: Api) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-type": "file.came"}

    emit(api, b"\x00\xff", "application/octet-stream", **headers)

    (listed,) = api.get("/events").json()["events"]
    assert base64.b64decode(listed["event"]["data_base64"]) == b"\x00\xff"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        ([{"type": "a"}], "application/json"),
        ({"data": 1}, "application/json"),
        ({"type": ""}, "application/json"),
        ({"type": "a", "typ": 1}, "application/json"),
        ({"type": "a", "time": "yesterday"}, "application/json"),
        (b'{"type":"a","data":"\xff"}', "application/json"),
        ({"type": "a"}, STRUCTURED_TYPE),
        (cloud_event(specversion="0.3"), STRUCTURED_TYPE),
        ([cloud_event(), {"type": "a"}], BATCH_TYPE),
    ],
)
def test_emit__not_an_event__is_400_and_keeps_nothing(api: Api, body: Any, content_type: str) -> None:
    problem(emit(api, body, content_type), 400, "bad_payload")

    assert api.get("/events").json()["events"] == []


def test_emit__too_large__is_413(api: Api) -> None:
    problem(emit(api, {"type": "a", "data": "x" * EVENT_BYTES_MAX}), 413, "payload_too_large")


# Listing and following


def test_list__after_an_id_and_by_type__gives_what_came_later(api: Api) -> None:
    ids = [emit(api, {"type": f"order.{name}"}).json()["ids"][0] for name in ("created", "paid", "created")]

    def listed(query: str) -> list[str]:
        return [each["id"] for each in api.get(f"/events?{query}").json()["events"]]

    assert listed("") == ids
    assert listed(f"after={ids[0]}") == ids[1:]
    assert listed("type=order.created") == [ids[0], ids[2]]
    assert listed("type=order.*&limit=1") == [ids[2]]
    page = api.get(f"/events?after={ids[0]}&limit=1").json()
    assert page["next_after"] == ids[1]


@pytest.mark.parametrize(
    ("query", "code"), [("after=x", "bad_id"), ("limit=0", "bad_payload"), ("type=*a", "bad_definition")]
)
def test_list__bad_query__is_400(api: Api, query: str, code: str) -> None:
    problem(api.get(f"/events?{query}"), 400, code)
    if "limit" not in query:
        problem(api.get(f"/events/tail?{query}"), 400, code)


def test_list__large_events__a_page_ends_early(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "PAGE_BYTES_MAX", 2500)
    ids = [emit(api, {"type": "a", "data": "x" * 1000}).json()["ids"][0] for _ in range(4)]

    latest = api.get("/events").json()["events"]
    page = api.get(f"/events?after={ids[0]}").json()

    assert [each["id"] for each in latest] == ids[2:]
    assert [each["id"] for each in page["events"]] == ids[1:3]
    assert page["next_after"] == ids[2]


def test_tail__events_come__are_reported_from_then_on(api: Api) -> None:
    emit(api, {"type": "order.old"})
    api.env.clock.advance(1)

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        following = asyncio.create_task(client.get("/events/tail?type=order.*&for=1s"))
        for number in range(3):
            await asyncio.sleep(0.1)
            await client.post("/events", json={"type": "order.new" if number else "other", "data": number})
        answer: httpx.Response = await asyncio.wait_for(following, 10)
        return answer

    answer = api.session(talk)

    data = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [each["event"]["data"] for each in data] == [1, 2]
    assert f"id: {data[-1]['id']}\n" in answer.text


def test_tail__last_event_id__goes_on_after_it(api: Api) -> None:
    ids = [emit(api, {"type": "a"}).json()["ids"][0] for _ in range(3)]

    answer = api.get("/events/tail?for=0s", headers={"Last-Event-ID": ids[0]})

    assert [line.removeprefix("id: ") for line in answer.text.split("\n") if line.startswith("id: ")] == ids[1:]


# Subscriptions and what failed


def test_subscriptions__asked__are_listed(api: Api) -> None:
    (found,) = api.get("/subscriptions").json()["subscriptions"]

    assert (found["name"], found["types"], found["app"]) == ("hear", ["order.created"], "shop")


def test_dead_letters__listed_and_redelivered__are_received(api: Api) -> None:
    api.shop.is_broken = True
    ids = [emit(api, {"type": "order.created", "data": number}).json()["ids"][0] for number in range(3)]
    api.env.run()

    first = api.get("/dead-letters?limit=2").json()
    rest = api.get(f"/dead-letters?limit=2&cursor={first['cursor']}").json()
    letters = [*first["dead_letters"], *rest["dead_letters"]]
    assert [letter["event_id"] for letter in letters] == ids
    assert (letters[0]["error"]["type"], letters[0]["event"]["data"]) == ("ValueError", 0)

    api.shop.is_broken = False
    one = api.post("/dead-letters/redeliver", {"subscription": "hear", "event_ids": ids[:1]})
    all_others = api.post("/dead-letters/redeliver", {"subscription": "hear"})
    api.env.run()

    assert (one.json(), all_others.json()) == ({"count": 1, "more": False}, {"count": 2, "more": False})
    assert sorted(api.shop.received) == [0, 1, 2]
    assert api.get("/dead-letters").json()["dead_letters"] == []


def test_redeliver__nothing_there__is_404(api: Api) -> None:
    problem(api.post("/dead-letters/redeliver", {"subscription": "nobody"}), 404, "not_found")
    body = {"subscription": "hear", "event_ids": ["evt_00000000000000000000000000"]}
    problem(api.post("/dead-letters/redeliver", body), 404, "not_found")


def test_replay__range__is_delivered_again_once(api: Api) -> None:
    emit(api, {"type": "order.created", "data": 1})
    emit(api, {"type": "other", "data": 2})
    api.env.run()
    body = {"since": "2025-06-15T00:00:00Z", "until": "2025-06-16T00:00:00Z", "id": "r1"}

    answers = [api.post("/subscriptions/hear/replay", body) for _ in range(2)]
    api.env.run()

    assert [each.json() for each in answers] == [{"count": 1}, {"count": 1}]
    assert api.shop.received == [1, 1]
    problem(api.post("/subscriptions/nobody/replay", body), 404, "not_found")
    problem(api.post("/subscriptions/hear/replay", {**body, "since": "2025-06-15T00:00:00"}), 400, "bad_payload")
    problem(api.post("/subscriptions/hear/replay", {**body, "types": ["a"]}), 409, "token_reused")


def test_document__of_emitting__has_data_as_it_may_be_left_out_and_reports_binary_mode(api: Api) -> None:
    document = api.get("http://127.0.0.1:8400/api/openapi.json").json()
    emitting = document["paths"]["/api/v1/events"]["post"]

    schema = document["components"]["schemas"]["CloudEvent"]
    assert schema["required"] == ["specversion", "id", "source", "type"]
    assert {"data", "data_base64", "subject", "time"} <= set(schema["properties"])
    headers = {each["name"]: each for each in emitting["parameters"] if each["in"] == "header"}
    assert {"ce-specversion", "ce-id", "ce-source", "ce-type"} <= set(headers)
    assert all(each["description"] for each in headers.values())
    assert "binary mode" in emitting["description"]
    assert "*/*" in emitting["requestBody"]["content"]
