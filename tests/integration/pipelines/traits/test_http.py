"""Evaluators that are services: real servers on this machine, that answer well, badly, elsewhere and never."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler

import pytest

from headgate.clock import Clock, SystemClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.traits.http import HttpEvaluator
from headgate.pipelines.traits.protocol import Answer
from tests.unit.pipelines.evaluator_rig import NotedClock, Server, answering, question, reply, serving

HERE = Destinations(hosts=("127.0.0.1",), plain_http=True)
PASS = b'{"status": "PASS", "reason": "fresh", "value": {"lag": 3}}'


def ask(server: Server | str, *, clock: Clock | None = None, timeout: float = 10.0) -> Answer:
    evaluator = HttpEvaluator(clock or NotedClock(), HERE)
    url = server if isinstance(server, str) else f"{server.url}/evaluate"
    return evaluator.evaluate(question(url, timeout=timeout, maxLag=300))


def test_http__answers_well__is_what_it_says() -> None:
    with serving(answering(200, PASS)) as server:
        answer = ask(server)
    assert answer == Answer(status=TraitStatus.PASS, reason="fresh", value={"lag": 3})
    assert server.methods == ["POST"]
    assert server.headers[0]["content-type"] == "application/json"
    assert json.loads(server.bodies[0]) == {"pipelineId": "orders", "traitType": "fresh", "config": {"maxLag": 300}}


@pytest.mark.parametrize(
    ("status", "category", "tries"),
    [
        (400, FailureCategory.PERMANENT, 1),
        (404, FailureCategory.PERMANENT, 1),  # bug 40
        (408, FailureCategory.PERMANENT, 1),
        (429, FailureCategory.TRANSIENT, 4),  # bug 41
        (500, FailureCategory.TRANSIENT, 1),  # bug 40
        (502, FailureCategory.TRANSIENT, 4),
        (503, FailureCategory.TRANSIENT, 4),
        (504, FailureCategory.TRANSIENT, 4),
    ],
)
def test_http__answers_with_an_error_status__is_an_error_and_never_not_ready__bugs_40_41(
    status: int, category: FailureCategory, tries: int
) -> None:
    clock = NotedClock()
    with serving(answering(status, b"no\x1b[31m luck")) as server:
        answer = ask(server, clock=clock)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, category)
    assert len(server.bodies) == tries
    assert clock.pauses == [0.5, 1.0, 2.0][: tries - 1]
    assert str(status) in answer.reason
    assert "\x1b" not in answer.reason  # bug 82
    # bug 41: what is passing counts against the evaluator, what is permanent does not.
    assert answer.is_setback is (category is FailureCategory.TRANSIENT)


def test_http__is_busy_at_first__is_asked_again() -> None:
    def respond(request: BaseHTTPRequestHandler, before: int) -> None:
        reply(request, 503 if before < 2 else 200, PASS)

    clock = NotedClock()
    with serving(respond) as server:
        assert ask(server, clock=clock).status is TraitStatus.PASS
    assert clock.pauses == [0.5, 1.0]


def test_http__no_time_left_for_a_pause__is_not_asked_again() -> None:
    clock = NotedClock()
    with serving(answering(503)) as server:
        answer = ask(server, clock=clock, timeout=0.4)
    assert (answer.status, answer.category, clock.pauses) == (TraitStatus.ERROR, FailureCategory.TRANSIENT, [])


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"status": "YES"}', b'{"status": "PASS"', b"\xff\xfe"])
def test_http__answers_what_is_no_answer__is_a_permanent_error(body: bytes) -> None:
    with serving(answering(200, body)) as server:
        answer = ask(server)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)


def test_http__answers_with_ten_megabytes__is_cut_and_refused() -> None:
    with serving(answering(200, b'{"status": "PASS", "reason": "' + b"x" * 10_000_000 + b'"}')) as server:
        answer = ask(server)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert "more than" in answer.reason
    assert len(answer.reason) < 600


@pytest.mark.parametrize("kind", ["silent", "drip", "endless"])
def test_http__never_comes_to_an_end__is_bounded(kind: str) -> None:
    def respond(request: BaseHTTPRequestHandler, _before: int) -> None:
        if kind == "silent":
            time.sleep(5)
            return
        request.send_response(200)
        request.send_header("content-length", "100000000")
        request.end_headers()
        for _ in range(50):
            request.wfile.write(b" " if kind == "drip" else b" " * 100_000)
            request.wfile.flush()
            time.sleep(0.1 if kind == "drip" else 0)

    began = time.monotonic()
    with serving(respond) as server:
        answer = ask(server, clock=SystemClock(), timeout=0.6)
        took = time.monotonic() - began
    assert took < 3
    if kind == "endless":
        assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    else:
        assert (answer.status, answer.category) == (TraitStatus.FAIL, FailureCategory.TIMEOUT)
        assert answer.reason.startswith("EVALUATOR_TIMEOUT")


def test_http__redirects_to_a_private_address__is_not_followed__bug_79() -> None:
    with serving(answering(200, PASS)) as inner:
        leads = [f"http://localhost:{inner.port}/", "http://169.254.169.254/latest/meta-data/", f"{inner.url}/other"]
        for status in (301, 302, 307, 308):
            for lead in leads:
                with serving(answering(status, location=lead)) as outer:
                    answer = ask(outer)
                assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
                assert "redirects are not followed" in answer.reason
    assert inner.bodies == []


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.1.2.3"], ["169.254.169.254"], ["::1"], ["::ffff:127.0.0.1"], ["8.8.8.8", "127.0.0.1"]],
)
def test_http__name_leads_to_a_private_address__is_never_connected__bug_79(addresses: list[str]) -> None:
    looked_up: list[str] = []

    def resolve(host: str, _port: int) -> list[str]:
        looked_up.append(host)
        return addresses

    with serving(answering(200, PASS)) as server:
        evaluator = HttpEvaluator(NotedClock(), Destinations(plain_http=True), resolve=resolve)
        answer = evaluator.evaluate(question(f"http://evaluator.example:{server.port}/"))
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert "is not a public address" in answer.reason
    assert server.bodies == []
    assert looked_up == ["evaluator.example"]


def test_http__name_leads_elsewhere_the_second_time__the_address_that_was_checked_is_used__bug_79() -> None:
    answers = [["127.0.0.1"], ["10.0.0.1"]]

    def resolve(_host: str, _port: int) -> list[str]:
        return answers.pop(0)

    with serving(answering(200, PASS)) as server:
        evaluator = HttpEvaluator(
            NotedClock(), Destinations(networks=("127.0.0.0/8",), plain_http=True), resolve=resolve
        )
        url = f"http://evaluator.example:{server.port}/"
        assert evaluator.evaluate(question(url)).status is TraitStatus.PASS
        assert evaluator.evaluate(question(url)).category is FailureCategory.PERMANENT
    assert len(server.bodies) == 1
    assert server.headers[0]["host"] == f"evaluator.example:{server.port}"


@pytest.mark.parametrize(
    "url",
    ["http://", "https://user:secret@example.com/", "https:///path"],
)
def test_http__address_is_none__is_a_permanent_error(url: str) -> None:
    answer = ask(url)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert "secret" not in answer.reason


def test_http__plain_where_only_tls_is_allowed__is_a_permanent_error() -> None:
    evaluator = HttpEvaluator(NotedClock(), Destinations(hosts=("127.0.0.1",)))
    with serving(answering(200, PASS)) as server:
        assert evaluator.evaluate(question(server.url)).category is FailureCategory.PERMANENT
    assert server.bodies == []


def test_http__no_one_listens__is_a_passing_error() -> None:
    with serving(answering(200, PASS)) as server:
        pass
    answer = ask(server)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.TRANSIENT)
    assert answer.is_setback


def test_http__breaks_off__is_a_passing_error() -> None:
    def respond(request: BaseHTTPRequestHandler, _before: int) -> None:
        request.send_response(200)
        request.send_header("content-length", "1000")
        request.end_headers()
        request.wfile.write(b'{"status":')
        request.close_connection = True

    with serving(respond) as server:
        answer = ask(server)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.TRANSIENT)


def test_http__a_time_of_hours__is_cut_to_a_minute() -> None:
    class Late(NotedClock):
        """Each look at it is 20 seconds later."""

        def __init__(self) -> None:
            super().__init__()
            self.elapsed = 0.0
            self.monotonic = self.later

        def later(self) -> float:
            self.elapsed += 20
            return self.elapsed

    with serving(answering(200, PASS)) as server:
        answer = ask(server, clock=Late(), timeout=7200)
    assert answer.category is FailureCategory.TIMEOUT
    assert "60 s" in answer.reason
