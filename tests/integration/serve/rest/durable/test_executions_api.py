"""Executions over HTTP: the real application on a real store, with a worker that is driven by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import headgate as hg
from headgate.durable.model import payload
from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from headgate.serve.probes import Phase
from headgate.serve.rest.durable import execution_waits
from headgate.serve.runtime import watch_hub
from tests.integration.serve.durable_api import Api, problem, serving


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as made:
        yield made


# Starting


def test_start__new__is_201_with_its_location_which_works(api: Api) -> None:
    answer = api.post("/executions", {"workflow": "pay", "input": 5, "id": "pay/5", "tags": {"shop": "a"}, "memo": [1]})

    assert (answer.status_code, answer.json()) == (201, {"id": "pay/5", "workflow": "pay", "created": True})
    assert answer.headers["location"] == "/api/v1/executions/pay%2F5"
    api.env.run()
    shown = api.get(answer.headers["location"].removeprefix("/api/v1")).json()
    assert (shown["status"], shown["input"], shown["result"]) == ("SUCCEEDED", 5, "receipt-5")
    assert (shown["tags"], shown["memo"]) == ({"shop": "a"}, [1])


def test_start__with_a_retry_policy__is_shown_and_checked(api: Api) -> None:
    body = {"workflow": "pay", "input": 5, "id": "p", "retry": {"attempts": 3, "first": "1m", "never": ["OSError"]}}
    assert api.post("/executions", body).status_code == 201
    shown = api.get("/executions/p").json()["retry"]
    assert (shown["attempts"], shown["first"], shown["never"]) == (3, 60.0, ["OSError"])
    signalled = {**body, "id": "s", "name": "news", "memo": [1], "timeout": "1h"}
    assert api.post("/executions/signal-with-start", signalled).status_code == 201
    found = api.get("/executions/s").json()
    assert (found["retry"]["attempts"], found["memo"]) == (3, [1])
    assert found["timeout_at"] > found["started_at"]
    for wrong in ({"attempts": -1}, {"first": "10m"}, {"never": ["not a name"]}, {"tries": 3}):
        refused = api.post("/executions", {**body, "id": "wrong", "retry": wrong})
        assert refused.status_code == 400, refused.text


def test_start__again_with_the_same_input__is_200_and_starts_nothing(api: Api) -> None:
    first = api.started("pay", 5, id="one")

    again = api.post("/executions", {"workflow": "pay", "input": 5, "id": first})

    assert (again.status_code, again.json()["created"]) == (200, False)
    problem(api.post("/executions", {"workflow": "pay", "input": 6, "id": first}), 409, "already_started")
    anew = api.post("/executions", {"workflow": "pay", "input": 6, "id": first, "reuse": "closed"})
    assert anew.status_code == 201


def test_start__idempotency_key__is_the_id_if_none_is_given(api: Api) -> None:
    headers = {"Idempotency-Key": '"key-7"'}

    answers = [api.post("/executions", {"workflow": "pay", "input": 1}, headers=headers) for _ in range(2)]

    assert [(each.status_code, each.json()["id"]) for each in answers] == [(201, "key-7"), (200, "key-7")]
    given = api.post("/executions", {"workflow": "pay", "input": 1, "id": "own"}, headers=headers)
    assert given.json()["id"] == "own"


def test_start__delay_and_timeout__wait_and_end_as_asked(api: Api) -> None:
    identifier = api.started("nap", 3600.0, delay="1h", timeout=60)

    assert api.get(f"/executions/{identifier.replace('/', '%2F')}").json()["waits_for"] == [
        {"kind": "start", "due_at": "2025-06-15T16:06:40.000Z"}
    ]
    api.env.advance("2h")
    assert api.get(f"/executions/{identifier.replace('/', '%2F')}").json()["status"] == "TIMED_OUT"


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ({"workflow": "nothing"}, 404, "unknown_workflow", "there is bank, family"),
        ({"workflow": "pay", "input": 1, "id": "a#b"}, 400, "bad_id", "a#b"),
        ({"workflow": "pay", "input": 1, "id": ""}, 400, "bad_id", "execution id"),
        ({"workflow": "pay", "input": "five"}, 400, "bad_payload", "amount"),
        ({"workflow": "pay"}, 400, "bad_payload", "amount"),
        ({"workflow": "pay", "inputs": 1}, 400, "bad_payload", "inputs"),
        ({"input": 1}, 400, "bad_payload", "workflow"),
        ({"workflow": "pay", "input": 1, "reuse": "maybe"}, 400, "bad_payload", "maybe"),
        ({"workflow": "pay", "input": 1, "delay": "soon"}, 400, "user", "delay"),
        ({"workflow": "pay", "input": 1, "tags": {"a b": "c"}}, 400, "bad_id", "a b"),
    ],
)
def test_start__cannot_be__says_why_and_starts_nothing(
    api: Api, body: dict[str, Any], status: int, code: str, message: str
) -> None:
    assert message in problem(api.post("/executions", body), status, code)["detail"]
    assert api.get("/executions").json()["executions"] == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"workflow":"pay","input":"\xff"}', b'{"workflow":"order","input":' + b"[" * 5000],
)
def test_start__not_json__is_400(api: Api, content: bytes) -> None:
    problem(api.ask("POST", "/executions", content=content), 400, "bad_payload")


def test_signal__too_many_levels__is_400(api: Api) -> None:
    api.started("order", "book", id="o")

    def send(levels: int) -> httpx.Response:
        deep = b"[" * levels + b"]" * levels
        return api.ask("POST", "/executions/o/signals", content=b'{"name":"add","payload":' + deep + b"}")

    assert send(payload.DEPTH_MAX - 1).status_code == 202
    problem(send(payload.DEPTH_MAX + 1), 400, "bad_payload")


def test_start__too_large__is_413(api: Api) -> None:
    huge = {"workflow": "order", "input": "x" * (payload.BYTES_MAX + 1)}
    larger = "x" * (BODY_BYTES_MAX + 1)

    assert f"{payload.BYTES_MAX:,}" in problem(api.post("/executions", huge), 413, "payload_too_large")["detail"]
    problem(api.ask("POST", "/executions", content=larger), 413, "content_too_large")


def test_signal_with_start__twice_with_one_key__starts_once_and_is_received_once(api: Api) -> None:
    body = {"workflow": "order", "input": "book", "id": "o/1", "name": "add", "payload": 7}

    first = api.post("/executions/signal-with-start", body, headers={"Idempotency-Key": "k"})
    again = api.post("/executions/signal-with-start", body, headers={"Idempotency-Key": "k"})
    api.env.run()

    assert (first.status_code, again.status_code) == (201, 200)
    assert api.post("/executions/o%2F1/queries", {"name": "seen"}).json() == {"result": [7]}


# Paths


@pytest.mark.parametrize(("reuse", "starts"), [("never", False), ("failed", False), ("closed", True), (None, True)])
def test_signal_with_start__ended_well__begins_again_or_says_that_no_one_receives_it(
    api: Api, reuse: str | None, starts: bool
) -> None:
    body = {"workflow": "order", "id": "o", "name": "add", "input": "book", "payload": "stop"}
    given = body if reuse is None else {**body, "reuse": reuse}
    api.post("/executions/signal-with-start", given)
    api.env.run()

    again = api.post("/executions/signal-with-start", given)

    if starts:
        assert (again.status_code, again.json()["created"]) == (201, True)
    else:
        problem(again, 409, "execution_closed")


def test_signal_with_start__reuse_failed_after_a_failure__begins_again(api: Api) -> None:
    body = {"workflow": "order", "id": "o", "name": "add", "input": "book", "payload": "x", "reuse": "failed"}
    api.post("/executions/signal-with-start", body)
    api.post("/executions/o/terminate")
    api.env.run()

    assert api.post("/executions/signal-with-start", body).status_code == 201
    problem(api.post("/executions/signal-with-start", {**body, "reuse": "sometimes"}), 400, "bad_payload")


@pytest.mark.parametrize(
    "identifier", ["a/b", "bulk", "a/history", "history/b/signals", "signal-with-start", "x:@=+-._"]
)
def test_path__any_id__is_found_by_its_encoded_form(api: Api, identifier: str) -> None:
    api.started("order", "book", id=identifier)
    encoded = identifier.replace("/", "%2F")

    assert api.get(f"/executions/{encoded}").json()["id"] == identifier
    assert api.get(f"/executions/{encoded}/history").json()["execution_id"] == identifier
    assert api.post(f"/executions/{encoded}/signals", {"name": "add"}).status_code == 202


@pytest.mark.parametrize(
    "path", ["/executions/a/b", "/executions/a/b/history", "/executions/a/nothing", "/executions/a%2Fb/history/x"]
)
def test_path__no_such__is_404(api: Api, path: str) -> None:
    assert "%2F" in problem(api.get(path), 404, "not_found")["detail"]


def test_path__other_method__is_405_with_those_that_are_right(api: Api) -> None:
    answer = api.ask("DELETE", "/executions/a%2Fb")

    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


def test_path__not_utf8__is_400(api: Api) -> None:
    problem(api.get("/executions/%ff"), 400, "bad_payload")


def test_metrics__many_ids__are_one_route(api: Api) -> None:
    async def talk(client: httpx.AsyncClient) -> str:
        await client.get("/executions/a%2F1")
        await client.get("/executions/a%2F2")
        return (await client.get("http://127.0.0.1:8400/metrics")).text

    assert 'route="/api/v1/executions/{id}",status="404"} 2.0' in api.session(talk)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("GET", "/history", None),
        ("GET", "/logs", None),
        ("GET", "/result", None),
        ("GET", "/watch", None),
        ("POST", "/signals", {"name": "x"}),
        ("POST", "/queries", {"name": "x"}),
        ("POST", "/updates", {"name": "x"}),
        ("POST", "/cancel", None),
        ("POST", "/terminate", None),
        ("POST", "/redrive", None),
        ("POST", "/retry", None),
        ("POST", "/reset", {"to": 1}),
        ("POST", "/retry-from-failure", None),
    ],
)
def test_every_operation__no_such_execution__is_404(api: Api, method: str, path: str, body: Any) -> None:
    problem(api.ask(method, f"/executions/none{path}", json=body), 404, "not_found")


# Listing


def test_list__by_each_filter__gives_those_that_match(api: Api) -> None:
    api.started("pay", 1, id="paid", tags={"shop": "a"})
    api.started("order", "book", id="open", tags={"shop": "a", "vip": "yes"})
    api.started("family", 2, id="parent")

    def ids(query: str) -> list[str]:
        return [each["id"] for each in api.get(f"/executions?{query}").json()["executions"]]

    assert ids("status=SUCCEEDED") == ["paid"]
    assert ids("workflow=order") == ["open"]
    assert ids("parent=parent&order=oldest") == ["child-0", "child-1"]
    assert ids("workflow=order&status=SUCCEEDED") == []
    assert sorted(ids("tag=shop:a")) == ["open", "paid"]
    assert ids("tag=shop:a&tag=vip:yes") == ["open"]
    assert len(ids("")) == 5
    assert len(ids("limit=2")) == 2


def test_list__more_than_a_page__cursors_lead_through_all_of_it(api: Api) -> None:
    for number in range(5):
        api.env.clock.advance(1)
        api.started("pay", number, id=f"p{number}")

    seen, query = [], "workflow=pay&limit=2"
    while True:
        page = api.get(f"/executions?{query}").json()
        seen += [each["id"] for each in page["executions"]]
        if page["cursor"] is None:
            break
        query = f"workflow=pay&limit=2&cursor={page['cursor']}"

    assert seen == ["p4", "p3", "p2", "p1", "p0"]
    assert api.get("/executions?workflow=pay&order=oldest").json()["executions"][0]["id"] == "p0"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "bad_payload"),
        ("limit=1001", "bad_payload"),
        ("limit=x", "bad_payload"),
        ("status=DONE", "bad_payload"),
        ("stats=RUNNING", "bad_payload"),
        ("status=RUNNING&status=STUCK", "bad_payload"),
        ("tag=a", "user"),
        ("status=RUNNING&cursor=zzz", "bad_cursor"),
        ("cursor=zzz", "bad_cursor"),
        ("tag=%ff", "bad_payload"),
    ],
)
def test_list__bad_query__is_400(api: Api, query: str, code: str) -> None:
    problem(api.get(f"/executions?{query}"), 400, code)


# Describing


def test_show__unchanged__is_304_for_its_etag(api: Api) -> None:
    api.started("order", "book", id="o")
    tag = api.get("/executions/o").headers["etag"]

    assert api.get("/executions/o", headers={"If-None-Match": tag}).status_code == 304
    api.post("/executions/o/signals", {"name": "add"})
    api.env.run()
    assert api.get("/executions/o", headers={"If-None-Match": tag}).headers["etag"] != tag


def test_failures__activity_failed_twice__tracebacks_of_both_attempts_newest_first(api: Api) -> None:
    api.started("pay", -1, id="p")
    api.env.advance("11s")

    last, first = api.get("/executions/p/failures").json()["failures"]

    assert (last["activity"], last["attempt"], first["attempt"], last["final"]) == ("charge", 2, 1, False)
    assert last["error"]["message"] == "cannot charge -1"
    assert "in charge\n" in last["error"]["trace"]
    assert first["at"] < last["at"]
    assert api.get("/executions/p/failures?limit=1").json()["failures"] == [last]
    assert api.get("/executions/none/failures").status_code == 404


def test_show__activity_failed__reports_attempt_error_and_next_try(api: Api) -> None:
    api.started("pay", -1, id="p")

    (wait,) = api.get("/executions/p").json()["waits_for"]

    assert (wait["kind"], wait["name"], wait["state"], wait["attempt"]) == ("activity", "charge", "queued", 1)
    assert wait["attempts_max"] == 3
    assert wait["last_error"] == "ValueError: cannot charge -1"
    assert wait["next_try_at"] == "2025-06-15T15:06:50.000Z"
    assert "no_worker" not in wait
    api.env.advance("5m")
    shown = api.get("/executions/p").json()
    assert (shown["status"], shown["error"]["type"]) == ("FAILED", "ValueError")
    assert shown.get("waits_for") is None


def test_show__timers_children_and_external__are_reported(api: Api) -> None:
    api.started("nap", 60.0, id="n")
    api.started("family", 1, id="f")
    api.started("bank", 1, id="b")
    api.started("order", "x", id="o")

    assert api.get("/executions/n").json()["waits_for"] == [{"kind": "timer", "due_at": "2025-06-15T15:07:40.000Z"}]
    assert api.get("/executions/f").json()["waits_for"] == [
        {"kind": "child", "execution_id": "child-0", "workflow": "nap", "status": "RUNNING"}
    ]
    (external,) = api.get("/executions/b").json()["waits_for"]
    assert (external["kind"], external["state"], external["attempt"]) == ("activity", "external", 1)
    assert api.get("/executions/o").json()["waits_for"] == [{"kind": "signal", "name": "add"}]


def test_show__no_worker_is_alive__says_so(api: Api) -> None:
    api.started("nap", 3600.0, id="n")
    # Without the worker noticing: as if it had been killed.
    api.env.clock.advance(60)

    waits = api.get("/executions/n").json()["waits_for"]

    assert [each["kind"] for each in waits] == ["worker", "timer"]
    assert waits[0]["fact"].startswith("no live worker serves workflow nap")


def test_show__stuck__reports_why_and_a_redrive_heals_it(api: Api) -> None:
    api.shop.is_broken = True
    api.started("fragile", id="f")
    (wait,) = api.get("/executions/f").json()["waits_for"]
    assert (wait["kind"], wait["failures"]) == ("retry", 1)
    problem(api.post("/executions/f/redrive"), 409, "conflict")
    api.env.advance("1h")

    shown = api.get("/executions/f").json()
    assert (shown["status"], shown["failure"]["type"]) == ("STUCK", "WorkflowViolationError")
    assert shown["waits_for"][0]["kind"] == "redrive"
    assert "WorkflowViolationError" in api.get("/executions?status=STUCK").json()["executions"][0]["error"]
    api.shop.is_broken = False
    assert api.post("/executions/f/redrive").status_code == 202
    api.env.advance("5s")
    assert api.get("/executions/f/result").json() == {"id": "f", "status": "SUCCEEDED", "result": "whole"}


def test_result__stuck__is_answered_at_once_with_why(api: Api) -> None:
    api.shop.is_broken = True
    api.started("fragile", id="f")
    api.env.advance("1h")

    answer = api.get("/executions/f/result?wait=50s")

    assert (answer.status_code, answer.json()["status"]) == (202, "STUCK")
    assert answer.json()["failure"]["type"] == "WorkflowViolationError"
    api.post("/executions/f/terminate")
    api.env.advance("5s")
    ended = api.get("/executions/f/result").json()
    assert (ended["status"], "failure" in ended) == ("TERMINATED", False)


def test_history__pages__have_every_turn_once(api: Api) -> None:
    api.started("order", "book", id="o")
    for number in range(4):
        api.post("/executions/o/signals", {"name": "add", "payload": number})
        api.env.run()

    first = api.get("/executions/o/history?limit=2").json()
    rest = api.get(f"/executions/o/history?after={first['next_after']}").json()

    assert [turn["turn"] for turn in first["turns"]] == [1, 2]
    assert [turn["turn"] for turn in rest["turns"]] == [3, 4, 5]
    assert rest["next_after"] is None
    assert rest["turns"][0]["events"] == [{"kind": "signal", "name": "add", "payload": 1}]


def test_logs__after_it_ran__are_in_order(api: Api) -> None:
    api.started("pay", 1, id="p")

    assert api.get("/executions/p/logs").json() == {
        "lines": [{"at": "2025-06-15T15:06:40.000Z", "level": "INFO", "source": "workflow", "text": "paying"}],
        "cursor": None,
    }


# Telling


def test_signal__same_id_again__is_received_once(api: Api) -> None:
    api.started("order", "book", id="o")

    for identifier, value in (("s1", 1), ("s1", 1), ("s2", 2)):
        assert api.post("/executions/o/signals", {"name": "add", "payload": value, "id": identifier}).status_code == 202
    api.post("/executions/o/signals", {"name": "add", "payload": 3}, headers={"Idempotency-Key": "s3"})
    api.post("/executions/o/signals", {"name": "add", "payload": 3}, headers={"Idempotency-Key": "s3"})
    api.env.run()

    assert api.post("/executions/o/queries", {"name": "seen"}).json() == {"result": [1, 2, 3]}


def test_signal__payload_is_not_text__is_400_and_not_sent(api: Api) -> None:
    api.started("order", "book", id="o")

    problem(api.ask("POST", "/executions/o/signals", content=b'{"name":"add","payload":"\xff"}'), 400, "bad_payload")
    problem(api.post("/executions/o/signals", {"name": "", "payload": 1}), 400, "bad_payload")
    api.env.run()

    assert api.post("/executions/o/queries", {"name": "seen"}).json() == {"result": []}


def test_signal__ended__is_409(api: Api) -> None:
    api.started("pay", 1, id="p")

    problem(api.post("/executions/p/signals", {"name": "add"}), 409, "execution_closed")


def test_query__fails_or_is_not_there__says_so(api: Api) -> None:
    api.started("order", "book", id="o")

    broken = problem(api.post("/executions/o/queries", {"name": "broken"}), 422, "query_failed")

    assert broken["errors"][0]["type"] == "ZeroDivisionError"
    assert "['broken', 'seen']" in problem(api.post("/executions/o/queries", {"name": "x"}), 404, "not_found")["detail"]


def test_cancel_and_terminate__end_it(api: Api) -> None:
    api.started("nap", 3600.0, id="a")
    api.started("nap", 3600.0, id="b")

    assert api.post("/executions/a/cancel", {"reason": "enough"}).status_code == 202
    assert api.post("/executions/b/terminate").status_code == 202
    api.env.run()

    assert api.get("/executions/a/result").json()["status"] == "CANCELLED"
    assert api.get("/executions/b/result").json()["status"] == "TERMINATED"
    problem(api.post("/executions/a/cancel"), 409, "execution_closed")


def test_cancel__repeated_with_its_idempotency_key__is_sent_once(api: Api) -> None:
    api.started("nap", 3600.0, id="a")
    key = {"idempotency-key": "c-1"}

    first, second = [api.post("/executions/a/cancel", {"reason": "enough"}, headers=key) for _ in range(2)]
    api.env.run()

    assert (first.status_code, second.status_code, second.headers["idempotency-replayed"]) == (202, 202, "true")
    assert api.post("/executions/a/cancel", {"reason": "enough"}, headers=key).status_code == 202
    events = [event for turn in api.get("/executions/a/history").json()["turns"] for event in turn["events"]]
    assert sum(event["kind"] == "cancel_requested" for event in events) == 1


def test_retry__ended__runs_again_with_the_same_input(api: Api) -> None:
    api.started("nap", 60.0, id="n")
    problem(api.post("/executions/n/retry"), 409, "conflict")
    api.post("/executions/n/terminate")
    api.env.run()

    assert api.post("/executions/n/retry").status_code == 201
    api.env.advance("2m")

    shown = api.get("/executions/n").json()
    assert (shown["status"], shown["run"], shown["input"]) == ("SUCCEEDED", 2, 60.0)


# Updates


def drive(api: Api, request: Any) -> Any:
    """Send a request that waits, and let the worker run meanwhile until it is answered."""

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        asked = asyncio.create_task(request(client))
        while not asked.done():
            await asyncio.to_thread(api.env.run)
            await asyncio.sleep(0.01)
        answer: httpx.Response = await asked
        return answer

    return api.session(talk)


def test_update__answered_rejected_or_unknown__is_reported(api: Api) -> None:
    api.started("order", "book", id="o")

    def update(name: str, input: Any) -> httpx.Response:
        body = {"name": name, "input": input}
        answer: httpx.Response = drive(api, lambda client: client.post("/executions/o/updates", json=body))
        return answer

    assert update("limit", 3).json()["result"] == 3
    rejected = problem(update("limit", -1), 422, "update_rejected")
    assert rejected["errors"][0]["message"] == "most: from 0"
    assert "limit" in problem(update("nothing", 1), 422, "update_rejected")["detail"]


def test_update__not_answered_in_time__is_202_and_its_answer_can_be_fetched(api: Api) -> None:
    api.started("order", "book", id="o/1")

    asked = api.post("/executions/o%2F1/updates", {"name": "limit", "input": 3, "wait": 0})

    assert (asked.status_code, asked.json()["pending"]) == (202, True)
    where = asked.headers["location"].removeprefix("/api/v1")
    assert api.get(where).status_code == 202
    api.env.run()
    assert api.get(where).json() == {"id": asked.json()["id"], "result": 3}


def test_update__sent_again_under_its_id__is_handled_once(api: Api) -> None:
    api.started("order", "book", id="o")
    body = {"name": "limit", "input": 3, "wait": 0, "id": "u-1"}

    asked = [api.post("/executions/o/updates", body) for _ in range(2)]
    api.env.run()

    assert [each.json()["id"] for each in asked] == ["u-1", "u-1"]
    assert api.post("/executions/o/updates", body).json() == {"id": "u-1", "result": 3}
    updates = [
        event
        for turn in api.get("/executions/o/history").json()["turns"]
        for event in turn["events"]
        if event["kind"] == "update_requested"
    ]
    assert len(updates) == 1
    # A signal of the same id is another message.
    assert api.post("/executions/o/signals", {"name": "x", "id": "u-1"}).status_code == 202
    problem(api.post("/executions/o/updates", {**body, "id": "not an id"}), 400, "bad_id")


def test_update__execution_ends_without_an_answer__is_409(api: Api) -> None:
    api.started("order", "book", id="o")
    api.post("/executions/o/terminate")

    asked = api.post("/executions/o/updates", {"name": "limit", "input": 3, "wait": 0})
    api.env.run()

    assert asked.status_code == 202
    problem(api.get(asked.headers["location"].removeprefix("/api/v1")), 409, "execution_closed")


# Waiting


def test_result__waits__answers_as_soon_as_it_ends(api: Api) -> None:
    api.started("order", "book", id="o")

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        waiting = [asyncio.create_task(client.get("/executions/o/result?wait=30s")) for _ in range(50)]
        await asyncio.sleep(0.1)
        # Many more wait than the pool has threads, and it has time for others.
        assert (await client.get("/executions/o")).status_code == 200
        assert not any(each.done() for each in waiting)
        api.service.client.signal("o", "add", msg("stop"))
        await asyncio.to_thread(api.env.run)
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert len({each.text for each in answers}) == 1
        last: httpx.Response = answers[-1]
        return last

    answer = api.session(talk)

    assert answer.json() == {"id": "o", "status": "SUCCEEDED", "result": ["book", "stop"]}


def msg(value: Any) -> Any:
    return payload.encode(value, what="payload")


def test_result__time_is_up__is_202_with_its_status(api: Api) -> None:
    api.started("order", "book", id="o")

    answer = api.get("/executions/o/result?wait=50ms")

    assert (answer.status_code, answer.json()) == (202, {"id": "o", "status": "RUNNING"})
    assert answer.headers["retry-after"] == "1"
    problem(api.get("/executions/o/result?wait=2h"), 400, "user")
    problem(api.get("/executions/o/result?wait=x"), 400, "user")


def test_result__server_drains__answers_at_once(api: Api) -> None:
    api.started("order", "book", id="o")

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        waiting = [
            asyncio.create_task(client.get("/executions/o/result?wait=60s")),
            asyncio.create_task(client.get("/executions/o/watch")),
            asyncio.create_task(client.get("/events/tail")),
        ]
        await asyncio.sleep(0.1)
        api.health.phase = Phase.DRAINING
        return list(await asyncio.wait_for(asyncio.gather(*waiting), 10))

    assert [each.status_code for each in api.session(talk)] == [202, 200, 200]


def test_result__too_many_wait__is_503(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_hub, "WATCHES_MAX", 0)
    api.started("order", "book", id="o")

    problem(api.get("/executions/o/result?wait=1s"), 503, "server_busy")


def sent(response: httpx.Response) -> list[tuple[str, Any]]:
    """Return the events of a stream, with their data."""
    found = []
    for block in response.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_watch__changes__are_reported_until_the_end(api: Api) -> None:
    api.started("order", "book", id="o")

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        watch_hub = asyncio.create_task(client.get("/executions/o/watch"))
        for value in (1, 2, "stop"):
            await asyncio.sleep(0.1)
            api.service.client.signal("o", "add", msg(value))
            await asyncio.to_thread(api.env.run)
        answer: httpx.Response = await asyncio.wait_for(watch_hub, 10)
        return answer

    answer = api.session(talk)

    assert answer.headers["content-type"].startswith("text/event-stream")
    events = sent(answer)
    assert [(name, data.get("turn"), data["status"]) for name, data in events] == [
        ("state", 1, "RUNNING"),
        ("state", 2, "RUNNING"),
        ("state", 3, "RUNNING"),
        ("state", 4, "SUCCEEDED"),
        ("end", None, "SUCCEEDED"),
    ]
    assert events[-1][1]["result"] == ["book", 1, 2, "stop"]


def test_watch__nothing_happens__says_it_is_alive_and_ends(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_waits, "ALIVE_SECONDS", 0.05)
    api.started("order", "book", id="o")

    answer = api.get("/executions/o/watch?for=300ms")

    assert ": alive\n\n" in answer.text
    assert [name for name, _ in sent(answer)] == ["state"]
    problem(api.get("/executions/o/watch?for=7h"), 400, "user")


# Many at once


def test_bulk__dry_run_then_done__counts_and_ends_those_that_match(api: Api) -> None:
    for number in range(3):
        api.started("nap", 3600.0, id=f"n{number}", tags={"batch": "a" if number else "b"})
    api.started("order", "book", id="o")
    body = {"action": "terminate", "where": {"workflow": "nap", "tag": {"batch": "a"}}, "reason": "enough"}

    counted = api.post("/executions/bulk", {**body, "dry_run": True}).json()
    done = api.post("/executions/bulk", body).json()
    api.env.run()

    assert (counted["matched"], counted["done"], counted["dry_run"]) == (2, 0, True)
    assert (done["matched"], done["done"], sorted(done["ids"])) == (2, 2, ["n1", "n2"])
    assert {each["id"] for each in api.get("/executions?status=RUNNING").json()["executions"]} == {"n0", "o"}


def test_bulk__in_pages__cursors_lead_through_all_statuses(api: Api) -> None:
    for number in range(3):
        api.started("nap", 3600.0, id=f"t{number}")
        api.post(f"/executions/t{number}/{'cancel' if number else 'terminate'}")
    api.env.run()

    ids, cursor = [], None
    for _ in range(10):
        body = {"action": "retry", "where": {"workflow": "nap"}, "limit": 2, "cursor": cursor}
        page = api.post("/executions/bulk", body).json()
        ids += page["ids"]
        cursor = page["cursor"]
        if cursor is None:
            break

    assert sorted(ids) == ["t0", "t1", "t2"]
    api.env.run()
    assert len(api.get("/executions?status=RUNNING").json()["executions"]) == 3


def test_bulk__signal_sent_again_with_its_request_id__is_received_once(api: Api) -> None:
    api.started("order", "book", id="o")
    body = {"action": "signal", "where": {"workflow": "order"}, "name": "x", "payload": 1, "request_id": "once"}

    done = [api.post("/executions/bulk", body).json()["done"] for _ in range(2)]
    api.env.run()

    assert done == [1, 1]
    turns = api.get("/executions/o/history").json()["turns"]
    assert [e["kind"] for turn in turns for e in turn["events"]].count("signal") == 1


def test_bulk__reset_sent_again_with_its_request_id__is_one_reset(api: Api) -> None:
    api.started("nap", 60.0, id="n")
    body = {"action": "reset", "where": {"status": "RUNNING"}, "to": 1, "request_id": "once", "reason": "again"}

    done = [api.post("/executions/bulk", body).json()["done"] for _ in range(2)]

    assert done == [1, 1]
    assert api.get("/executions/n").json()["run"] == 2


def test_reset__with_an_idempotency_key__answers_the_same_again(api: Api) -> None:
    api.started("nap", 60.0, id="n")
    headers = {"idempotency-key": "k1"}

    first = api.ask("POST", "/executions/n/reset", json={"to": 1, "reason": "again"}, headers=headers)
    second = api.ask("POST", "/executions/n/reset", json={"to": 1, "reason": "again"}, headers=headers)

    assert first.status_code == second.status_code == 202
    assert first.json() == {"id": "n", "workflow": "nap", "run": 2, "to": 1, "created": True}
    assert second.json() == {**first.json(), "created": False}
    api.env.run()
    problem(api.post("/executions/n/reset", {"to": 99}), 404, "not_found")
    problem(api.post("/executions/n/reset", {"to": "\u00b2"}), 404, "not_found")
    problem(api.post("/executions/n/reset", {"to": "9" * 5000}), 404, "not_found")
    problem(api.post("/executions/n/reset", {"to": 1, "signals": "some"}), 400, "bad_payload")
    problem(api.post("/executions/n/retry-from-failure"), 409, "conflict")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"action": "reset", "where": {"status": "FAILED"}}, "user"),
        ({"action": "reset", "where": {"workflow": "nap"}, "to": 1}, "user"),
        ({"action": "signal", "where": {"workflow": "nap"}}, "user"),
        ({"action": "cancel", "where": {"workflow": "nap"}, "to": 1}, "user"),
        ({"action": "cancel", "where": {"workflow": "nap"}, "signals": "keep"}, "user"),
        ({"action": "retry", "where": {"workflow": "nap"}, "name": "go"}, "user"),
        ({"action": "retry", "where": {"workflow": "nap"}, "payload": None}, "user"),
        ({"action": "delete", "where": {}}, "bad_payload"),
        ({"action": "cancel"}, "bad_payload"),
        ({"action": "cancel", "where": {"status": "FAILED"}}, "user"),
        ({"action": "cancel", "where": {"workflow": "nap"}, "cursor": "zzz"}, "bad_cursor"),
        ({"action": "redrive", "where": {"status": "STUCK"}, "cursor": "STUCK|zzz"}, "bad_cursor"),
    ],
)
def test_bulk__cannot_be__is_400(api: Api, body: dict[str, Any], code: str) -> None:
    problem(api.post("/executions/bulk", body), 400, code)


def test_bulk__without_a_filter__is_refused_and_nothing_is_cancelled(api: Api) -> None:
    api.started("nap", 60.0, id="n")

    refused = problem(api.post("/executions/bulk", {"action": "cancel", "where": {}}), 400, "user")

    assert refused["detail"].startswith("where: it is empty; give at least one of status, workflow, tag")
    assert api.get("/executions/n").json()["status"] == "RUNNING"


def test_bulk__status_the_action_does_not_apply_to__names_all_that_it_does(api: Api) -> None:
    body = {"action": "retry-from-failure", "where": {"status": "SUCCEEDED"}}

    refused = problem(api.post("/executions/bulk", body), 400, "user")

    assert refused["detail"].endswith("it applies to FAILED, TIMED_OUT, STUCK, CANCELLED, TERMINATED")


# Search


def _pages(api: Api, query: str) -> list[str]:
    """Return the ids of all pages of a list, two at a time."""
    found: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"/executions?limit=2&{query}{cursor}").json()
        found += [each["id"] for each in page["executions"]]
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={quote(page['cursor'])}"


@pytest.mark.parametrize("scope", ["", "workflow=order&", "status=RUNNING&"])
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_search__by_start_time_and_text__has_pages_in_every_list(api: Api, scope: str, order: str) -> None:
    moments = []
    for number in range(6):
        moments.append(quote(api.env.now.isoformat()))
        api.started("order", "book", id=f"o{number}", tags={"region": "North" if number % 2 else "south"})
        api.env.clock.advance(60)
    ids = [f"o{number}" for number in range(6)]

    def listed(query: str) -> list[str]:
        found = _pages(api, f"{scope}order={order}&{query}")
        return found if order == "oldest" else found[::-1]

    assert listed("") == ids
    assert listed(f"since={moments[2]}") == ids[2:]
    assert listed(f"until={moments[2]}") == ids[:2]
    assert listed(f"since={moments[1]}&until={moments[5]}") == ids[1:5]
    assert listed(f"since={moments[3]}&until={moments[2]}") == []
    assert listed("text=NORTH") == ids[1::2]
    assert listed(f"text=region:south&since={moments[1]}") == ["o2", "o4"]
    assert listed("text=o3") == ["o3"]
    problem(api.get("/executions?since=yesterday"), 400, "bad_payload")


# The document


def test_openapi__asked__describes_every_operation_with_schemas_that_are_there(api: Api) -> None:
    document = api.get("http://127.0.0.1:8400/api/openapi.json")
    paths = document.json()["paths"]
    schemas = document.json()["components"]["schemas"]

    start = paths["/api/v1/executions"]["post"]
    assert start["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/StartExecution"
    }
    assert {each["name"] for each in paths["/api/v1/executions"]["get"]["parameters"]} >= {"status", "tag", "cursor"}
    assert "application/cloudevents-batch+json" in paths["/api/v1/events"]["post"]["requestBody"]["content"]
    assert all("{-" not in path for path in paths)
    referred = {part.split('"')[0] for part in document.text.split("#/components/schemas/")[1:]}
    assert referred <= schemas.keys()
    identifiers = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(set(identifiers)) == len(identifiers)


def test_workflows__asked__reports_which_are_here_and_how_many_serve_them(api: Api) -> None:
    found = {each["name"]: each for each in api.get("/workflows").json()["workflows"]}

    assert found["pay"] == {"name": "pay", "loaded": True, "live_workers": 1, "description": "Charge once."}
    assert found["order"]["timeout_seconds"] == 86_400


def test_patches__an_open_execution_has_marked_one__is_counted(api: Api) -> None:
    async def patched_order() -> None:
        hg.patched("two-step")
        await hg.wait_signal("go")

    definition = api.env.service.app.workflow(name="patched-order", check=False)(patched_order)
    handle = api.env.start(definition)
    api.env.run()
    assert api.get("/workflows/patches").json()["patches"] == [
        {
            "workflow": "patched-order",
            "patch": "two-step",
            "with_mark": 1,
            "with_deprecated_mark": 0,
            "without_mark": 0,
            "oldest_with_mark": handle.id,
        }
    ]


def test_workers__one_alive_and_one_not__reports_which(api: Api) -> None:
    (alive,) = api.get("/workers").json()["workers"]
    api.env.clock.advance(60)
    (dead,) = api.get("/workers").json()["workers"]

    assert (alive["alive"], alive["app"], alive["queues"]) == (True, "shop", ["default", "headgate.alerts"])
    assert (dead["id"], dead["alive"]) == (alive["id"], False)


def test_list__of_all_statuses__pages_in_order_and_leaves_machines_out_on_request(api: Api) -> None:
    ids = [f"o{number}" for number in range(5)]
    for each in ids:
        api.started("order", "book", id=each)
    machine = '{"StartAt": "A", "States": {"A": {"Type": "Wait", "Seconds": 60, "End": true}}}'
    api.env.service.asl.machines.put("m", machine, created_by="ana")
    api.env.service.asl.executions.start("m", {}, name="m0")

    def listed(**params: object) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = api.get("/executions", params={**params, **({"cursor": cursor} if cursor else {})}).json()
            found += [each["id"] for each in page["executions"]]
            cursor = page.get("cursor")
            if cursor is None:
                return found

    # All start at the same virtual time: the id decides.
    assert listed(limit=2, order="oldest") == ["m:m0", *ids]
    assert listed(limit=2) == [*reversed(ids), "m:m0"]
    assert listed(limit=1, machines="false") == list(reversed(ids))
    assert listed(limit=2, machines="false", order="oldest") == ids
    assert listed(status="RUNNING", machines="false", limit=2) == listed(machines="false")
