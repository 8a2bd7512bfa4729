"""The server as Airflow tasks reach it: repeated after transient failures, refused at once otherwise, the key kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headgate_airflow.rulings import Question, Ruling
from headgate_airflow.server import (
    Address,
    AddressError,
    HeadgateServer,
    RequestRefusedError,
    ServerUnavailableError,
    address_of,
)

ALLOWED = {"decision": "allow", "datasets": [], "overridable_by": []}
REFUSED = {"code": "unauthenticated", "detail": "API key: unknown; issue another"}
QUESTION = Question(("urn:dp:shop:orders:v1",))


class Site:
    """A server that gives prepared answers, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any, dict[str, str]]] = []
        self.seen: list[tuple[str, str, Any]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                site.seen.append((self.path, self.headers.get("authorization", ""), body))
                status, answer, headers = site.answers.pop(0)
                content = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"content-length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def server(url: str, pauses: list[float], retry_seconds: float = 30.0) -> HeadgateServer:
    return HeadgateServer(
        Address(url, "hg_key"),
        retry_seconds=retry_seconds,
        sleep=pauses.append,
        monotonic=lambda: sum(pauses),
    )


def test_gate__busy_server__is_asked_again_after_the_time_it_gives(site: Site) -> None:
    site.answers = [(503, {}, {"retry-after": "7"}), (200, ALLOWED, {})]
    pauses: list[float] = []

    found = server(site.url, pauses).gate(QUESTION)

    assert (found.decision, pauses) == (Ruling.ALLOW, [7.0])
    assert site.seen == [("/api/v1/gate", "Bearer hg_key", QUESTION.body())] * 2


def test_report__busy_server__is_sent_the_same_event_again(site: Site) -> None:
    site.answers = [(502, {}, {}), (201, {"event_id": "1"}, {})]

    server(site.url, []).report({"eventType": "START"})

    assert site.seen == [("/api/v1/lineage", "Bearer hg_key", {"eventType": "START"})] * 2


def test_gate__server_that_stays_busy__is_unavailable_in_the_end(site: Site) -> None:
    site.answers = [(503, {}, {})] * 50
    pauses: list[float] = []

    with pytest.raises(ServerUnavailableError, match="503"):
        server(site.url, pauses).gate(QUESTION)

    assert 5 < len(pauses) < 50
    assert sum(pauses) <= 30


def test_gate__no_server__is_unavailable(site: Site) -> None:
    with pytest.raises(ServerUnavailableError, match="ConnectError"):
        server("http://127.0.0.1:9", [], retry_seconds=0).gate(QUESTION)


def test_gate__refusal__is_not_repeated_and_names_the_reason(site: Site) -> None:
    site.answers = [(401, REFUSED, {})]

    with pytest.raises(RequestRefusedError, match=r"401 unauthenticated: API key: unknown; issue another"):
        server(site.url, []).gate(QUESTION)

    assert len(site.seen) == 1


@pytest.mark.parametrize("answer", [(200, [], {}), (302, {}, {"location": "https://elsewhere.example"})])
def test_gate__answer_of_something_else__is_refused(site: Site, answer: tuple[int, Any, dict[str, str]]) -> None:
    site.answers = [answer]

    with pytest.raises(RequestRefusedError):
        server(site.url, []).gate(QUESTION)


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        (("headgate.example", None, None), "https://headgate.example"),
        (("headgate.example", 8443, "https"), "https://headgate.example:8443"),
        (("127.0.0.1", 8400, None), "http://127.0.0.1:8400"),
        (("https://headgate.example/", None, None), "https://headgate.example"),
    ],
)
def test_address__fields_of_a_connection__are_a_url(fields: tuple[str, int | None, str | None], url: str) -> None:
    host, port, scheme = fields

    assert address_of(host, port, scheme, "hg_key", None).url == url


def test_address__key_over_plain_http_to_another_machine__is_refused() -> None:
    with pytest.raises(AddressError, match="unencrypted"):
        address_of("headgate.example", 8400, "http", "hg_key", None)
    assert "hg_key" not in repr(Address("https://headgate.example", "hg_key"))


@pytest.mark.parametrize("host", [None, "", "ftp://headgate.example", "https://"])
def test_address__no_host__is_refused(host: str | None) -> None:
    with pytest.raises(AddressError):
        address_of(host, None, None, None, None)
