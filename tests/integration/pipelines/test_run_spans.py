"""Traces of runs: from the request over the lifecycle to the job, in one trace; and what log lines carry."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import telemetry
from headgate.pipelines.run_spans import RunSpans
from headgate.telemetry import Tracing, continued, trace_id_of, traceparent, traceparent_of
from tests.pipeline_rig import DATE, Rig, slot_of, waiting_pipeline


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[Tracing]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = Tracing(provider)
    yield made
    made.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.define(waiting_pipeline())
        yield made


def run_once(rig: Rig) -> None:
    rig.advance(30)
    rig.push("silver", "orders", count=12)
    rig.advance(10)
    rig.pipelines.jobs.complete(rig.run(slot_of()).run_id, is_success=True)
    rig.pump()


def spans_of(rig: Rig, tracing: Tracing, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    recorder = RunSpans(tracing)
    for change in rig.all_changes():
        recorder.on_change(change)
    return {span.name: span for span in exporter.get_finished_spans()}


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_spans__run_that_a_pushed_sensor_started__are_one_trace_with_the_request(
    rig: Rig, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    with tracing.span("http.request"):
        rig.pipelines.sensors.push("silver", "landed", {"date": DATE})
    rig.pump()
    run_once(rig)

    spans = spans_of(rig, tracing, exporter)

    request, root = spans["http.request"], spans["pipeline.run"]
    assert root.parent is not None
    assert root.parent.span_id == request.context.span_id
    parts = ("pipeline.admission", "pipeline.readiness", "pipeline.trigger", "pipeline.job")
    for name in parts:
        parent = spans[name].parent
        assert parent is not None
        assert (parent.span_id, spans[name].context.trace_id) == (root.context.span_id, request.context.trace_id), name
    assert seconds(spans["pipeline.readiness"]) == pytest.approx(30, abs=1)
    assert seconds(spans["pipeline.job"]) == pytest.approx(10, abs=1)
    run = rig.run(slot_of())
    assert root.attributes is not None
    assert (root.attributes["run_id"], root.attributes["status"]) == (run.run_id, "COMPLETED")
    assert trace_id_of(run.traceparent) == f"{request.context.trace_id:032x}"


def test_spans__change_that_is_no_end__and_tracing_that_is_off__record_nothing(
    rig: Rig, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    rig.push("silver", "landed", date=DATE)

    assert spans_of(rig, tracing, exporter) == {}
    run_once(rig)
    assert spans_of(rig, Tracing(), exporter) == {}


def test_traceparent__run_that_no_request_started__is_the_same_for_the_same_execution(rig: Rig) -> None:
    rig.push("silver", "landed", date=DATE)

    run = rig.run(slot_of())

    assert run.traceparent == traceparent_of(run.execution)
    assert len(trace_id_of(run.traceparent)) == 32


def test_continued__stored_context__is_that_of_new_work_and_nonsense_is_none() -> None:
    stored = traceparent_of("x")
    with continued(stored):
        assert traceparent() == stored
    with continued("nonsense"):
        assert traceparent() == ""
    assert traceparent() == ""


def test_log__of_a_call_of_the_lifecycle__carries_pipeline_run_and_trace(
    rig: Rig,
) -> None:
    rig.push("silver", "landed", date=DATE)
    run = rig.run(slot_of())
    lines = io.StringIO()
    telemetry.configure_logs(style="json", level="info", stream=lines)
    log = structlog.get_logger("headgate.test")
    # The trigger logs while the lifecycle calls it.
    rig.jobs.meanwhile = lambda _order: log.info("inside")

    rig.call(slot_of(), mode="trigger", runId=run.run_id, lockToken=run.lock_token)
    log.info("outside")

    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    inside = next(line for line in found if line["event"] == "inside")
    outside = next(line for line in found if line["event"] == "outside")
    assert (inside["pipeline"], inside["run"]) == ("silver", run.run_id)
    assert inside["trace_id"] == trace_id_of(run.traceparent)
    assert "run" not in outside
