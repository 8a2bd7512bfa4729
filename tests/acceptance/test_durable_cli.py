"""Executions as the installed program shows them: code that cannot be loaded, that is elsewhere, or that is stuck."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.acceptance.program import PROGRAM, STORE, Server, run, until

APP: Final = """
from pathlib import Path

import headgate as hg
from headgate.durable.engine import stuck as setbacks

# The pauses between attempts at a turn: a second in all, and not most of a minute.
setbacks._FIRST_SECONDS = 0.01
app = hg.App("shop")


@app.workflow
async def pay(amount: int) -> int:
    return amount


@app.workflow
async def order(item: str) -> str:
    hg.on_query("item", lambda: item)
    return f"{item} {await hg.wait_signal('go')}"


@app.workflow(check=False)
async def fragile() -> str:
    if not Path("shop.py").read_text():
        return "never"
    return "whole"
"""
MENDED: Final = APP.replace('    if not Path("shop.py").read_text():\n        return "never"\n', "")


class Place:
    """A folder in which the program is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, folder=self.folder)

    def said(self, *arguments: str) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))


class Worker:
    """A running `headgate worker`."""

    def __init__(self, folder: Path, *options: str, apps: Sequence[str] = ("shop:app",)) -> None:
        named = [option for app in apps for option in ("--app", app)]
        self.process = subprocess.Popen(
            [PROGRAM, "worker", *named, *options],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **STORE},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [("import nosuch_module\n", 1, "ModuleNotFoundError"), ("x = 1\n1 / 0\n", 2, "ZeroDivisionError")],
)
def test_app__that_raises__is_the_users_to_repair_and_not_a_bug_of_ours(
    tmp_path: Path, source: str, line: int, message: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    (tmp_path / "history.json").write_text("{}")
    commands = (["up"], ["worker"], ["execution", "replay", "--history", "history.json"])

    for command in commands:
        ended = run(*command, "--app", "broken:app", folder=tmp_path)

        assert ended.returncode == 2, ended.stderr
        assert f"{tmp_path / 'broken.py'}, line {line}: {message}: " in ended.stderr
        assert "code: bad_setting" in ended.stderr
        assert "a bug in Headgate" not in ended.stderr


def test_server__without_the_app_beside_a_worker_with_it__starts_and_begins_again(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    place = Place(tmp_path)
    with Server(tmp_path) as server:
        with Worker(tmp_path, "--threads", "7", "--async", "9", "--cached", "11"):
            assert (
                place.said("execution", "start", "pay", "--input", "5", "--id", "p", "--retry", '{"attempts": 2}')
                == "p\n"
            )
            assert "attempts 2, first 1.0" in place.said("execution", "show", "p")
            (worker,) = [each["id"] for each in place.json("workers") if each["app"] == "shop"]
            shown = place.json("workers", worker)["limits"]
            assert (shown["threads_max"], shown["async_max"], shown["isolated_max"]) == (7, 9, 64)
            until(lambda: "11, in use " in place.said("workers", worker), "a heartbeat with what is in use")
            assert place.run("workers", "wrk_none").returncode == 4
            assert place.said("execution", "result", "p", "--wait", "20s") == "5\n"
            place.said("execution", "retry", "p")
            place.said("execution", "result", "p", "--wait", "20s")
            signal = ["execution", "signal", "o", "go", "--payload", '"now"']
            started = place.said(*signal, "--start", "order", "--input", '"x"')
            assert started == "o: started with signal go\n"
            assert place.said("execution", "result", "o", "--wait", "20s") == '"x now"\n'
            assert place.said("execution", "query", "o", "item") == '"x"\n'
            unknown = place.run("execution", "query", "o", "price")
            assert unknown.returncode == 4
            assert "no query 'price'; it answers ['item']" in unknown.stderr
            refused = place.run("execution", "start", "pay", "--input", '"five"')
            assert refused.returncode == 2
            assert "parameter 'amount': Expected `int`, got `str`" in refused.stderr
        # Without a good-bye: it is gone when its lease is over.
        until(lambda: server.get("/workflows")["workflows"] == [], "the worker's lease to end", 30)
        assert place.json("workflow", "ls") == []
        gone = place.run("execution", "query", "o", "item")
        assert gone.returncode == 4
        assert "no live worker has it; start one with --app" in gone.stderr

        ended = place.run("execution", "bulk", "retry", "--status", "succeeded", "--workflow", "pay")

        assert (ended.returncode, ended.stdout) == (1, "retry: 0 of 1\n")
        assert "refused: p: workflow 'pay'" in ended.stderr
        assert "unknown_workflow" in ended.stderr


BILLING: Final = """
import headgate as hg

app = hg.App("billing")


@app.workflow
async def bill(customer: str) -> str:
    hg.on_query("customer", lambda: customer)
    if customer == "nobody":
        raise LookupError(customer)
    await hg.wait_signal("paid")
    return customer


@app.post("/bills/{customer}")
def new_bill(request):
    customer = request.path_params["customer"]
    return bill.start(customer, id=f"bill-{customer}").id
"""


def test_apps__several__in_one_worker_and_on_one_server(tmp_path: Path) -> None:
    shop = APP + '\n\n@app.get("/shop")\ndef shop_name() -> str:\n    return "shop"\n'
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "billing.py").write_text(BILLING)
    place = Place(tmp_path)
    apps = ("--app", "shop:app", "--app", "billing:app")
    with Server(tmp_path), Worker(tmp_path, apps=("shop:app", "billing:app")):
        for workflow in ("order", "bill"):
            place.said("execution", "start", workflow, "--input", '"x"', "--id", workflow)
        assert place.said("execution", "query", "order", "item") == '"x"\n'
        assert place.said("execution", "query", "bill", "customer") == '"x"\n'
    with Server(tmp_path, *apps) as server:
        until(lambda: {each["app"] for each in server.get("/workers")["workers"]} >= {"shop", "billing"}, "both apps")
        assert place.said("execution", "query", "bill", "customer") == '"x"\n'
        place.said("execution", "signal", "bill", "paid")
        assert place.said("execution", "result", "bill", "--wait", "20s") == '"x"\n'
        # The routes of both, each with its own workflows.
        assert httpx.get(f"{server.url}/shop").text == "shop"
        assert httpx.post(f"{server.url}/bills/ann").text == "bill-ann"
        assert place.said("execution", "query", "bill-ann", "customer") == '"ann"\n'
    (tmp_path / "billing.py").write_text(BILLING.replace('app.post("/bills/{customer}")', 'app.get("/shop")'))
    clash = place.run("up", *apps)
    assert clash.returncode == 2
    assert "route GET /shop is in two apps, shop and billing" in clash.stderr
    (tmp_path / "billing.py").write_text(BILLING.replace("async def bill(", "async def order("))
    refused = place.run("worker", *apps)
    assert refused.returncode == 2
    assert "workflow order is in two apps, shop and billing" in refused.stderr


def test_stuck__looked_for_in_every_place__is_there_with_the_remedy_and_gone_after_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    place = Place(tmp_path)
    with Server(tmp_path, "--app", "shop:app") as server:
        place.said("execution", "start", "fragile", "--id", "f")
        until(lambda: server.get("/executions/f")["status"] == "STUCK", "it to be stuck", 30)
        assert place.json("execution", "show", "f")["status"] == "STUCK"
        remedy = "headgate execution redrive f"

        [letter] = place.json("event", "dead")
        assert (letter["kind"], letter["id"], letter["redrive"]) == ("execution", "f", remedy)
        shown = place.said("event", "dead")
        assert "WorkflowViolationError" in shown
        assert remedy in shown
        assert place.said("event", "dead", "--kind", "delivery") == "no dead letters\n"
        until(lambda: len(server.get("/alerts")["alerts"]) == 1, "the alert", 20)
        [alert] = place.json("alert", "ls")
        assert (alert["event"], alert["status"]) == ("EXECUTION_STUCK", "OPEN")
        result = place.run("execution", "result", "f", "--wait", "1h")
        assert result.returncode == 5
        for words in ("stuck", "WorkflowViolationError", remedy):
            assert words in result.stderr
        with subprocess.Popen(
            [PROGRAM, "execution", "watch", "f"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], **STORE},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watch:
            assert watch.stdout is not None
            assert watch.stderr is not None
            assert "STUCK" in watch.stdout.readline()
            assert remedy in watch.stderr.readline()
            watch.kill()
    (tmp_path / "shop.py").write_text(MENDED)
    with Server(tmp_path, "--app", "shop:app") as server:
        # The fixed code is another build, whose worker releases it.
        until(lambda: server.get("/executions/f")["status"] == "SUCCEEDED", "its release", 30)
        assert place.said("execution", "result", "f", "--wait", "20s") == '"whole"\n'
        assert place.said("event", "dead") == "no dead letters\n"
        until(lambda: server.get("/alerts")["alerts"][0]["status"] == "RESOLVED", "the end of the alert", 30)
        assert place.json("alert", "ls")[0]["status"] == "RESOLVED"
