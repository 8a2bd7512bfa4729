"""Logs carry the correlation id and no secrets; metrics have a registry of their own; spans cost nothing when off."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import prometheus_client
import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate.settings import Secret
from headgate.telemetry import Metrics, Tracing, configure_logs, correlated, correlation_id, is_correlation_id


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    named = [
        logging.getLogger(name) for name in ("headgate", "statestore", "boto3", "botocore", "s3transfer", "urllib3")
    ]
    levels = [logger.level for logger in named]
    try:
        yield io.StringIO()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for logger, before in zip(named, levels, strict=True):
            logger.setLevel(before)
        structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_logs__json_style__one_object_a_line_with_time_level_and_facts(stream: io.StringIO) -> None:
    configure_logs(style="json", level="info", stream=stream)

    structlog.get_logger("headgate.test").info("run started", action="run.start", run_id="run_1")

    (line,) = _lines(stream)
    assert line["event"] == "run started"
    assert line["level"] == "info"
    assert line["action"] == "run.start"
    assert line["at"].endswith("Z")


def test_logs__inside_a_correlated_block__carry_the_id_there_and_only_there(stream: io.StringIO) -> None:
    configure_logs(style="json", level="info", stream=stream)
    log = structlog.get_logger("headgate.test")

    with correlated("req-7"):
        log.info("inside")
        logging.getLogger("some.library").warning("a library speaks: %s", "hello")
    log.info("outside")

    inside, library, outside = _lines(stream)
    assert inside["correlation_id"] == "req-7"
    assert library["correlation_id"] == "req-7"
    assert library["event"] == "a library speaks: hello"
    assert "correlation_id" not in outside


def test_logs__below_the_level__are_not_written(stream: io.StringIO) -> None:
    configure_logs(style="json", level="warning", stream=stream)

    structlog.get_logger("headgate.test").info("chatter")
    logging.getLogger("some.library").info("chatter")

    assert stream.getvalue() == ""


@pytest.mark.parametrize("style", ["json", "console"])
def test_logs__secrets_in_names_nested_values_and_urls__are_hidden(stream: io.StringIO, style: Any) -> None:
    configure_logs(style=style, level="info", stream=stream)

    structlog.get_logger("headgate.test").info(
        "connected to redis://user:hunter2@cache/0",
        api_key="hunter2",
        headers={"Authorization": "hunter2", "inner": [{"session_token": "hunter2"}]},
        url="https://user:hunter2@example.org/path",
        password="hunter2",
        redis=Secret("hunter2"),
        error=ValueError("redis://:hunter2@cache refused"),
        tokens_used=12,
        pwd="hunter2",
        sessionToken="hunter2",
        slash="redis://:a/hunter2@cache",
        sign="redis://user:a@hunter2@cache and more",
        quoted="redis://user:a'hunter2@cache",
        query="redis://cache/0?db=1&password=hunter2&x=1",
        signed="https://s3/x?X-Amz-Security-Token=hunter2",
        raw=b"redis://:hunter2@cache",
    )

    text = stream.getvalue()
    assert "hunter2" not in text
    assert "example.org/path" in text
    assert "and more" in text
    assert "&x=1" in text
    assert "12" in text


def test_logs__an_exception__shows_the_traceback_without_local_variables(stream: io.StringIO) -> None:
    configure_logs(style="json", level="info", stream=stream)

    def fail() -> None:
        local = "hunter" + "2"
        raise ValueError(len(local))

    try:
        fail()
    except ValueError as exc:
        structlog.get_logger("headgate.test").error("failed", exc_info=exc)

    (line,) = _lines(stream)
    assert "ValueError: 7" in line["exception"]
    assert "hunter2" not in stream.getvalue()


def test_logs__configured_twice__each_line_is_written_once(stream: io.StringIO) -> None:
    configure_logs(style="json", level="info", stream=stream)
    configure_logs(style="json", level="info", stream=stream)

    structlog.get_logger("headgate.test").info("once")

    assert len(_lines(stream)) == 1


def test_correlation__tasks_at_the_same_time__each_see_their_own() -> None:
    async def task(identifier: str) -> str | None:
        with correlated(identifier):
            await asyncio.sleep(0)
            return correlation_id()

    async def both() -> list[str | None]:
        return list(await asyncio.gather(task("a"), task("b")))

    assert asyncio.run(both()) == ["a", "b"]
    assert correlation_id() is None


@pytest.mark.parametrize("text", ["a", "req_01J", "A-b.c:d_9", "x" * 64])
def test_correlation_id__short_and_plain__is_accepted(text: str) -> None:
    assert is_correlation_id(text)


@pytest.mark.parametrize("text", ["", "x" * 65, "a b", "a\nb", "a\r\nSet-Cookie: x", "é", "-a", "a\n", '"'])
def test_correlation_id__anything_else__is_not(text: str) -> None:
    assert not is_correlation_id(text)


def test_span__tracing_off__is_one_shared_object_and_nothing_is_allocated() -> None:
    tracing = Tracing()
    first: object = tracing.span("a")
    gc.collect()
    before = len(gc.get_objects())

    for _ in range(100):
        with tracing.span("b", run_id="run_1") as span:
            span.set_attribute("rows", 3)
            assert span is first

    assert len(gc.get_objects()) - before < 10


def test_span__tracing_off__opentelemetry_is_never_imported() -> None:
    program = """
import sys
from headgate.telemetry import Tracing, configure_logs
configure_logs(style="json", level="info")
with Tracing().span("a", parent={"traceparent": "x"}, rows=1):
    pass
Tracing().close()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def _traced() -> tuple[Tracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Tracing.start(service_name="headgate", otlp_endpoint="http://unused", exporter=exporter), exporter


def test_span__tracing_on__is_exported_with_attributes_correlation_id_and_parent() -> None:
    tracing, exporter = _traced()
    trace_id = "0af7651916cd43dd8448eb211c80319c"

    with (
        correlated("req-7"),
        tracing.span("outer", parent={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}, run_id="run_1"),
        tracing.span("inner") as inner,
    ):
        inner.set_attribute("rows", 3)
    tracing.close()

    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert dict(spans["outer"].attributes or {}) == {"run_id": "run_1", "correlation_id": "req-7"}
    assert dict(spans["inner"].attributes or {}) == {"rows": 3, "correlation_id": "req-7"}
    assert f"{spans['inner'].context.trace_id:032x}" == trace_id
    assert spans["inner"].parent == spans["outer"].context


def test_span__the_work_fails__the_span_says_so_and_the_error_goes_on() -> None:
    tracing, exporter = _traced()

    with pytest.raises(ZeroDivisionError), tracing.span("work"):
        _ = 1 / 0
    tracing.close()

    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert span.events[0].name == "exception"


@pytest.mark.parametrize(("suffix", "path"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/custom/in", "/custom/in")])
def test_tracing__over_otlp__spans_arrive_at_the_collector(suffix: str, path: str) -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{collector.server_port}{suffix}"
        tracing = Tracing.start(service_name="gate-7", otlp_endpoint=endpoint)
        with tracing.span("http.request"):
            pass
        tracing.close()
        collector.shutdown()
        thread.join()

    ((at, body),) = received
    assert at == path
    assert b"http.request" in body
    assert b"gate-7" in body


def test_metrics__two_of_them__share_nothing_with_each_other_or_the_global_registry() -> None:
    first, second = Metrics(version="1.2.3"), Metrics(version="1.2.3")
    prometheus_client.Counter("headgate_only_here", "x", registry=first.registry).inc()

    assert b"headgate_only_here_total 1.0" in first.render()
    assert b"headgate_only_here" not in second.render()
    assert b"headgate" not in prometheus_client.generate_latest()


def test_metrics__store_counters_and_version__are_read_when_asked_for() -> None:
    metrics = Metrics(version="1.2.3")
    counters = {"reads": 1, "throttles": 0}
    metrics.watch_store(lambda: counters)
    counters["reads"] = 5

    text = metrics.render().decode()

    assert "headgate_store_reads_total 5.0" in text
    assert "headgate_store_throttles_total 0.0" in text
    assert 'headgate_info{version="1.2.3"} 1.0' in text
    assert "process_resident_memory_bytes" in text


def test_logs__debug__is_for_our_own_lines_and_not_for_what_libraries_send(stream: io.StringIO) -> None:
    configure_logs(style="json", level="debug", stream=stream)

    structlog.get_logger("headgate.test").debug("ours")
    structlog.get_logger("statestore.service").debug("the state store's")
    logging.getLogger("botocore.auth").debug("x-amz-security-token:hunter2")
    logging.getLogger("botocore.auth").info("x-amz-security-token:hunter2")
    logging.getLogger("some.library").debug("hunter2")
    logging.getLogger("some.library").info("a library")
    logging.getLogger("botocore").warning("a warning")

    assert [line["event"] for line in _lines(stream)] == ["ours", "the state store's", "a library", "a warning"]


def test_logs__error__silences_warnings_of_libraries_too(stream: io.StringIO) -> None:
    configure_logs(style="json", level="error", stream=stream)

    logging.getLogger("botocore").warning("chatter")
    logging.getLogger("some.library").warning("chatter")
    structlog.get_logger("headgate.test").warning("chatter")

    assert stream.getvalue() == ""
