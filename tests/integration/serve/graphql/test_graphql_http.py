"""GraphQL over HTTP: methods, media types and statuses; limits; streams."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
from graphql import get_introspection_query

from headgate.auth.principals import Principal
from headgate.auth.roles import Role
from headgate.durable.bus.events import Event
from headgate.errors import StoreBusyError
from headgate.health.model.enums import SignalState, Tier
from headgate.serve.graphql.limits import Limits
from headgate.serve.runtime.log_tail import LogTail
from headgate.store.port import Store
from tests.integration.serve.graphql_board import ORDERS, STOCK, Board, open_board

GRAPHQL = "application/graphql-response+json"
TYPENAME = {"data": {"__typename": "Query"}}


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with open_board(tmp_path) as board:
        yield board


def test_failure__beside_fields_that_were_begun__leaves_nothing_behind(board: Board) -> None:
    query = """
      query Q($name: String = "urn:dp:a:b") {
        dataset(urn: "urn:dp:a:b") { urn }
        datasetSignals(datasetUrn: $name) { state }
      }
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        answer = board.http("POST", json={"query": query, "variables": {"name": None}}).json()
        gc.collect()

    assert answer["data"] is None
    assert "must not be null" in answer["errors"][0]["message"]
    assert [str(each.message) for each in warned if "never awaited" in str(each.message)] == []


# Methods and media types.


@pytest.mark.parametrize(
    ("accept", "media", "status"),
    [
        ("", "application/json", 200),
        ("*/*", "application/json", 200),
        ("application/json", "application/json", 200),
        (GRAPHQL, GRAPHQL, 400),
        (f"{GRAPHQL}, application/json;q=0.9", GRAPHQL, 400),
        (f"{GRAPHQL};q=0.5, application/json", "application/json", 200),
    ],
)
def test_accept__by_media_type__what_is_refused_is_400_or_200(
    board: Board, accept: str, media: str, status: int
) -> None:
    good = board.http("POST", json={"query": "{ __typename }"}, headers={"accept": accept})
    bad = board.http("POST", json={"query": "{ nothing }"}, headers={"accept": accept})

    assert (good.status_code, good.json()) == (200, TYPENAME)
    assert good.headers["content-type"].partition(";")[0] == media
    assert bad.status_code == status
    assert "data" not in bad.json()
    assert bad.json()["errors"][0]["extensions"] == {"code": "bad_query", "retryable": False}


def test_accept__nothing_that_there_is__406(board: Board) -> None:
    answer = board.http("POST", json={"query": "{ __typename }"}, headers={"accept": "text/html"})

    assert answer.status_code == 406
    assert answer.json()["code"] == "not_acceptable"


def test_get__a_query_with_variables__is_answered(board: Board) -> None:
    query = "query A($t: Tier) { criticalSignals(tier: $t) { state } } query B { __typename }"
    parameters = {"query": query, "variables": '{"t": "TIER_1"}', "operationName": "A"}

    assert board.http("GET", params=parameters).json() == {"data": {"criticalSignals": []}}
    assert board.http("GET", params={**parameters, "operationName": "B"}).json() == TYPENAME


@pytest.mark.parametrize(
    "path",
    [
        "/graphql",
        "/graphql?query=%7B__typename%7D&variables=nonsense",
        "/graphql?query=%7B__typename%7D&variables=%5B1%5D",
        "/graphql?query=a&query=b",
        "/graphql?query=%FF",
    ],
)
def test_get__malformed__400(board: Board, path: str) -> None:
    answer = board.http("GET", path)

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["extensions"] == {"code": "bad_payload", "retryable": False}


def test_get__a_subscription__405(board: Board) -> None:
    query = "subscription { signalChanged { state } }"

    answer = board.http("GET", params={"query": query}, headers={"accept": "text/event-stream"})

    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'[{"query": "{__typename}"}]',
        b"{}",
        b'{"query": 7}',
        b'{"query": "{__typename}", "variables": []}',
        b'{"query": "{__typename}", "operationName": {}}',
        b'{"query": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_post__malformed__400_by_either_media_type(board: Board, content: bytes) -> None:
    for accept in ("application/json", GRAPHQL):
        headers = {"content-type": "application/json", "accept": accept}
        answer = board.http("POST", content=content, headers=headers)

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["extensions"] == {"code": "bad_payload", "retryable": False}


def test_post__another_content_type__415(board: Board) -> None:
    answer = board.http("POST", content=b"query={__typename}", headers={"content-type": "text/plain"})

    assert answer.status_code == 415


def test_post__a_subscription_without_a_stream__says_how(board: Board) -> None:
    error = board.error("subscription { signalChanged { state } }")

    assert "text/event-stream" in error["message"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "{",
        "query",
        "mutation { updateSignal { state } }",
        "fragment A on Query { __typename }",
        "{ a: criticalSignals { state } a: activeIncidents { title } }",
        "query A { __typename } query B { __typename }",
        '{ criticalSignals(limit: "many") { state } }',
        "{ criticalSignals { state { x } } }",
        "query($x: Nothing) { __typename }",
        "{ ...A } fragment A on Query { ...B } fragment B on Query { ...A }",
        "{ ...A } fragment A on Query { __schema { types { name } } ...A }",
    ],
)
def test_query__not_graphql_or_not_of_this_schema__bad_query(board: Board, query: str) -> None:
    assert {each["extensions"]["code"] for each in board.ask(query)["errors"]} == {"bad_query"}


def test_query__half_of_a_character__is_refused(board: Board) -> None:
    headers = {"content-type": "application/json"}

    answer = board.http("POST", content=b'{"query": "{ \\ud800 }"}', headers=headers)

    assert answer.json()["errors"][0]["extensions"]["code"] in ("bad_query", "bad_payload")


def test_variables__that_do_not_fit__no_data(board: Board) -> None:
    answer = board.ask("query($l: Int!) { criticalSignals(limit: $l) { state } }")

    assert "data" not in answer
    assert answer["errors"][0]["extensions"]["code"] == "bad_query"


# Limits.


def nested(times: int) -> str:
    inner = "urn"
    for _ in range(times):
        inner = f"signals {{ dataset {{ {inner} }} }}"
    return f'{{ dataset(urn: "{ORDERS}") {{ {inner} }} }}'


LASAGNE = "".join(
    f"fragment F{number} on SignalState {{ dataset {{ signals {{ ...F{number + 1} ...F{number + 1} }} }} }} "
    for number in range(30)
)
BOMBS = {
    "deep": nested(4),
    "deeper than the parser goes": "{ a " * 900 + "}" * 900,
    "lists within lists": "{ dataset(urn: " + "[" * 900 + "]" * 900 + ") { urn } }",
    "deep in fragments": LASAGNE + "fragment F30 on SignalState { state } { criticalSignals { ...F0 } }",
    "dear": "{ criticalSignals { dataset { signals { dataset { signals { state score tier } } } } } }",
    "dear by a page": "{ datasets(filter: {}, pagination: {first: 100}) { edges { node { signals { metrics {"
    " passCount failCount evidenceCount complianceRate } state score tier ownerTeam incidentId } } } } }",
    "many reads": "{ datasets(filter: {}, pagination: {first: 100}) { edges { node {"
    " versions(first: 90) { tier } } } } }",
    "aliases": "{" + " ".join(f"a{number}: __typename" for number in range(31)) + "}",
    "long": "{ __typename " + "#" * 70_000 + "\n}",
    "a megabyte": "{ __typename " + " " * 1_000_000 + "}",
    "the same again and again": "{" + "__typename " * 1_900 + "}",
    "the same again and again below": "{" + 'dataset(urn: "a") { urn urn urn } ' * 7 + "}",
    "the same again and again in another operation": "query A { __typename } query B {" + "__typename " * 1_800 + "}",
    "the same again and again in a fragment": "{ __typename } fragment A on Query {" + "__typename " * 1_800 + "}",
    "the same again and again in the schema": "{ __schema { types { " + "name " * 1_800 + "} } }",
    "fragments of the schema": "{ __schema { types { ...F0 } } }"
    + "".join(f"fragment F{n} on __Type {{ ...F{n + 1} ...F{n + 1} }}" for n in range(40))
    + "fragment F40 on __Type { name }",
    "many words": "{" + "__typename " * 2_500 + "}",
    "a large page": "{ criticalSignals(limit: 101) { state } }",
    "no page": "{ incidents(filter: {}, pagination: {first: 0}) { totalEstimate } }",
    "a page of versions": '{ dataset(urn: "urn:dp:a:b") { versions(first: 1000) { configVersion } } }',
    "many ids": "{ evidence(ids: [" + '"a",' * 101 + "]) { result } }",
    "types within types": "{ __schema { types { fields { type { fields { type { fields { name } } } } } } } }",
    "types within types by fragments": "{ __schema { types { ...T } } } fragment T on __Type"
    " { fields { type { ...U } } } fragment U on __Type { interfaces { name } }",
    "deep types": "{ __schema { types { " + "ofType { " * 20 + "name" + " }" * 20 + " } } }",
    "schemas": "{ a: __schema { description } b: __schema { description } c: __schema { description } }",
}


@pytest.mark.parametrize("query", BOMBS.values(), ids=BOMBS.keys())
def test_limits__a_bomb__is_refused_before_anything_is_read(board: Board, query: str) -> None:
    board.store.calls.clear()

    for accept, status in ((GRAPHQL, 400), ("application/json", 200)):
        answer = board.http(
            "POST",
            json={"query": query, "operationName": "A" if "query A" in query else None},
            headers={"accept": accept},
        )
        # A body that is far too large is refused as a body.
        assert answer.status_code == (400 if len(query) > 200_000 else status)
        assert [each["extensions"] for each in answer.json()["errors"]] == [{"code": "query_limit", "retryable": False}]
    assert sum(board.store.calls.values()) == 0


@pytest.mark.parametrize("variables", [{"n": 100}, {"p": {"first": 100}}])
def test_limits__page_sizes_in_variables__count(board: Board, variables: dict[str, Any]) -> None:
    fields = "signals { state score tier ownerTeam incidentId datasetUrn signalType lastUpdated version stale }"
    argument = "pagination: {first: $n}" if "n" in variables else "pagination: $p"
    declared = "$n: Int!" if "n" in variables else "$p: Pagination"
    query = f"query({declared}) {{ datasets(filter: {{}}, {argument}) {{ edges {{ node {{ {fields} }} }} }} }}"
    small: dict[str, Any] = {"n": 10} if "n" in variables else {"p": {"first": 10}}

    assert board.code(query, **variables) == "query_limit"
    assert board.data(query, **small) == {"datasets": {"edges": []}}


def test_limits__the_same_document_again__is_measured_with_its_own_variables(board: Board) -> None:
    query = "query($n: Int = 5) { criticalSignals(limit: $n) { state } }"

    assert board.data(query) == {"criticalSignals": []}
    assert board.code(query, n=101) == "query_limit"
    assert board.code(query, n=0) == "query_limit"
    assert board.data(query, n=100) == {"criticalSignals": []}


def test_introspection__as_tools_ask_it__is_answered(board: Board) -> None:
    data = board.data(get_introspection_query(descriptions=True, specified_by_url=True, input_value_deprecation=True))

    assert {"SignalState", "Incident", "Dataset"} <= {each["name"] for each in data["__schema"]["types"]}


def test_what_a_dashboard_asks__is_within_the_limits(board: Board) -> None:
    board.data(
        """{ criticalSignals { datasetUrn signalType state previousState score sloThreshold breachStart windowStart
        windowEnd metrics { evidenceCount passCount failCount complianceRate } failureSignature
        topProducer { producerId version confidence } evidenceSample incidentId tier ownerTeam lastUpdated
        dataset { urn displayName tier ownerTeam } incident { incidentId status severity title createdAt oncallUser } }
        }"""
    )


def test_time__is_up__deadline_exceeded_and_worth_another_try(tmp_path: Path) -> None:
    with open_board(tmp_path, Limits(seconds_max=0)) as board:
        error = board.error("{ activeIncidents { title } }")

    assert error["extensions"] == {"code": "deadline_exceeded", "retryable": True}


def test_metrics__failure_of_ours_in_an_answer_with_status_200__counts_as_what_it_is(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_given: Any, **_more: Any) -> Any:
        raise StoreBusyError("the store is away; try again")

    monkeypatch.setattr(board.health.signals, "get", away)
    board.http("POST", json={"query": '{ signalState(datasetUrn: "urn:dp:a:b:v1", signalType: "COST") { state } }'})
    board.http("POST", json={"query": "{ __typename }"})

    counted = board.http("GET", "/metrics").text
    for status in ("UNAVAILABLE", "200"):
        labels = f'api_type="graphql",method="POST /graphql",status_code="{status}"'
        assert f"api_request_count_total{{{labels}}} 1.0" in counted


def test_time__the_store_hangs__504_and_the_loop_is_not_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_board(tmp_path, Limits(seconds_max=0.05)) as board:
        released = threading.Event()
        monkeypatch.setattr("headgate.serve.graphql.http._GRACE_SECONDS", 0.05)
        monkeypatch.setattr(board.health.signals, "get", lambda *_given: released.wait(20) and None)

        answer = board.http(
            "POST", json={"query": '{ signalState(datasetUrn: "urn:dp:a:b", signalType: "X") { state } }'}
        )
        released.set()

    assert answer.status_code == 504
    assert answer.json()["errors"][0]["extensions"] == {"code": "deadline_exceeded", "retryable": True}


def test_pool__is_full__503_with_when_to_come_back(board: Board) -> None:
    released = threading.Event()

    async def talk() -> Any:
        holders = [asyncio.ensure_future(board.pool.run(lambda: released.wait(20))) for _ in range(12)]
        await asyncio.sleep(0)
        try:
            transport = httpx.ASGITransport(board.app)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
                return await client.post("/graphql", json={"query": "{ __typename }"})
        finally:
            released.set()
            await asyncio.gather(*holders)

    answer = asyncio.run(talk())

    assert answer.status_code == 503
    assert answer.json()["code"] == "server_busy"
    assert "retry-after" in answer.headers


# Streams.


def test_stream__a_query__one_answer_and_complete(board: Board) -> None:
    async def talk() -> list[Any]:
        async with board.stream("{ __typename }") as stream:
            return [await stream.event(), await stream.event(), await stream.event()]

    assert asyncio.run(talk()) == [("next", TYPENAME), ("complete", None), None]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("subscription { nothing }", "bad_query"),
        (nested(5), "query_limit"),
        ('subscription { signalChanged(datasetUrn: "what") { state } }', "bad_id"),
        (f'subscription {{ incidentChanged(datasetUrn: "{STOCK}") {{ title }} }}', "forbidden"),
    ],
)
def test_stream__refused__is_reported_within_the_stream(board: Board, query: str, code: str) -> None:
    board.principal = Principal("vera", frozenset({Role.VIEWER}), ("urn:dp:orders:*", "what"))

    async def talk() -> list[Any]:
        async with board.stream(query) as stream:
            return [await stream.event(), await stream.event()]

    first, second = asyncio.run(talk())

    assert first[1]["errors"][0]["extensions"]["code"] == code
    assert second in (("complete", None), None)


def test_signal_changed__transitions__are_reported_as_they_stand_of_what_was_asked(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK, Tier.TIER_2)

    async def talk() -> list[Any]:
        query = "subscription($t: Tier) { signalChanged(tier: $t) { datasetUrn state dataset { displayName } } }"
        async with board.stream(query, {"t": "TIER_1"}) as stream:
            await _followed(board)
            await asyncio.to_thread(board.signal, STOCK)
            await asyncio.to_thread(board.signal, ORDERS)
            first = await stream.event()
            await asyncio.to_thread(board.signal, ORDERS, "FRESHNESS", SignalState.OK)
            return [first, await stream.event()]

    result = [event[1]["data"]["signalChanged"] for event in asyncio.run(talk())]

    assert result == [
        {"datasetUrn": ORDERS, "state": "CRITICAL", "dataset": {"displayName": "Orders"}},
        {"datasetUrn": ORDERS, "state": "OK", "dataset": {"displayName": "Orders"}},
    ]
    assert board.store.on_the_loop == 0


def test_incident_changed__out_of_scope__is_not_reported_and_secrets_are_masked(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK)
    board.principal = Principal("vera", frozenset({Role.VIEWER}), ("urn:dp:stock:*",))

    async def talk() -> Any:
        async with board.stream("subscription { incidentChanged { primaryDatasetUrn status oncallUser } }") as stream:
            await _followed(board)
            await asyncio.to_thread(board.signal, ORDERS)
            signal = await asyncio.to_thread(board.signal, STOCK)
            first = await stream.event()
            await asyncio.to_thread(board.tell, board.incident_of(signal))
            return [first, await stream.event()]

    result = [event[1]["data"]["incidentChanged"] for event in asyncio.run(talk())]

    assert result == [
        {"primaryDatasetUrn": STOCK, "status": "OPEN", "oncallUser": None},
        {"primaryDatasetUrn": STOCK, "status": "OPEN", "oncallUser": "***"},
    ]


def test_incident_changed__events_that_others_made_up__lead_to_nothing_out_of_scope(board: Board) -> None:
    board.register(ORDERS)
    board.register(STOCK)
    hidden = board.incident_of(board.signal(ORDERS))
    board.principal = Principal("vera", frozenset({Role.VIEWER}), ("urn:dp:stock:*",))

    def emit(data: Any) -> None:
        board.bus.emit(Event(type="headgate.incident.updated", source="/elsewhere", data=data))

    async def talk() -> Any:
        async with board.stream("subscription { incidentChanged { primaryDatasetUrn } }") as stream:
            await _followed(board)
            forged = {"dataset_urn": STOCK, "incident_id": hidden.incident_id, "version": 1}
            for data in (forged, {**forged, "incident_id": "INC-none"}, {"dataset_urn": STOCK}, ["what"], None):
                await asyncio.to_thread(emit, data)
            await asyncio.to_thread(board.signal, STOCK)
            return await stream.event()

    assert asyncio.run(talk())[1] == {"data": {"incidentChanged": {"primaryDatasetUrn": STOCK}}}


def test_stream__the_server_stops__ends_without_complete(board: Board) -> None:
    async def talk() -> Any:
        async with board.stream("subscription { signalChanged { state } }") as stream:
            await _followed(board)
            board.is_stopping = True
            return await stream.event()

    assert asyncio.run(talk()) is None


async def _followed(board: Board) -> None:
    """Return once a subscription looks at the log."""
    for _ in range(500):
        if board.watches._watches:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no subscriber")


def test_body__encoded_answer__is_what_msgspec_reads(board: Board) -> None:
    answer = board.http("POST", json={"query": "{ __typename }"})

    assert msgspec.json.decode(answer.content) == TYPENAME
    assert answer.headers["cache-control"] == "no-store"


def test_log_tail__an_event_that_was_made_earlier_and_committed_later__is_not_missed(board: Board) -> None:
    tail = LogTail(board.health, "test.*")
    now_ms = int(board.clock.seconds() * 1000)

    def commit(id: str, at_ms: int) -> None:
        event = Event(id=id, type="test.happened", source="/test", data={"id": id})
        cast("Store", board.store).transact(board.bus.event_writes(event, at_ms))

    commit("later", now_ms + 500)
    first = tail.poll()
    commit("earlier", now_ms + 400)
    second = tail.poll()

    assert [each.event.id for each in first] == ["later"]
    assert [each.event.id for each in second] == ["earlier"]
    assert tail.poll() == []
