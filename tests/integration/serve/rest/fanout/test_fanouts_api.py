"""Fan-outs over HTTP: made, looked at, worked on from elsewhere, steered and repaired."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.types import ASGIApp

from headgate.clock import VirtualClock
from headgate.fanout import submissions
from headgate.fanout.core.observer import NoObserver
from headgate.fanout.model.rows import chunk_key, counter_key, run_key
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.serve.application import build_http
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.fanout import fanouts
from headgate.serve.rest.fanout import watch as fanout_watch
from headgate.serve.rest.fanout.fanouts import fanout_routes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.store.catalogue.tables import FANOUT
from headgate.store.sqlite.store import Synchronous
from headgate.telemetry import Metrics, Tracing
from tests.integration.serve.durable_api import problem
from tests.stores import open_sqlite


class Wakeups(NoObserver):
    """Records the fan-outs that workers were woken for."""

    def __init__(self) -> None:
        self.run_ids: list[str] = []

    def on_work_available(self, run_id: str) -> None:
        self.run_ids.append(run_id)


class Api:
    """The routes of fan-outs around a store with a clock that stands still, and a worker that talks HTTP."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.wakeups = Wakeups()
        self.fanouts = FanoutService(self.store, self.clock, IdMaker(self.clock), observer=self.wakeups)
        self.pool = WorkPool(threads_max=4, waiting_max=50)
        self.unusable: dict[str, str] = {}
        health = ServerProbes(version="1.2.3", store=self.store, sweepers=[], clock=self.clock, disk=None)
        health.phase = Phase.SERVING
        watches = WatchHub(self.store)
        self._app: ASGIApp = build_http(
            version="1.2.3",
            probes=health,
            pool=self.pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=self.clock,
            routes=fanout_routes(self.fanouts, self.pool, watches=watches, unusable=lambda: self.unusable),
        )

    def session(self, talk: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            transport = httpx.ASGITransport(self._app)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400/api/v1") as client:
                return await talk(client)

        return asyncio.run(run())

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        response: httpx.Response = self.session(lambda client: client.request(method, path, **more))
        return response

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.ask("POST", path, json={} if body is None else body, **more)

    def done(self, path: str, body: Any = None) -> Any:
        answer = self.post(path, body)
        assert answer.status_code in (200, 202), answer.text
        return answer.json()

    def made(self, run_id: str = "r", **order: Any) -> str:
        answer = self.post("/fanouts", {"group": "g", "range": [0, 30], "chunk_size": 10, "run_id": run_id, **order})
        assert answer.status_code == 201, answer.text
        return run_id

    def start(self, chunk: str, run_id: str = "r") -> Any:
        return self.done(f"/fanouts/{run_id}/chunks/{chunk}/start", {"worker": "w"})

    def complete(self, chunk: str, run_id: str = "r", **result: Any) -> Any:
        token = self.start(chunk, run_id)["token"]
        return self.done(f"/fanouts/{run_id}/chunks/{chunk}/complete", {"token": token, **result})

    def fail(self, chunk: str, run_id: str = "r", *, message: str = "no luck", is_final: bool = True) -> Any:
        token = self.start(chunk, run_id)["token"]
        body = {"token": token, "error_class": "ValueError", "message": message, "is_final": is_final}
        return self.done(f"/fanouts/{run_id}/chunks/{chunk}/fail", body)

    def tend(self) -> None:
        self.clock.advance(2)
        self.fanouts.new_maintenance().run_once()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path)
    yield made
    made.pool.close()
    made.store.close()


CHUNKS = ("chunk-0000000", "chunk-0000010", "chunk-0000020")


# Making


def test_make__new__is_201_with_its_location_which_works(api: Api) -> None:
    answer = api.post(
        "/fanouts",
        {
            "group": "g",
            "items": ["a", {"b": 1}, None],
            "chunk_size": 2,
            "run_id": "runs 1",
            "handler": "jobs:run",
            "params": {"beta": 2.5},
            "priority": 7,
            "campaign": "tiles",
        },
    )

    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/fanouts/runs%201"
    made = answer.json()
    assert (made["run_id"], made["created"], made["status"], made["chunks_total"]) == ("runs 1", True, "RUNNING", 2)
    shown = api.get(answer.headers["location"].removeprefix("/api/v1"))
    assert (shown["params"], shown["policy"]["priority"], shown["campaign"]) == ({"beta": 2.5}, 7, "tiles")
    assert shown["policy"]["max_attempts"] == 3
    assert shown["source"]["kind"] == "list"
    assert api.get("/fanouts/runs%201/chunks/chunk-0000002")["input"] == [None]


def test_make__the_same_again__is_200_and_other_input_409(api: Api) -> None:
    api.made()
    same = api.post("/fanouts", {"group": "g", "range": [0, 30], "chunk_size": 10, "run_id": "r"})

    assert (same.status_code, same.json()["created"]) == (200, False)
    other = api.post("/fanouts", {"group": "g", "range": [0, 31], "chunk_size": 10, "run_id": "r"})
    assert "choose another id" in problem(other, 409, "already_started")["detail"]


def test_make__idempotency_key__is_the_id(api: Api) -> None:
    headers = {"idempotency-key": '"tile-7"'}
    answers = [api.post("/fanouts", {"group": "g", "range": [0, 5]}, headers=headers) for _ in range(2)]

    assert [(each.status_code, each.json()["run_id"]) for each in answers] == [(201, "tile-7"), (200, "tile-7")]


def test_make__no_chunk_size__makes_about_a_thousand_chunks(api: Api, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x\n" * 1_500)

    def size(**source: Any) -> int:
        found: int = api.post("/fanouts", {"group": "g", **source}).json()["chunk_size"]
        return found

    assert size(range=[0, 10]) == 1
    assert size(range=[0, 2_500]) == 3
    assert size(items=[]) == 1
    assert size(lines=str(tmp_path / "data")) == 500
    assert size(bytes=str(tmp_path / "data")) == 1024 * 1024


def test_make__lines_and_bytes__are_split_where_they_are(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("one\ntwo\nthree\n")

    api.made("lines", range=None, lines=str(path), chunk_size=2)
    api.made("bytes", range=None, bytes=str(path), chunk_size=8)

    assert [each["items"] for each in api.get("/fanouts/lines/chunks")["chunks"]] == [2, 1]
    started = api.start("chunk-000000000000", "lines")
    assert started["input"] == {"kind": "lines", "path": str(path), "offset": 0, "bytes": 8} | {
        "mark": started["input"]["mark"]
    }
    assert "items" not in started
    assert api.get("/fanouts/bytes")["source"]["path"] == str(path)


def test_make__manifest_without_a_group__gets_the_default_of_other_sources(api: Api, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"range": [0, 2]}))

    answer = api.post("/fanouts", {"manifest": str(manifest), "run_id": "m"})

    assert answer.status_code == 201, answer.text
    assert api.get("/fanouts/m")["group"] == "default"


def test_make__manifest__says_it_all_and_the_request_takes_precedence(api: Api, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\nc\n")
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"group": "m", "lines": "lines.txt", "chunk_size": 1, "max_attempts": 5}))

    made = api.post("/fanouts", {"manifest": str(manifest), "run_id": "m", "max_attempts": 2})
    shown = api.get("/fanouts/m")

    assert (made.status_code, shown["group"], shown["chunks"]["total"]) == (201, "m", 3)
    assert shown["policy"]["max_attempts"] == 2
    other = api.post("/fanouts", {"manifest": str(manifest), "run_id": "n", "range": [0, 2]})
    assert other.json()["items_total"] == 2


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({"group": "g"}, "bad_definition", "none is set"),
        ({"group": "g", "range": [0, 1], "items": []}, "bad_definition", "items and range are set"),
        ({"range": [0, 1]}, "bad_payload", "group"),
        ({"group": "", "range": [0, 1]}, "bad_payload", "group"),
        ({"group": "g", "range": [5, 1]}, "bad_definition", "the end must not be before the start"),
        ({"group": "g", "range": [1]}, "bad_payload", "range"),
        ({"group": "g", "range": [0, 1], "chunk_size": 0}, "bad_definition", "chunk_size is 0"),
        ({"group": "g", "range": [0, 1], "priority": 10}, "bad_definition", "priority is 10"),
        ({"group": "g", "range": [0, 1], "handler": "jobs"}, "bad_definition", "module:function"),
        ({"group": "g", "range": [0, 1], "handler": "jobs:1"}, "bad_definition", "module:function"),
        ({"group": "g", "range": [0, 1], "colour": "red"}, "bad_payload", "colour"),
        ({"group": "g", "range": [0, 1], "run_id": "a\nb"}, "bad_id", "printable"),
        (
            {"group": "g", "lines": "relative.txt"},
            "bad_payload",
            "there is no project folder; set project, or give an absolute path",
        ),
        ({"group": "g", "lines": "/no/such/file"}, "bad_payload", "/no/such/file"),
        ({"group": "g", "bytes": "/"}, "bad_payload", "input /"),
        ({"group": "g", "manifest": "/no/such/file"}, "bad_payload", "cannot be read"),
        ({"group": "g", "manifest": 7}, "bad_payload", "manifest"),
        ([], "bad_payload", "body"),
    ],
)
def test_make__bad_order__is_400_and_makes_nothing(api: Api, body: Any, code: str, said: str) -> None:
    assert said in problem(api.post("/fanouts", body), 400, code)["detail"]
    assert api.get("/fanouts")["fanouts"] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "malformed"),
        ("[]", "object"),
        ('{"range": [0, 1], "colour": "red"}', "colour"),
        ('{"range": "all"}', "range"),
        ('{"manifest": "/other"}', "nested manifests"),
    ],
)
def test_make__bad_manifest__is_400_and_names_it(api: Api, tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(content)

    detail = problem(api.post("/fanouts", {"group": "g", "manifest": str(path)}), 400, "bad_payload")["detail"]

    assert str(path) in detail
    assert said in detail


def test_make__item_over_the_limit__is_413(api: Api) -> None:
    answer = api.post("/fanouts", {"group": "g", "items": ["x" * 300_000]})

    assert "item 0" in problem(answer, 413, "payload_too_large")["detail"]


def test_make__huge_manifest__is_refused_before_it_is_read(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "MANIFEST_BYTES_MAX", 10)
    (tmp_path / "m.json").write_text('{"range": [0, 1]}')

    answer = api.post("/fanouts", {"group": "g", "manifest": str(tmp_path / "m.json")})

    assert "larger than" in problem(answer, 400, "bad_payload")["detail"]


def test_make__split_takes_long__is_202_and_goes_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanouts, "SPLIT_SECONDS", 0.05)
    opened, is_answered = api.fanouts.splitter._add, threading.Event()

    def held(*given: Any) -> Any:
        is_answered.wait(30)
        return opened(*given)

    monkeypatch.setattr(api.fanouts.splitter, "_add", held)

    async def talk(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        body = {"group": "g", "range": [0, 1000], "chunk_size": 1, "run_id": "big"}
        answer = await client.post("/fanouts", json=body)
        is_answered.set()
        while (shown := await client.get("/fanouts/big")).json()["status"] == "SPLITTING":
            await asyncio.sleep(0.01)
        return answer, shown

    answer, shown = api.session(talk)

    assert (answer.status_code, answer.json()["status"]) == (202, "SPLITTING")
    assert shown.json()["chunks"]["total"] == 1000


def test_make__empty__has_succeeded(api: Api) -> None:
    api.made(range=[0, 0])

    assert (api.get("/fanouts/r")["status"], api.get("/fanouts/r")["share"]) == ("SUCCEEDED", 1.0)


# Listing


def ids(api: Api, query: str = "") -> list[str]:
    return [each["run_id"] for each in api.get(f"/fanouts?{query}")["fanouts"]]


def test_list__by_each_filter__gives_those_that_match(api: Api) -> None:
    for number, group in enumerate(("a", "a", "b")):
        api.made(f"{group}{number}", group=group, campaign="tiles" if group == "a" else None)
        api.clock.advance(60)
    for chunk in CHUNKS:
        api.complete(chunk, "a0")
    api.tend()

    assert ids(api, "group=a") == ["a1", "a0"]
    assert ids(api, "group=a&latest=true") == ["a1"]
    assert ids(api, "group=a&status=SUCCEEDED") == ["a0"]
    assert ids(api, "group=nobody") == []
    assert ids(api, "group=a&until=2025-06-15T15:07:00Z") == ["a0"]
    assert ids(api, "group=a&since=2025-06-15T15:07:00%2B00:00") == ["a1"]
    # Of all: the open ones, then those that have ended.
    assert ids(api) == ["a1", "b2", "a0"]
    assert ids(api, "status=SUCCEEDED") == ["a0"]
    assert ids(api, "since=2025-06-15T15:08:00Z") == ["b2"]


def test_list__page_by_page__has_each_once(api: Api) -> None:
    for number in range(5):
        api.made(f"r{number}", range=[0, 1] if number % 2 else [0, 0])
        api.clock.advance(1)
    seen: list[str] = []
    query = "limit=2"
    while True:
        page = api.get(f"/fanouts?{query}")
        seen += [each["run_id"] for each in page["fanouts"]]
        if page["cursor"] is None:
            break
        query = f"limit=2&cursor={page['cursor']}"

    assert sorted(seen) == ["r0", "r1", "r2", "r3", "r4"]
    assert seen[:2] == ["r1", "r3"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("latest=true", "user"),
        ("group=a&campaign=b", "user"),
        ("status=DONE", "bad_payload"),
        ("since=yesterday", "bad_payload"),
        ("since=2025-01-01T00:00:00", "bad_payload"),
        ("limit=0", "bad_payload"),
        ("cursor=zzz", "bad_cursor"),
        ("group=a&cursor=group|zzz", "bad_cursor"),
        ("colour=red", "bad_payload"),
    ],
)
def test_list__cannot_be__is_400(api: Api, query: str, code: str) -> None:
    problem(api.ask("GET", f"/fanouts?{query}"), 400, code)


# Describing


def test_show__counts_now__are_exact_and_add_up(api: Api) -> None:
    api.made(range=[0, 40], max_attempts=1)
    api.complete("chunk-0000000", item_errors={"3": "ValueError: three"})
    api.fail("chunk-0000010", message="no luck")
    api.start("chunk-0000020")

    shown = api.get("/fanouts/r")

    assert shown["chunks"] == {
        "total": 4,
        "pending": 1,
        "in_progress": 1,
        "completed": 1,
        "failed": 1,
        "cancelled": 0,
        "skipped": 0,
    }
    counts = shown["counts"]
    assert shown["items"] == {"total": 40, "ok": 9, "failed": 11, "deferred": 0, "open": 20}
    assert (counts["items_ok"], counts["items_failed"], counts["attempts"]) == (9, 11, 3)
    assert (counts["done"], counts["quarantined"], counts["running"], counts["queued"]) == (1, 1, 1, 1)
    assert shown["share"] == 0.5
    assert shown["estimate"]["unknown"] is not None
    assert any("headgate fanout failures r" in note for note in shown["notes"])
    assert shown["is_finished"] is False


def test_show__notes__say_what_to_do(api: Api) -> None:
    api.made(handler="jobs:run")
    api.unusable = {"jobs:run": "handler 'jobs:run': there is no such module"}
    api.done("/fanouts/r/pause", {})

    first, second = api.get("/fanouts/r")["notes"]

    assert "headgate fanout resume r" in first
    assert second == "this server cannot run it: handler 'jobs:run': there is no such module"


def test_summary__ended__says_how(api: Api) -> None:
    api.made()
    for chunk in CHUNKS:
        api.complete(chunk)
    api.tend()

    assert api.get("/fanouts/r/summary") == {
        "run_id": "r",
        "status": "SUCCEEDED",
        "chunks": 3,
        "completed": 3,
        "failed": 0,
        "cancelled": 0,
        "items": 30,
        "items_ok": 30,
        "items_failed": 0,
        "reason": None,
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/chunks"),
        ("GET", "/chunks/chunk-0000000"),
        ("GET", "/stuck"),
        ("GET", "/failures"),
        ("GET", "/failures?items=true"),
        ("GET", "/errors"),
        ("GET", "/dead-letters"),
        ("GET", "/events"),
        ("GET", "/summary"),
        ("GET", "/watch"),
        ("GET", "/plots/progress.svg"),
        ("GET", "/compare/none"),
        ("POST", "/redrive"),
        ("POST", "/heal"),
        ("POST", "/bisect"),
        ("POST", "/cancel"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/skip"),
        ("POST", "/reconcile"),
        ("POST", "/tune"),
        ("POST", "/chunks/chunk-0000000/start"),
        ("POST", "/chunks/chunk-0000000/heartbeat"),
        ("POST", "/chunks/chunk-0000000/complete"),
        ("POST", "/chunks/chunk-0000000/fail"),
        ("POST", "/chunks/chunk-0000000/release"),
    ],
)
def test_every_operation__no_such_fanout__is_404(api: Api, method: str, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "redrive": {"all": True},
        "bisect": {"chunk_id": "chunk-0000000"},
        "skip": {"failed": True},
        "tune": {"priority": 1},
        "start": {"worker": "w"},
        "heartbeat": {"token": "t"},
        "complete": {"token": "t"},
        "fail": {"token": "t", "error_class": "E"},
        "release": {"token": "t"},
    }
    body = bodies.get(path.rpartition("/")[2], {})

    problem(api.ask(method, f"/fanouts/none{path}", json=body if method == "POST" else None), 404, "not_found")


def test_campaign__several_members__is_their_sum(api: Api) -> None:
    api.made("a", campaign="tiles")
    api.made("b", campaign="tiles")
    for chunk in CHUNKS:
        api.complete(chunk, "a")
    api.fail("chunk-0000000", "b")
    api.tend()

    found = api.get("/campaigns/tiles")

    assert [member["run_id"] for member in found["members"]] == ["b", "a"]
    assert (found["counts"]["total"], found["counts"]["done"], found["is_finished"]) == (6, 3, False)
    assert ids(api, "campaign=tiles") == ["b", "a"]
    problem(api.ask("GET", "/campaigns/none"), 404, "not_found")


def test_compare__two_runs__reports_the_difference(api: Api) -> None:
    api.made("a")
    api.made("b", range=[0, 20])
    api.fail("chunk-0000000", "b")

    found = api.get("/fanouts/a/compare/b")

    assert found["asked_differently"] == ["source"]
    assert {each["name"]: each["after"] for each in found["figures"]}["chunks_failed"] == 1
    assert found["errors"][0]["error_class"] == "ValueError"


@pytest.mark.parametrize("name", ["progress", "durations", "attempts", "chunks", "workers"])
def test_plot__each__is_svg(api: Api, name: str) -> None:
    api.made()
    api.complete("chunk-0000000")
    api.clock.advance(5)

    for path in (f"/fanouts/r/plots/{name}.svg", f"/fanouts/r/plots/{name}"):
        answer = api.ask("GET", path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
        assert answer.text.lstrip().startswith("<svg")
    problem(api.ask("GET", "/fanouts/r/plots/pie.svg"), 404, "not_found")


def test_events__what_was_done__is_reported_in_order(api: Api) -> None:
    api.made()
    api.done("/fanouts/r/pause", {"by": "ann", "reason": "lunch"})
    api.done("/fanouts/r/resume")

    page = api.get("/fanouts/r/events?limit=1")
    rest = api.get(f"/fanouts/r/events?cursor={page['cursor']}")

    (first,) = page["events"]
    assert (first["kind"], first["by"], first["reason"]) == ("paused", "ann", "lunch")
    assert [each["kind"] for each in rest["events"]] == ["resumed"]


def test_rows_of_another_program__are_shown_as_far_as_they_go(api: Api) -> None:
    run = {"PK": "old", "SK": "RUN", "GSI1_PK": "grs-15", "GSI1_SK": "2026-02-17T10:00:00+00:00", "survey": "grs-15"}
    counts = {"created_at": "2026-02-17T10:00:00+00:00", "jobs_total": 2, "jobs_completed": 1, "jobs_failed": 1}
    chunk = {"PK": "old", "n_spectra": 500, "created_at": "2026-02-17T10:00:00+00:00"}
    failed = {"status": "FAILED", "error": "boom", "started_at": "2026-02-17T10:01:00+00:00"}
    api.store.put(FANOUT, {**run, **counts, "n_spectra": 1000, "n_chunks": 2})
    api.store.put(FANOUT, {**chunk, "SK": "CHUNK#chunk-0000000", "status": "COMPLETED", "output_key": "s3://x"})
    api.store.put(FANOUT, {**chunk, "SK": "CHUNK#chunk-0000500", **failed})

    shown = api.get("/fanouts/old")

    assert (shown["group"], shown["chunks"]["total"], shown["chunks"]["failed"]) == ("grs-15", 2, 1)
    assert ids(api, "group=grs-15&latest=true") == ["old"]
    assert [each["chunk_id"] for each in api.get("/fanouts/old/chunks")["chunks"]] == ["chunk-0000000", "chunk-0000500"]
    assert [each["error"] for each in api.get("/fanouts/old/failures")["chunks"]] == ["boom"]
    assert api.get("/fanouts/old/errors")["errors"] == 1
    problem(api.post("/fanouts/old/redrive", {"all": True}), 400, "user")


# Following


def sent(response: httpx.Response) -> list[tuple[str, Any]]:
    """Return the events of a stream, with their data."""
    found = []
    for block in response.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_watch__chunks_end__are_reported_until_the_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout_watch, "PAUSE_SECONDS", 0.01)
    api.made()

    async def talk(client: httpx.AsyncClient) -> httpx.Response:
        watching = asyncio.create_task(client.get("/fanouts/r/watch?for=20s"))
        await asyncio.sleep(0.1)
        for chunk in CHUNKS:
            body = {"worker": "w"}
            started = (await client.post(f"/fanouts/r/chunks/{chunk}/start", json=body)).json()
            await client.post(f"/fanouts/r/chunks/{chunk}/complete", json={"token": started["token"]})
        await asyncio.to_thread(api.tend)
        return await asyncio.wait_for(watching, 10)

    answer = api.session(talk)
    events = sent(answer)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[0][1]["chunks"]["completed"] == 0
    assert [name for name, _ in events] == ["state"] * (len(events) - 1) + ["end"]
    assert (events[-2][1]["is_finished"], events[-2][1]["chunks"]["completed"]) == (True, 3)
    assert (events[-1][1]["status"], events[-1][1]["items_ok"]) == ("SUCCEEDED", 30)


def test_watch__nothing_happens__ends_in_time_without_an_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout_watch, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(fanout_watch, "ALIVE_SECONDS", 0.05)
    api.made()

    answer = api.ask("GET", "/fanouts/r/watch?for=300ms")

    assert [name for name, _ in sent(answer)] == ["state"]
    assert ": alive" in answer.text
    problem(api.ask("GET", "/fanouts/r/watch?for=1d"), 400, "user")


# Chunks


def test_chunks__by_status_and_lane__are_those_that_match(api: Api) -> None:
    api.made()
    api.complete("chunk-0000010", deferred=[12, 13])

    def listed(query: str) -> list[str]:
        return [each["chunk_id"] for each in api.get(f"/fanouts/r/chunks?{query}")["chunks"]]

    assert listed("") == list(CHUNKS)
    assert listed("status=COMPLETED") == ["chunk-0000010"]
    assert listed("status=PENDING&limit=1") == ["chunk-0000000"]
    assert listed("lane=slow") == ["slow-0000010"]
    slow = api.start("slow-0000010")
    assert (slow["places"], slow["items"]) == ([12, 13], [12, 13])
    problem(api.ask("GET", "/fanouts/r/chunks?lane=fast"), 400, "bad_payload")
    problem(api.ask("GET", "/fanouts/r/chunks?cursor=slow|x"), 400, "bad_cursor")


def test_chunks__sparse_status__is_found_over_several_pages(api: Api) -> None:
    api.made(range=[0, 900], chunk_size=1)
    ended = [f"chunk-{number:07d}" for number in (3, 4, 5, 6, 7, 870)]
    for chunk_id in ended:
        api.complete(chunk_id)

    pages = _pages(api, "COMPLETED", 2)

    assert [chunk_id for page in pages for chunk_id in page] == ended
    assert len(pages) >= 3


def test_chunks__completed_behind_many_others__are_read_from_an_index(api: Api) -> None:
    api.made(range=[0, 6000], chunk_size=1)
    for number in (1, 900, 5998, 5999):
        api.complete(f"chunk-{number:07d}")
    before = api.store.stats.queries

    pages = _pages(api, "COMPLETED", 3)

    assert pages == [["chunk-0000001", "chunk-0000900", "chunk-0005998"], ["chunk-0005999"]]
    # Five for the first thousand rows, and two for the index.
    assert api.store.stats.queries - before <= 8
    assert api.get("/fanouts/r/chunks?status=COMPLETED")["total"] == 4
    assert api.done("/fanouts/r/reconcile")["findings"] == []


def test_chunks__completed_by_an_earlier_build__are_found_without_the_index(api: Api) -> None:
    api.made(range=[0, 3000], chunk_size=1)
    api.store.update(FANOUT, run_key("r"), remove=("lists_completed",))
    for number in (1, 2999):
        api.complete(f"chunk-{number:07d}")

    assert _pages(api, "COMPLETED", 2) == [["chunk-0000001", "chunk-0002999"]]


def test_chunks__many_retries_and_another_lane_in_the_index__are_not_read_for_nothing(api: Api) -> None:
    api.made(range=[0, 900], chunk_size=1, backoff_seconds=300)
    for number in range(899):
        api.fail(f"chunk-{number:07d}", is_final=False)
    api.complete("chunk-0000899", deferred=[899])
    before = api.store.stats.queries

    pending = api.get("/fanouts/r/chunks?status=PENDING&limit=10")
    assert (len(pending["chunks"]), pending["total"], api.store.stats.queries - before) == (10, 899, 1)
    before = api.store.stats.queries
    slow = api.get("/fanouts/r/chunks?status=PENDING&lane=slow")["chunks"]
    assert ([each["chunk_id"] for each in slow], api.store.stats.queries - before) == (["slow-0000899"], 1)


def test_chunks__no_chunk_is_cancelled__is_an_empty_page(api: Api) -> None:
    api.made(range=[0, 30])
    none = api.get("/fanouts/r/chunks?status=CANCELLED")
    assert (none["chunks"], none["cursor"], none["total"]) == ([], None, 0)


def test_chunks__cancelled__are_read_from_an_index(api: Api) -> None:
    api.made(range=[0, 900], chunk_size=1)
    for number in range(3):
        api.complete(f"chunk-{number:07d}")
    api.done("/fanouts/r/cancel", {"reason": "wrong input"})
    api.tend()
    before = api.store.stats.queries

    first = api.get("/fanouts/r/chunks?status=CANCELLED&limit=2")

    assert [each["chunk_id"] for each in first["chunks"]] == ["chunk-0000003", "chunk-0000004"]
    assert (first["total"], api.store.stats.queries - before) == (897, 1)
    assert sum(map(len, _pages(api, "CANCELLED", 500))) == 897
    # All that are done have been found: the cancelled ones behind them are not read.
    before = api.store.stats.queries
    assert _pages(api, "COMPLETED", 100) == [["chunk-0000000", "chunk-0000001", "chunk-0000002"]]
    assert api.store.stats.queries - before == 1


def test_chunks__cancelled_by_an_earlier_build__are_found_without_the_index(api: Api) -> None:
    api.made(range=[0, 30], chunk_size=1)
    api.store.update(FANOUT, run_key("r"), remove=("lists_cancelled",))
    api.done("/fanouts/r/cancel", {"reason": "wrong input"})
    api.tend()
    for number in range(30):
        key = chunk_key("r", f"chunk-{number:07d}")
        api.store.update(FANOUT, key, remove=("attention_pk", "attention_sk"))

    assert [len(page) for page in _pages(api, "CANCELLED", 12)] == [12, 12, 6]


@pytest.mark.parametrize(("query", "total"), [("", 30), ("status=FAILED", 2), ("status=PENDING&limit=3", 27)])
def test_chunks__first_page__has_the_number_of_all(api: Api, query: str, total: int) -> None:
    api.made(range=[0, 30], chunk_size=1, max_attempts=1)
    api.complete("chunk-0000000")
    for chunk_id in ("chunk-0000001", "chunk-0000002"):
        api.fail(chunk_id)

    assert api.get(f"/fanouts/r/chunks?{query}")["total"] == total
    assert api.get("/fanouts/r/failures?limit=1")["total"] == 2
    assert api.get("/fanouts/r/chunks?lane=slow")["total"] == 0


@pytest.mark.parametrize("status", ["FAILED", "IN_PROGRESS", "PENDING"])
def test_chunks__status_with_an_index__pages_are_full(api: Api, status: str) -> None:
    api.made(range=[0, 900], chunk_size=1, max_attempts=1)
    numbers = (5, 250, 500, 750, 899)
    for number in numbers if status != "PENDING" else [each for each in range(900) if each not in numbers]:
        chunk_id = f"chunk-{number:07d}"
        api.start(chunk_id) if status != "FAILED" else api.fail(chunk_id, is_final=False)

    pages = _pages(api, status, 2)

    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(chunk_id for page in pages for chunk_id in page) == [f"chunk-{number:07d}" for number in numbers]


def _pages(api: Api, status: str, limit: int) -> list[list[str]]:
    """Return the ids on each page of the chunks with a status."""
    pages: list[list[str]] = []
    cursor = ""
    while True:
        page = api.get(f"/fanouts/r/chunks?status={status}&limit={limit}{cursor}")
        pages.append([each["chunk_id"] for each in page["chunks"]])
        if page["cursor"] is None:
            return pages
        cursor = f"&cursor={page['cursor']}"


def test_chunk__tried_twice__has_its_attempts(api: Api) -> None:
    api.made(backoff_seconds=0)
    api.fail("chunk-0000000", is_final=False, message="first")
    api.clock.advance(1)
    api.complete("chunk-0000000", output={"sum": 45}, output_key="s3://out/0", duration_ms=12, memory_mb=33)

    shown = api.get("/fanouts/r/chunks/chunk-0000000")

    assert [(each["attempt"], each["outcome"], each.get("error")) for each in shown["attempts"]] == [
        (1, "FAILED", "first"),
        (2, "COMPLETED", None),
    ]
    assert (shown["output"], shown["output_key"], shown["duration_ms"]) == ({"sum": 45}, "s3://out/0", 12)
    problem(api.ask("GET", "/fanouts/r/chunks/chunk-0000007"), 404, "not_found")
    problem(api.ask("GET", "/fanouts/r/chunks/7"), 400, "bad_id")


def test_stuck__lease_over__is_reported_and_filtered_by_age(api: Api) -> None:
    api.made(timeout_seconds=60)
    api.start("chunk-0000000")
    assert api.get("/fanouts/r/stuck")["stuck"] == []

    api.clock.advance(100)
    found = api.get("/fanouts/r/stuck?older_than=30s")["stuck"]

    assert (found[0]["chunk_id"], found[0]["kind"], found[0]["seconds"]) == ("chunk-0000000", "RETRY_PENDING", 40)
    assert {each["kind"] for each in found[1:]} == {"NEVER_STARTED"}
    assert len(api.get("/fanouts/r/stuck?older_than=1h")["stuck"]) == 1
    assert api.get("/fanouts/r/stuck?older_than=30")["stuck"] == found
    problem(api.ask("GET", "/fanouts/r/stuck?older_than=long"), 400, "user")


def test_failures__chunks_and_items__are_listed_page_by_page(api: Api) -> None:
    api.made(range=[0, 50], max_attempts=1)
    api.fail("chunk-0000000", is_final=False)
    api.clock.advance(1)
    api.fail("chunk-0000010", is_final=False)
    api.fail("chunk-0000020", is_final=True)
    api.complete("chunk-0000030", item_errors={31: "ValueError: 31"}, deferred=[32])
    slow = api.start("slow-0000030")
    api.done("/fanouts/r/chunks/slow-0000030/complete", {"token": slow["token"], "item_errors": {32: "KeyError: 32"}})

    first = api.get("/fanouts/r/failures?limit=2")
    rest = api.get(f"/fanouts/r/failures?limit=2&cursor={first['cursor']}")

    assert [each["chunk_id"] for each in first["chunks"]] == ["chunk-0000000", "chunk-0000010"]
    assert [(each["chunk_id"], each["disposition"]) for each in rest["chunks"]] == [("chunk-0000020", "QUARANTINED")]
    items = api.get("/fanouts/r/failures?items=true")["chunks"]
    assert [each["item_errors"] for each in items] == [{"31": "ValueError: 31"}, {"32": "KeyError: 32"}]


def failed_in_many_ways(api: Api) -> None:
    """Make a fan-out of 50 items: a dead chunk, failed items in three chunks, and one in the slow lane."""
    api.made(range=[0, 50], max_attempts=1)
    api.fail("chunk-0000000", is_final=False)
    api.complete("chunk-0000010", item_errors={number: f"ValueError: bad {number}" for number in range(10, 17)})
    api.complete("chunk-0000020", item_errors={21: "KeyError: 'x'"})
    api.complete("chunk-0000030", item_errors={31: "ValueError: 31"}, deferred=[32])
    slow = api.start("slow-0000030")
    api.done("/fanouts/r/chunks/slow-0000030/complete", {"token": slow["token"], "item_errors": {32: "KeyError: 32"}})


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 100])
def test_items__failed__are_listed_once_each_over_pages_of_any_size(api: Api, limit: int) -> None:
    failed_in_many_ways(api)

    found: list[Any] = []
    cursor = ""
    while True:
        page = api.get(f"/fanouts/r/items?limit={limit}{cursor}")
        assert page["total"] == 20
        found += page["items"]
        assert len(page["items"]) == limit or page["cursor"] is None
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"

    assert [(each["index"], each["count"]) for each in found] == [
        (0, 10), *((number, 1) for number in range(10, 17)), (21, 1), (31, 1), (32, 1),
    ]  # fmt: skip
    assert (found[1]["chunk_id"], found[1]["error_class"], found[1]["message"]) == (
        "chunk-0000010", "ValueError", "bad 10",
    )  # fmt: skip


def test_items__by_error__are_those_that_match(api: Api) -> None:
    failed_in_many_ways(api)

    page = api.get("/fanouts/r/items?error_class=KeyError")

    assert ([each["index"] for each in page["items"]], page["total"]) == ([21, 32], None)
    by_print = api.get(f"/fanouts/r/items?fingerprint={page['items'][0]['fingerprint']}")
    assert [each["index"] for each in by_print["items"]] == [21]
    problem(api.ask("GET", "/fanouts/r/items?cursor=completed|x"), 400, "bad_cursor")


def test_errors__of_items__are_grouped_with_those_of_chunks(api: Api) -> None:
    failed_in_many_ways(api)

    groups = api.get("/fanouts/r/errors")["groups"]

    found = [(each["error_class"], each["count"], each["items"]) for each in groups]
    assert found[:2] == [("ValueError", 1, 10), ("ValueError", 7, 7)]
    assert sorted(found[2:]) == [("KeyError", 1, 1), ("KeyError", 1, 1), ("ValueError", 1, 1)]


def test_redrive__items__a_remote_worker_gets_only_those(api: Api) -> None:
    failed_in_many_ways(api)

    done = api.done("/fanouts/r/redrive", {"items": [31, 32, 21]})

    assert (done["redriven"], done["rerun_chunks"], done["rerun_items"]) == (2, 2, 3)
    started = api.start("chunk-0000030")
    assert (started["places"], started["items"]) == ([31, 32], [31, 32])
    api.done("/fanouts/r/chunks/chunk-0000030/complete", {"token": started["token"]})
    assert api.get("/fanouts/r")["items"] == {"total": 50, "ok": 22, "failed": 17, "deferred": 0, "open": 11}
    problem(api.post("/fanouts/r/redrive", {"items": [17]}), 409, "conflict")


def test_errors__alike__are_one_group(api: Api) -> None:
    api.made()
    for place, chunk in enumerate(CHUNKS):
        api.fail(chunk, message=f"item {place} is bad")

    (group,) = api.get("/fanouts/r/errors")["groups"]

    assert (group["count"], group["error_class"], len(group["chunk_ids"])) == (3, "ValueError", 3)


def test_dead_letters__taken_in__are_listed_with_their_message(api: Api) -> None:
    api.made()
    body = '{"run_id": "r", "chunk_id": "chunk-0000000"}'
    api.fanouts.dead_letters.record(body, receive_count=4)

    (letter,) = api.get("/fanouts/r/dead-letters")["dead_letters"]

    assert (letter["chunk_id"], letter["message"], letter["receive_count"]) == ("chunk-0000000", body, 4)
    assert letter["error_class"] == "DEAD_LETTER"


# Working from elsewhere


def test_start__a_chunk_that_waits__is_handed_over_with_its_items(api: Api) -> None:
    api.made(handler="jobs:run", params={"beta": 1}, heartbeat_seconds=20, timeout_seconds=300)

    started = api.start("chunk-0000010")

    assert (started["admission"], started["attempt"], started["start"]) == ("RUN", 1, 10)
    assert started["items"] == list(range(10, 20)) == started["places"]
    assert (started["params"], started["handler"], started["heartbeat_seconds"]) == ({"beta": 1}, "jobs:run", 20)
    assert started["lease_expires_at"] > api.get("/fanouts/r")["at"]


def test_start__not_to_be_run__says_why_and_gives_no_token(api: Api) -> None:
    api.made()
    api.start("chunk-0000000")
    api.complete("chunk-0000010")

    assert api.start("chunk-0000000") == {"admission": "BUSY", "run_id": "r", "chunk_id": "chunk-0000000"}
    assert api.start("chunk-0000010")["admission"] == "DUPLICATE"
    api.done("/fanouts/r/pause")
    assert api.start("chunk-0000020")["admission"] == "PAUSED"
    api.done("/fanouts/r/cancel")
    assert api.start("chunk-0000020")["admission"] == "CANCELLED"


def test_heartbeat__holder__keeps_the_chunk_and_receives_the_cancellation(api: Api) -> None:
    api.made(timeout_seconds=60)
    token = api.start("chunk-0000000")["token"]
    api.clock.advance(50)
    path = "/fanouts/r/chunks/chunk-0000000"

    beaten = api.done(f"{path}/heartbeat", {"token": token, "items_done": 4, "lease_seconds": 90})
    api.clock.advance(50)

    assert beaten["cancelled"] is False
    assert api.get(path)["items_done"] == 4
    assert api.start("chunk-0000000")["admission"] == "BUSY"
    api.done("/fanouts/r/cancel")
    assert api.done(f"{path}/heartbeat", {"token": token})["cancelled"] is True


def test_end__said_twice__is_the_same_answer_and_counted_once(api: Api) -> None:
    api.made(backoff_seconds=0)
    path = "/fanouts/r/chunks"
    done = {"token": api.start("chunk-0000000")["token"], "output": [1]}
    failed = {"token": api.start("chunk-0000010")["token"], "error_class": "E", "message": "m"}
    released = {"token": api.start("chunk-0000020")["token"]}

    for _ in range(2):
        assert api.done(f"{path}/chunk-0000000/complete", done)["disposition"] == "DONE"
        assert api.done(f"{path}/chunk-0000010/fail", failed)["disposition"] == "RETRYING"
        assert api.done(f"{path}/chunk-0000020/release", released)["disposition"] == "QUEUED"

    counts = api.get("/fanouts/r")["counts"]
    assert (counts["done"], counts["retrying"], counts["queued"], counts["attempts"]) == (1, 1, 1, 2)


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
def test_end__by_one_who_has_lost_the_chunk__is_409_and_changes_nothing(api: Api, verb: str) -> None:
    api.made(timeout_seconds=10)
    old = api.start("chunk-0000000")["token"]
    api.clock.advance(11)
    new = api.start("chunk-0000000")["token"]
    body = {"token": old} | ({"error_class": "E"} if verb == "fail" else {})

    refused = api.post(f"/fanouts/r/chunks/chunk-0000000/{verb}", body)

    assert "drop the result" in problem(refused, 409, "stale_claim")["detail"]
    assert old != new
    assert api.get("/fanouts/r/chunks/chunk-0000000")["status"] == "IN_PROGRESS"


def test_end__of_a_chunk_that_no_one_holds__is_409(api: Api) -> None:
    api.made()

    problem(api.post("/fanouts/r/chunks/chunk-0000000/complete", {"token": "-"}), 409, "stale_claim")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"item_errors": {"99": "x"}}, 400, "bad_payload"),
        ({"deferred": [99]}, 400, "bad_payload"),
        ({"deferred": [1], "item_errors": {"1": "x"}}, 400, "bad_payload"),
        ({"output": "x" * 300_000}, 413, "payload_too_large"),
        ({"memory_mb": -1}, 400, "bad_payload"),
        ({"colour": "red"}, 400, "bad_payload"),
    ],
)
def test_complete__bad_result__is_refused_and_the_chunk_still_held(
    api: Api, body: dict[str, Any], status: int, code: str
) -> None:
    api.made()
    token = api.start("chunk-0000000")["token"]

    problem(api.post("/fanouts/r/chunks/chunk-0000000/complete", {"token": token, **body}), status, code)

    assert api.get("/fanouts/r/chunks/chunk-0000000")["status"] == "IN_PROGRESS"


# Steering and mending


def test_steer__each__answers_with_how_it_is_then(api: Api) -> None:
    api.made()

    assert api.done("/fanouts/r/pause")["paused_at"]
    assert "paused_at" not in api.done("/fanouts/r/resume")
    api.done("/fanouts/r/tune", {"priority": 9, "concurrency": 2, "by": "ann"})
    assert api.get("/fanouts/r")["policy"]["concurrency"] == 2
    api.done("/fanouts/r/tune", {"concurrency": None})
    policy = api.get("/fanouts/r")["policy"]
    assert (policy["priority"], policy["concurrency"]) == (9, None)
    cancelled = api.post("/fanouts/r/cancel", {"reason": "enough"})
    assert (cancelled.status_code, cancelled.json()["reason"]) == (202, "enough")
    api.tend()
    assert api.get("/fanouts/r")["status"] == "CANCELLED"
    problem(api.post("/fanouts/r/pause"), 409, "conflict")


@pytest.mark.parametrize(
    ("body", "code"),
    [({}, "user"), ({"priority": 0}, "bad_definition"), ({"priority": None}, "bad_payload"), ({"x": 1}, "bad_payload")],
)
def test_tune__cannot_be__is_400(api: Api, body: dict[str, Any], code: str) -> None:
    api.made()

    problem(api.post("/fanouts/r/tune", body), 400, code)


def test_skip__named_or_all_that_failed__leaves_what_runs(api: Api) -> None:
    api.made(max_attempts=1)
    api.fail("chunk-0000000", is_final=False)
    api.start("chunk-0000010")

    assert api.done("/fanouts/r/skip", {"chunk_ids": ["chunk-0000010", "chunk-0000020"]}) == {
        "run_id": "r",
        "skipped": ["chunk-0000020"],
        "left": ["chunk-0000010"],
    }
    assert api.done("/fanouts/r/skip", {"failed": True})["skipped"] == ["chunk-0000000"]
    problem(api.post("/fanouts/r/skip"), 400, "user")
    problem(api.post("/fanouts/r/skip", {"failed": True, "chunk_ids": ["chunk-0000000"]}), 400, "user")
    problem(api.post("/fanouts/r/skip", {"chunk_ids": ["chunk-0000009"]}), 404, "not_found")


def test_redrive__failed_run__goes_on_and_succeeds(api: Api) -> None:
    api.made(max_attempts=1)
    api.wakeups.run_ids.clear()
    for chunk in CHUNKS:
        api.fail(chunk, is_final=False)
    api.tend()
    assert api.get("/fanouts/r")["status"] == "FAILED"

    counted = api.done("/fanouts/r/redrive", {"dispositions": ["DEAD"], "dry_run": True})
    assert (counted["redriven"], counted["is_dry_run"]) == (3, True)
    assert api.get("/fanouts/r")["status"] == "FAILED"
    done = api.done("/fanouts/r/redrive", {"error_class": "ValueError", "reason": "mended", "by": "ann"})
    assert (done["redriven"], api.get("/fanouts/r")["status"]) == (3, "RUNNING")
    assert "r" in api.wakeups.run_ids
    for chunk in CHUNKS:
        api.complete(chunk)
    api.tend()

    assert api.get("/fanouts/r")["status"] == "SUCCEEDED"
    problem(api.post("/fanouts/r/redrive", {"all": True}), 409, "conflict")
    problem(api.post("/fanouts/r/redrive"), 400, "bad_definition")
    problem(api.post("/fanouts/r/redrive", {"dispositions": ["DONE"]}), 400, "bad_definition")


def test_heal__by_its_policy__puts_dead_chunks_back(api: Api) -> None:
    api.made(max_attempts=1, heal_redrives_max=1)
    api.fail("chunk-0000000", is_final=False)

    assert api.done("/fanouts/r/heal", {"dry_run": True})["healed"] == 1
    healed = api.done("/fanouts/r/heal")

    assert (healed["healed"], healed["treated"][0]["action"]) == (1, "retry")
    assert api.get("/fanouts/r/chunks/chunk-0000000")["status"] == "PENDING"


def test_bisect__failed_chunk__becomes_two(api: Api) -> None:
    api.made(max_attempts=1)
    api.fail("chunk-0000000", is_final=False)

    cut = api.done("/fanouts/r/bisect", {"chunk_id": "chunk-0000000"})

    assert (cut["chunk"]["items"], cut["other"]["chunk_id"], cut["other"]["items"]) == (5, "chunk-0000005", 5)
    assert api.get("/fanouts/r")["chunks"]["total"] == 4
    problem(api.post("/fanouts/r/bisect", {"chunk_id": "chunk-0000010"}), 409, "conflict")


def test_reconcile__counter_tampered_with__is_found_and_repaired(api: Api) -> None:
    api.made()
    assert api.done("/fanouts/r/reconcile")["is_clean"] is True
    api.store.update(FANOUT, counter_key("r", 0), set={"queued": 7})

    found = api.done("/fanouts/r/reconcile")
    repaired = api.done("/fanouts/r/reconcile", {"repair": True})

    assert (found["is_clean"], found["findings"][0]["is_repaired"]) == (False, False)
    assert all(each["is_repaired"] for each in repaired["findings"])
    assert api.done("/fanouts/r/reconcile")["is_clean"] is True
    assert api.get("/fanouts/r")["counts"]["queued"] == 3


# The document


def test_openapi__asked__describes_every_operation_with_schemas_that_are_there(api: Api) -> None:
    document = api.ask("GET", "http://127.0.0.1:8400/api/openapi.json")
    paths, schemas = document.json()["paths"], document.json()["components"]["schemas"]

    made = paths["/api/v1/fanouts"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert made == {"$ref": "#/components/schemas/fanout.NewFanout"}
    assert {"max_attempts", "lines", "run_id"} <= schemas["fanout.NewFanout"]["properties"].keys()
    assert {each["name"] for each in paths["/api/v1/fanouts"]["get"]["parameters"]} >= {"group", "since", "latest"}
    referred = {part.split('"')[0] for part in document.text.split("#/components/schemas/")[1:]}
    assert referred <= schemas.keys()
    identifiers = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(set(identifiers)) == len(identifiers)
