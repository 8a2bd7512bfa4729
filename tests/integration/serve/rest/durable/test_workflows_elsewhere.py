"""A server without the app, beside a worker of the same store that has it: what can be asked of it all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import headgate as hg
from headgate.bootstrap.store import AppService, OpenedStore
from headgate.durable.model.history import NULL
from headgate.durable.model.query_requests import new_request
from headgate.durable.worker.query_responder import QueryResponder
from headgate.settings import Settings
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import INBOXES
from headgate.store.model.requests import Query
from tests.integration.serve.durable_api import Api, Shop, problem


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Api]:
    shop = Shop()
    with hg.testing.Environment(shop.app) as env:
        near = env.service
        spill = Spill(near.archive._blobs, env.clock)
        opened = OpenedStore(
            cast("Any", near.store), near._keyring, spill, near.archive._blobs, Settings(home=tmp_path)
        )
        service = AppService(hg.App("bare"), opened, env.clock)
        api = Api(env, shop, tmp_path, service=service)
        yield api
        api.pool.close()


def test_start__workflow_of_a_live_worker__runs_there_with_the_limits_it_is_declared_with(bare: Api) -> None:
    started = bare.post("/executions", {"workflow": "order", "input": "book", "id": "o"})
    bare.env.run()

    assert (started.status_code, started.json()) == (201, {"id": "o", "workflow": "order", "created": True})
    shown = bare.get("/executions/o").json()
    assert (shown["turn"], shown["input"]) == (1, "book")
    assert shown["timeout_at"] > shown["started_at"]


def test_signal_with_start__workflow_of_a_live_worker__starts_it(bare: Api) -> None:
    body = {"workflow": "order", "id": "o", "name": "add", "input": "book", "payload": "stop"}

    assert bare.post("/executions/signal-with-start", body).status_code == 201
    bare.env.run()

    assert bare.get("/executions/o/result").json()["result"] == ["book", "stop"]


def test_start__workflow_of_a_worker_that_is_gone__is_refused_with_the_remedy(bare: Api) -> None:
    bare.env.clock.advance(60)

    refused = problem(bare.post("/executions", {"workflow": "pay", "input": 1}), 404, "unknown_workflow")

    assert "no live worker" in refused["detail"]
    assert "--app" in refused["detail"]
    problem(bare.post("/executions", {"workflow": "nothing"}), 404, "unknown_workflow")


def test_retry__workflow_of_a_live_worker__begins_again(bare: Api) -> None:
    bare.started("pay", 5, id="p")

    again = bare.post("/executions/p/retry")
    bare.env.run()

    assert again.status_code == 201
    assert bare.get("/executions/p").json()["run"] == 2


def test_query__workflow_of_a_live_worker__is_answered_by_it(bare: Api) -> None:
    bare.started("order", "book", id="o")
    service = bare.env.service
    responder = QueryResponder(service.store, service.clock, service.app.workflows, service.client)
    responder.start()
    try:
        answer = bare.post("/executions/o/queries", {"name": "seen"})
        unknown = problem(bare.post("/executions/o/queries", {"name": "none"}), 404, "not_found")
    finally:
        responder.stop()

    assert answer.status_code == 200
    assert "no query 'none'" in unknown["detail"]
    rows = service.store.query(Query(table=INBOXES, partition="o")).items
    assert not [row for row in rows if row["message_id"][:2] in ("Q#", "A#")]


def test_start__input_that_the_declared_workflow_refuses__names_the_field(bare: Api) -> None:
    refused = problem(bare.post("/executions", {"workflow": "pay", "input": "five"}), 400, "bad_payload")

    assert "input of workflow pay: parameter" in refused["detail"]
    assert "Expected `int`, got `str`" in refused["detail"]


def test_start__encrypted_input__is_not_checked_where_the_key_is_not(bare: Api) -> None:
    sealed = {"headgate.encrypted": {"key": "2026-11", "data": "AAAA"}}

    started = bare.post("/executions", {"workflow": "pay", "input": sealed, "id": "p"})

    assert (started.status_code, started.json()["created"]) == (201, True)


def test_answer_open__a_page_of_requests_for_another_worker_comes_first__claims_its_own(bare: Api) -> None:
    service = bare.env.service
    now_ms = int(service.clock.seconds() * 1000)
    for number, workflow in enumerate([*["elsewhere"] * 60, "order"]):
        request = new_request(
            "o", workflow, "seen", NULL, unique=f"{number:02}", now_ms=now_ms + number, timeout_seconds=60
        )
        service.store.batch_write([request.put()])
    responder = QueryResponder(service.store, service.clock, service.app.workflows, service.client)

    responder.answer_open()

    rows = service.store.query(Query(table=INBOXES, partition="o", limit=100)).items
    assert {row["workflow"] for row in rows if row["message_id"].startswith("Q#")} == {"elsewhere"}


def test_query__workflow_that_no_one_has__says_so(bare: Api) -> None:
    bare.started("order", "book", id="o")
    bare.env.clock.advance(60)

    refused = problem(bare.post("/executions/o/queries", {"name": "seen"}), 404, "unknown_workflow")

    assert "no live worker has it" in refused["detail"]


def test_bulk_retry__some_are_refused__says_which_and_why(bare: Api) -> None:
    for number in range(2):
        bare.started("pay", 5, id=f"p-{number}")
    bare.env.clock.advance(60)
    body = {"action": "retry", "where": {"status": "SUCCEEDED"}}

    done = bare.post("/executions/bulk", body).json()

    assert (done["matched"], done["done"]) == (2, 0)
    assert {each["id"] for each in done["refused"]} == {"p-0", "p-1"}
    assert {each["code"] for each in done["refused"]} == {"unknown_workflow"}
    assert all("'pay'" in each["detail"] for each in done["refused"])
