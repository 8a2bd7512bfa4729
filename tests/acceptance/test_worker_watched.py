"""A server whose app spins, talks much and answers slowly: what its operators see and say, with the program itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.acceptance.program import Server, run, until

LINES: Final = 2_500
APP: Final = f"""
import headgate as hg

app = hg.App("shop")


@app.workflow
async def spin() -> None:
    while True:
        pass


@app.workflow
async def talk() -> str:
    for number in range({LINES}):
        hg.log(f"line {{number}}")
    return "said"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "shop.py").write_text(APP)
    with Server(folder, "--app", "shop:app", HEADGATE_WORKER_TURN_SECONDS="1") as made:
        yield made


def said(server: Server, *arguments: str) -> str:
    folder = server.home.parent
    ended = run(*arguments, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def worker_check(server: Server, path: str) -> dict[str, Any]:
    report = httpx.get(f"{server.url}{path}").json()
    (found,) = [check for check in report["checks"] if check["name"] == "worker"]
    return dict(found)


@pytest.mark.parametrize("path", ["/health", "/health/deep"])
def test_health__of_a_server_that_works__has_a_check_of_its_worker(server: Server, path: str) -> None:
    check = worker_check(server, path)

    assert check["fact"].startswith("last poll ")
    assert "activities queued" in check["fact"]
    assert check["status"] == "ok"


def test_logs__longer_than_a_page__are_shown_whole(server: Server) -> None:
    said(server, "execution", "start", "talk", "--id", "t")
    said(server, "execution", "result", "t", "--wait", "20s")

    lines = json.loads(said(server, "execution", "logs", "t", "--json"))

    assert [line["text"] for line in lines] == [f"line {number}" for number in range(LINES)]
    assert len(httpx.get(f"{server.url}/api/v1/executions/t/logs").json()["lines"]) == 200


def test_spinning__longer_than_the_setting_allows__is_interrupted_and_others_go_on(server: Server) -> None:
    said(server, "execution", "start", "spin", "--id", "s")
    until(lambda: "interrupted after 1." in said(server, "execution", "show", "s"), "the setback")

    said(server, "execution", "start", "talk", "--id", "t2")
    assert said(server, "execution", "result", "t2", "--wait", "20s") == '"said"\n'
    assert "turn interrupted" in server.stderr
    said(server, "execution", "terminate", "s")
