"""Queries over HTTP: few at a time, each for a bounded time, and no other call waits for them. And logs by pages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headgate as hg
from headgate.serve.rest.durable import execution_waits
from tests.integration.serve.durable_api import Api, Shop, problem


class Asked(Shop):
    """A shop with code that answers slowly, or says much."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

        @self.app.workflow(check=False)
        async def slow() -> None:
            def blocks() -> str:
                self.release.wait(20)
                return "at last"

            def spins() -> None:
                while True:
                    pass

            hg.on_query("blocks", blocks)
            hg.on_query("spins", spins)
            await hg.wait_signal("never")

        @self.app.activity
        def mutter(count: int) -> None:
            for number in range(count):
                hg.activity().note("INFO", f"activity {number}")

        @self.app.workflow
        async def talkative(count: int) -> None:
            for number in range(count):
                hg.log(f"workflow {number}")
                await mutter(2)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(execution_waits, "QUERIES_MAX", 2)
    monkeypatch.setattr(execution_waits, "QUERY_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(execution_waits, "QUERY_SECONDS", 1.0)
    shop = Asked()
    with hg.testing.Environment(shop.app) as env:
        api = Api(env, shop, tmp_path)
        yield api
        shop.release.set()
        api.pool.close()


def test_query__that_spins__is_503_with_the_line_and_when_to_come_back(asked: Api) -> None:
    asked.started("slow", id="s")

    answer = asked.post("/executions/s/queries", {"name": "spins"})

    found = problem(answer, 503, "query_timeout")
    assert found["detail"].startswith("execution s: query spins has no answer after 1 s: ")
    assert "in spins" in found["detail"]
    assert int(answer.headers["retry-after"]) >= 1


def test_queries__more_slow_ones_than_are_let_in__are_busy_and_others_are_served(asked: Api) -> None:
    asked.started("slow", id="s")
    shop = asked.shop
    assert isinstance(shop, Asked)

    async def talk(client: httpx.AsyncClient) -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
        body = {"name": "blocks"}
        slow = [asyncio.create_task(client.post("/executions/s/queries", json=body)) for _ in range(2)]
        await asyncio.sleep(0.05)
        busy = await client.post("/executions/s/queries", json=body)
        other = await client.get("/executions/s")
        shop.release.set()
        return list(await asyncio.gather(*slow)), busy, other

    slow, busy, other = asked.session(talk)

    assert [answer.json() for answer in slow] == [{"result": "at last"}] * 2
    found = problem(busy, 503, "server_busy")
    assert "queries: 2 calls in progress" in found["detail"]
    assert int(busy.headers["retry-after"]) >= 1
    assert other.status_code == 200
    assert asked.post("/executions/s/queries", {"name": "blocks"}).json() == {"result": "at last"}


def test_logs__longer_than_a_page__are_given_page_by_page(asked: Api) -> None:
    asked.started("talkative", 5, id="t")

    lines: list[dict[str, Any]] = []
    sizes = []
    path = "/executions/t/logs?limit=4"
    while True:
        page = asked.get(path).json()
        lines += page["lines"]
        sizes.append(len(page["lines"]))
        if page["cursor"] is None:
            break
        path = f"/executions/t/logs?limit=4&cursor={page['cursor']}"

    step = ["activity 0", "activity 1"]
    expected = [text for number in range(5) for text in [f"workflow {number}", *step]]
    assert [line["text"] for line in lines] == expected
    assert {line["source"] for line in lines} == {"workflow", "mutter"}
    assert sizes == [4, 4, 4, 3]


@pytest.mark.parametrize(
    ("query", "code"),
    [("cursor=x", "bad_cursor"), ("limit=0", "bad_payload"), ("limit=1001", "bad_payload"), ("more=1", "bad_payload")],
)
def test_logs__bad_query__is_400(asked: Api, query: str, code: str) -> None:
    asked.started("talkative", 1, id="t")

    problem(asked.get(f"/executions/t/logs?{query}"), 400, code)
