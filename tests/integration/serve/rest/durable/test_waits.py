"""What an execution waits for, as the API and the program say it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from tests.integration.serve.durable_api import Api, serving


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as opened:
        yield opened


def serve_only(api: Api, *queues: str) -> None:
    """Have the one worker that is alive take activities of these queues alone."""
    worker = api.env.worker
    worker.leave()
    worker.queues = queues
    worker.join()


def waits(api: Api, execution_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/executions/{execution_id}").json().get("waits_for", [])
    return found


def test_activity__no_worker_serves_its_queue__says_so_until_one_does(api: Api) -> None:
    serve_only(api, "elsewhere")
    api.started("pay", 5, id="p")

    (wait,) = waits(api, "p")
    assert (wait["kind"], wait["name"], wait["state"], wait["queue"]) == ("activity", "charge", "queued", "default")
    assert wait["no_worker"] is True

    serve_only(api, "default")
    (wait,) = waits(api, "p")
    assert "no_worker" not in wait
    api.env.run()
    assert waits(api, "p") == []
    assert api.get("/executions/p").json()["status"] == hg.Status.SUCCEEDED


def test_activity__no_worker_has_its_code__says_so(api: Api) -> None:
    serve_only(api, "elsewhere")
    api.started("pay", 5, id="p")
    del api.shop.app.activities["charge"]
    serve_only(api, "default")
    api.env.run()

    (wait,) = waits(api, "p")
    assert (wait["state"], wait["no_worker"]) == ("queued", True)


def test_activity__waits_for_its_next_attempt_and_its_worker_is_gone__says_both(api: Api) -> None:
    api.started("pay", -5, id="p")
    api.env.worker.leave()

    worker, activity = waits(api, "p")
    assert worker["kind"] == "worker"
    assert (activity["no_worker"], activity["attempt"]) == (True, 1)
    assert activity["last_error"] == "ValueError: cannot charge -5"
    api.env.worker.join()


def test_activity__that_is_with_someone_outside__needs_no_worker(api: Api) -> None:
    api.started("bank", 5, id="b")
    serve_only(api, "elsewhere")

    (wait,) = waits(api, "b")
    assert wait["state"] == "external"
    assert "no_worker" not in wait


def declare_waiting(api: Api) -> None:
    """Add workflows that wait for signals in the ways there are."""
    app = api.shop.app

    @app.workflow
    async def approval(days: int) -> str:
        try:
            return str(await hg.wait_signal("approved", timeout=f"{days}d"))
        except TimeoutError:
            await hg.wait_signal("mercy")
            return "late"

    @app.workflow
    async def basket(wanted: int) -> list[str]:
        items: list[str] = []
        hg.on_signal("item", items.append)
        done = hg.on_signal("done", items.clear)
        done.dispose()
        await hg.wait_condition(lambda: len(items) >= wanted)
        await hg.sleep("1h")
        return items

    @app.workflow
    async def both() -> list[object]:
        return list(await asyncio.gather(hg.wait_signal("left"), hg.wait_signal("right")))

    api.env.worker.leave()
    api.env.worker.join()


def test_signal__awaited_with_a_limit__is_named_beside_the_moment(api: Api) -> None:
    declare_waiting(api)
    api.started("approval", 3, id="a")

    assert waits(api, "a") == [
        {"kind": "signal", "name": "approved"},
        {"kind": "timer", "due_at": "2025-06-18T15:06:40.000Z"},
    ]
    api.env.advance("4d")
    assert waits(api, "a") == [{"kind": "signal", "name": "mercy"}]
    api.post("/executions/a/signals", {"name": "mercy"})
    api.env.run()
    assert waits(api, "a") == []


def test_signal__several_awaited_and_one_came__the_other_is_named(api: Api) -> None:
    declare_waiting(api)
    api.started("both", id="b")
    assert waits(api, "b") == [{"kind": "signal", "name": "left"}, {"kind": "signal", "name": "right"}]

    api.post("/executions/b/signals", {"name": "left", "payload": 1})
    api.env.run()

    assert waits(api, "b") == [{"kind": "signal", "name": "right"}]


def test_signal__that_a_condition_waits_for__is_named_as_long_as_it_does(api: Api) -> None:
    declare_waiting(api)
    api.started("basket", 1, id="b")
    assert waits(api, "b") == [{"kind": "signal", "name": "item"}]

    api.post("/executions/b/signals", {"name": "item", "payload": "pear"})
    api.env.run()

    assert [wait["kind"] for wait in waits(api, "b")] == ["timer"]
