"""Activities that someone else completes, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.durable.model.failures import DATA_BYTES_MAX, MESSAGE_BYTES_MAX
from headgate.durable.model.history import ActivityEnded
from tests.integration.serve.durable_api import Api, problem, serving


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as made:
        yield made


@pytest.fixture
def token(api: Api) -> str:
    api.started("bank", 5, id="b")
    return api.shop.tokens[0]


def test_complete__once__the_execution_has_the_result(api: Api, token: str) -> None:
    answer = api.post("/activities/complete", {"token": token, "result": "paid"})
    api.env.run()

    assert (answer.status_code, answer.content) == (204, b"")
    assert api.get("/executions/b/result").json()["result"] == "paid"
    problem(api.post("/activities/complete", {"token": token, "result": "twice"}), 404, "not_found")


def test_complete__repeated_with_its_idempotency_key__has_the_first_answer(api: Api, token: str) -> None:
    done = [
        api.post("/activities/complete", {"token": token, "result": 1}, headers={"idempotency-key": "d"})
        for _ in range(2)
    ]

    assert [each.status_code for each in done] == [204, 204]


def test_complete__task_token_instead_of_token__is_accepted(api: Api, token: str) -> None:
    assert api.post("/activities/heartbeat", {"taskToken": token}).json() == {"cancelled": False}
    assert api.post("/activities/complete", {"taskToken": token, "result": "paid"}).status_code == 204
    api.env.run()

    assert api.get("/executions/b/result").json()["result"] == "paid"
    missing = problem(api.post("/activities/complete", {"result": 1}), 400, "bad_payload")
    assert "token: the field is missing" in missing["detail"]


def test_fail__retryable__is_tried_again_and_the_old_token_is_stale(api: Api, token: str) -> None:
    error = {"type": "BankClosed", "message": "come back", "data": {"until": "9:00"}}

    assert api.post("/activities/fail", {"token": token, "error": error}).status_code == 204
    problem(api.post("/activities/complete", {"token": token}), 409, "stale_claim")
    api.env.advance("5s")
    assert len(api.shop.tokens) == 2
    api.post("/activities/fail", {"token": api.shop.tokens[1], "error": error})
    api.env.run()

    result = api.get("/executions/b/result").json()["result"]
    assert result == "BankClosed: come back {'until': '9:00'}"


def test_fail__not_retryable__is_the_end(api: Api, token: str) -> None:
    error = {"type": "Refused", "retryable": False, "data": [1]}

    api.post("/activities/fail", {"token": token, "error": error})
    api.env.run()

    assert api.get("/executions/b/result").json()["result"] == "Refused:  [1]"
    assert len(api.shop.tokens) == 1


def test_fail__names_a_class__is_refused_and_none_is_ever_stored(api: Api, token: str) -> None:
    for member in ("module", "qualname", "bases", "args", "cause"):
        body: dict[str, Any] = {"token": token, "error": {"type": "KeyError", member: "builtins"}}
        assert member in problem(api.post("/activities/fail", body), 400, "bad_payload")["detail"]

    api.post("/activities/fail", {"token": token, "error": {"type": "KeyError", "retryable": False}})
    api.env.run()

    ends = [
        event
        for turn in api.service.client.history("b")
        for event in turn.events
        if isinstance(event, ActivityEnded) and event.error is not None
    ]
    (end,) = ends
    assert end.error is not None
    assert (end.error.module, end.error.qualname, end.error.bases) == ("", "", ())
    assert api.get("/executions/b/result").json()["result"] == "KeyError:  None"


@pytest.mark.parametrize(
    "error",
    [{"type": "E", "message": "x" * (MESSAGE_BYTES_MAX + 1)}, {"type": "E", "data": "x" * (DATA_BYTES_MAX + 1)}],
)
def test_fail__too_large__is_413(api: Api, token: str, error: dict[str, Any]) -> None:
    problem(api.post("/activities/fail", {"token": token, "error": error}), 413, "payload_too_large")


def test_heartbeat__alive_then_cancelled__is_reported(api: Api, token: str) -> None:
    alive = api.post("/activities/heartbeat", {"token": token, "details": {"done": 5}})
    without = api.post("/activities/heartbeat", {"token": token})
    (wait,) = api.get("/executions/b").json()["waits_for"]
    api.post("/executions/b/terminate")
    api.env.run()
    cancelled = api.post("/activities/heartbeat", {"token": token})

    assert (alive.json(), without.json()) == ({"cancelled": False}, {"cancelled": False})
    assert wait["heartbeat_at"]
    assert cancelled.json() == {"cancelled": True}


@pytest.mark.parametrize("verb", ["complete", "heartbeat"])
def test_token__altered_or_none__is_400(api: Api, token: str, verb: str) -> None:
    problem(api.post(f"/activities/{verb}", {"token": token[:-4] + "AAAA"}), 400, "bad_signature")
    problem(api.post(f"/activities/{verb}", {"token": "x"}), 400, "bad_signature")
    problem(api.post(f"/activities/{verb}", {}), 400, "bad_payload")
    assert api.get("/executions/b").json()["status"] == "RUNNING"
