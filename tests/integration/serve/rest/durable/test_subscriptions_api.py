"""Subscriptions over HTTP: listed, retired, and sent past events again for as long as requested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.serve.durable_api import Api, problem, serving

REPLAY = {"since": "2025-06-15T00:00:00Z", "until": "2025-06-16T00:00:00Z", "id": "r1"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as made:
        yield made


def test_retire__a_subscription__is_reported_nothing_more_and_says_so(api: Api) -> None:
    answer = api.post("/subscriptions/hear/retire")
    api.post("/events", {"type": "order.created", "data": 1})
    api.env.run()

    assert answer.status_code == 200
    assert answer.json()["retired_at"]
    assert api.shop.received == []
    (listed,) = api.get("/subscriptions").json()["subscriptions"]
    assert listed == answer.json() == api.post("/subscriptions/hear/retire").json()
    problem(api.post("/subscriptions/nobody/retire"), 404, "not_found")
    problem(api.get("/subscriptions/hear/retire"), 405, "method_not_allowed")


def test_replays__stopped__drop_what_waits_and_stay_stopped(api: Api) -> None:
    for number in range(3):
        api.post("/events", {"type": "order.created", "data": number})
    api.env.run()
    assert api.post("/subscriptions/hear/replay", REPLAY).json() == {"count": 3}

    stopped = api.post("/subscriptions/hear/replays/r1/stop")
    api.env.run()

    (listed,) = api.get("/subscriptions/hear/replays").json()["replays"]
    assert listed == {
        "id": "r1",
        "status": "STOPPED",
        "count": 3,
        "since": "2025-06-15T00:00:00.000Z",
        "until": "2025-06-16T00:00:00.000Z",
    }
    assert stopped.json() == {"replay": listed, "dropped": 3}
    assert api.shop.received == [0, 1, 2]
    assert "stopped" in problem(api.post("/subscriptions/hear/replay", REPLAY), 409, "conflict")["detail"]
    assert api.post("/subscriptions/hear/replays/r1/stop").json()["dropped"] == 0


def test_replays__many_deliveries_wait__are_dropped_step_by_step(api: Api) -> None:
    for number in range(5):
        api.post("/events", {"type": "order.created", "data": number})
    api.env.run()
    api.post("/subscriptions/hear/replay", REPLAY)
    dropped, body = 0, {"limit": 2}
    for _ in range(10):
        answer = api.post("/subscriptions/hear/replays/r1/stop", body).json()
        dropped += answer["dropped"]
        if "cursor" not in answer:
            break
        body = {"limit": 2, "cursor": answer["cursor"]}

    assert dropped == 5


def test_replays__unknown__are_404(api: Api) -> None:
    problem(api.get("/subscriptions/nobody/replays"), 404, "not_found")
    problem(api.post("/subscriptions/nobody/replays/r1/stop"), 404, "not_found")
    problem(api.post("/subscriptions/hear/replays/r1/stop"), 404, "not_found")
    problem(api.post("/subscriptions/hear/replays/r1/stop", {"limit": 0}), 400, "bad_payload")
    assert api.get("/subscriptions/hear/replays").json() == {"replays": []}
