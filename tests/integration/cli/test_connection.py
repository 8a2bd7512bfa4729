"""Connection to a server: requests, responses, streams and connection errors."""

from __future__ import annotations

import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headgate.cli.connection import Connection, Reply
from headgate.errors import SettingsError, TransientError
from tests.integration.cli.http_peer import Peer, responds
from tests.integration.serve.http.connection.test_tls import make_files


def test_request__query_body_and_key__arrive_as_they_were_given(peer: Peer) -> None:
    peer.response = responds(200, b'{"a": 1}')
    connection = Connection(peer.url, key="hg_key")

    reply = connection.request(
        "PUT", "/x%2Fy", query={"tag": ["a:1", "b c"], "all": True}, content=b"t", headers={"content-type": "text/x"}
    )

    assert (reply.status, reply.content, reply.is_error) == (200, b'{"a": 1}', False)
    ((method, path, headers, body),) = peer.requests
    assert (method, path, body) == ("PUT", "/api/v1/x%2Fy?tag=a%3A1&tag=b+c&all=true", b"t")
    assert (headers["authorization"], headers["content-type"]) == ("Bearer hg_key", "text/x")


@pytest.mark.parametrize("status", [302, 404, 409, 503])
def test_request__anything_but_success__is_returned_and_no_one_is_followed(peer: Peer, status: int) -> None:
    peer.response = responds(status, b"no", location=f"{peer.url}/elsewhere")

    reply = Connection(peer.url, key="hg_key").request("GET", "/x", query={})

    assert (reply.status, reply.content, reply.is_error, len(peer.requests)) == (status, b"no", True, 1)


def test_request__proxy_of_the_machine__is_not_for_what_is_near(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.response = responds(200, b"")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert Connection(peer.url).request("GET", "/x", query={}).status == 200


def test_request__no_one_there__is_reported_from_what_broke_off(peer: Peer) -> None:
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "100")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    peer.response = half

    with pytest.raises(TransientError, match="connection lost"):
        Connection(peer.url).request("GET", "/x", query={})
    with pytest.raises(TransientError, match="no server is running there; start one with 'headgate up'"):
        Connection("http://127.0.0.1:1").request("GET", "/x", query={})


def test_request__refused_before_all_of_it_was_sent__is_given_the_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1)
                peer.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                # Closed with most of the body unread, so that the other side's writes fail.

        refusing = threading.Thread(target=refuse)
        refusing.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        reply = Connection(url).request("POST", "/x", query={}, content=b"x" * 20_000_000)
        refusing.join()

    assert (reply.status, reply.content) == (413, b"{}")


def test_request__cut_off_while_sending_and_no_answer__is_reported_as_broken_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1)

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransientError, match="connection lost"):
            Connection(url).request("POST", "/x", query={}, content=b"x" * 20_000_000)
        hanging.join()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8400", "ftp://x", "http://", "http://[x", "http://a:b", "http://a b"])
def test_address__that_cannot_be_asked__is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="invalid address"):
        Connection(url).request("GET", "/x", query={})


def test_key__in_clear_to_another_machine__is_not_sent() -> None:
    with pytest.raises(SettingsError, match="the API key would be sent unencrypted"):
        Connection("http://gate.example:8400", key="hg_key")


def test_lines__as_they_come__are_given_before_the_end(peer: Peer) -> None:
    is_read = threading.Event()

    def stream(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"8\r\none\r\ntwo\r\n")
        handler.wfile.flush()
        assert is_read.wait(10), "the first line was given only with the rest"
        handler.wfile.write(b"2\r\n\r\n\r\n0\r\n\r\n")

    peer.response = stream

    with Connection(peer.url).lines("/x", query={}, headers={"last-event-id": "7"}) as lines:
        assert not isinstance(lines, Reply)
        assert next(lines) == "one"
        is_read.set()
        assert list(lines) == ["two"]
    assert peer.requests[0][2]["last-event-id"] == "7"


def test_lines__error__is_given_whole(peer: Peer) -> None:
    peer.response = responds(404, b"{}")

    with Connection(peer.url).lines("/x", query={}, headers={}) as lines:
        assert lines == Reply(f"{peer.url}/api/v1/x", 404, b"{}")


def test_lines__the_caller_that_reads_them_fails__is_not_taken_for_the_connection(peer: Peer) -> None:
    peer.response = responds(200, b"one\n")

    with (
        pytest.raises(BrokenPipeError),
        Connection(peer.url).lines("/x", query={}, headers={}) as lines,
    ):
        assert not isinstance(lines, Reply)
        for _ in lines:
            raise BrokenPipeError


def test_request__with_tls__is_answered_and_a_refusal_received_or_reported_as_broken_off(tmp_path: Path) -> None:
    cert, key = make_files(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    answers = [b"HTTP/1.1 200 OK", b"HTTP/1.1 413 Too Large"]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for line in answers:
                plain, _ = listener.accept()
                with context.wrap_socket(plain, server_side=True) as peer:
                    peer.recv(65_536)
                    peer.sendall(line + b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

        answering = threading.Thread(target=answer)
        answering.start()
        connection = Connection(f"https://127.0.0.1:{listener.getsockname()[1]}", ca=cert)
        assert connection.request("GET", "/x", query={}).status == 200
        # What was sent last may be lost together with the connection; what arrives is true.
        try:
            assert connection.request("POST", "/x", query={}, content=b"x" * 20_000_000).status == 413
        except TransientError as exc:
            assert "connection lost" in exc.message
        answering.join()
