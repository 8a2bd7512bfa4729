"""Telemetry: structured logs with a correlation id, a Prometheus registry, and OpenTelemetry spans (free when off).

Libraries are imported where they are used: importing this module is cheap, and a process without tracing never loads
OpenTelemetry.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TextIO

from headgate.span_export import Attribute, SpanExport, SpanRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext
    from prometheus_client import CollectorRegistry, Metric
    from structlog.typing import Processor

_CORRELATION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_SECRET_NAME: Final = re.compile(
    r"secret|passw|pwd|credential|authorization|cookie|session_?token|(^|[_.-])(tokens?|redis_url|(api|private|access)[_-]?keys?)$",
    re.IGNORECASE,
)
# Matches up to the last @ of the word: a password may hold an unescaped slash or @.
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@]*:)(?:[^\s\"'<>]+|[^/\s@]+)@")
_URL_SECRET: Final = re.compile(r"([?&][\w.-]*(?:passw|pwd|secret|token|signature)[\w.-]*=)[^&#\s]+", re.IGNORECASE)
# The state store logs under the name that its dashboards query.
_OURS: Final = ("headgate", "statestore")
# At debug level these log whole requests with their signatures.
_VERBOSE: Final = ("botocore", "boto3", "urllib3", "s3transfer")
_HIDDEN: Final = "[redacted]"
_DEPTH_MAX: Final = 6
# Also bounds `close`: an unreachable collector must not delay shutdown.
EXPORT_SECONDS_MAX: Final = 2.0
_TRACES_PATH: Final = "/v1/traces"

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

_SAMPLED: Final = "13579bdf"

_correlation: ContextVar[str | None] = ContextVar("correlation_id", default=None)
_traceparent: ContextVar[str] = ContextVar("traceparent", default="")
_execution_id: ContextVar[str] = ContextVar("execution_id", default="")
_NO_FIELDS: Final[Mapping[str, str | Callable[[], str]]] = {}
_log_fields: ContextVar[Mapping[str, str | Callable[[], str]]] = ContextVar("log_fields", default=_NO_FIELDS)


def correlation_id() -> str | None:
    """Return the correlation id of the current request, if there is one."""
    return _correlation.get()


def traceparent() -> str:
    """Return the W3C trace context that new work belongs to: that of `continued`, or of the active span; else empty."""
    carried = _traceparent.get()
    # A process without tracing never loads OpenTelemetry.
    if carried or "opentelemetry.trace" not in sys.modules:
        return carried
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def checked_traceparent(text: str) -> str:
    """Return a trace context as it is; empty if it is not one."""
    return text if _TRACEPARENT.fullmatch(text) else ""


def traceparent_of(name: str) -> str:
    """Return a trace context that is the same for the same name, for work that no request started."""
    digest = hashlib.blake2b(name.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-01"


def trace_id_of(text: str) -> str:
    """Return the trace id of a trace context; empty if it is not one."""
    match = _TRACEPARENT.fullmatch(text)
    return "" if match is None else match.group(1)


@contextmanager
def continued(text: str) -> Iterator[None]:
    """Let the work inside the block belong to a stored trace context. Anything else than one is ignored."""
    token = _traceparent.set(text if _TRACEPARENT.fullmatch(text) else "")
    try:
        yield
    finally:
        _traceparent.reset(token)


@contextmanager
def log_fields(**fields: str | Callable[[], str]) -> Iterator[None]:
    """Add fields to every log line inside the block. A function is called when a line is logged; empty is left out."""
    token = _log_fields.set({**_log_fields.get(), **fields})
    try:
        yield
    finally:
        _log_fields.reset(token)


def bind_execution(execution_id: str, text: str) -> None:
    """Let all that runs in the current context variables belong to an execution and to a trace context."""
    _execution_id.set(execution_id)
    _traceparent.set(text)


@contextmanager
def within_execution(execution_id: str, text: str) -> Iterator[None]:
    """Let the work inside the block belong to an execution and to a trace context, empty without one.

    Log lines have both. Spans that the code makes with OpenTelemetry are below the context.
    """
    scope = enter_execution(execution_id, text)
    try:
        yield
    finally:
        leave_execution(scope)


def enter_execution(execution_id: str, text: str) -> Any:  # noqa: ANN401 - the argument of `leave_execution`
    """Begin a block as of `within_execution`. A function, because every activity passes through one."""
    is_otel = text and _has_provider()
    # Not both: a span that the code makes inside must win over the context around it.
    tokens = _execution_id.set(execution_id), _traceparent.set("" if is_otel else text)
    return tokens, _attach(text) if is_otel else None


def leave_execution(scope: Any) -> None:  # noqa: ANN401 - the result of `enter_execution`
    """End the block that `enter_execution` began."""
    (execution, trace), otel = scope
    if otel is not None:
        from opentelemetry.context import detach

        detach(otel)
    _execution_id.reset(execution)
    _traceparent.reset(trace)


def _has_provider() -> bool:
    """Whether the program around Headgate makes spans with OpenTelemetry: attaching a context costs microseconds."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return False
    _load_named_provider(api)
    # As `get_tracer_provider` decides, without its search of the environment for every activity.
    if getattr(api, "_TRACER_PROVIDER", api) is None:
        return False
    return not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


@lru_cache(maxsize=1)
def _load_named_provider(api: Any) -> None:  # noqa: ANN401 - a module of OpenTelemetry
    """Have OpenTelemetry load the provider that the environment names, if it names one. Later ones are set by code."""
    api.get_tracer_provider()


def _attach(text: str) -> Any:  # noqa: ANN401 - a token of OpenTelemetry
    from opentelemetry.context import attach
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return attach(set_span_in_context(NonRecordingSpan(_span_context(text))))


def _span_context(text: str) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        int(text[3:35], 16), int(text[36:52], 16), is_remote=True, trace_flags=TraceFlags(int(text[53:], 16))
    )


class correlated:
    """Bind a correlation id to every log line and span inside the block, also in tasks it starts."""

    __slots__ = ("_identifier", "_token")

    def __init__(self, identifier: str) -> None:
        self._identifier = identifier

    def __enter__(self) -> None:
        self._token = _correlation.set(self._identifier)

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        _correlation.reset(self._token)


def is_correlation_id(text: str) -> bool:
    """Whether a caller's id is short and safe enough for logs and headers."""
    return _CORRELATION_ID.fullmatch(text) is not None


def configure_logs(*, style: Literal["console", "json"], level: str, stream: TextIO | None = None) -> None:
    """Send the logs of structlog and of `logging` to `stream` in one format, with secrets redacted.

    The default stream is standard error. Level debug applies to Headgate only: libraries log from info on.
    """
    import structlog

    stream = stream if stream is not None else sys.stderr

    before: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        _add_correlation,
        # Tracebacks as plain text: richer formats show local variables, which may hold secrets.
        structlog.processors.format_exc_info,
        _redact,
    ]
    render: Processor = (
        structlog.processors.JSONRenderer(default=str)
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="at")
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *before],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    least = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(handlers=[handler], level=max(least, logging.INFO), force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(least)
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(least, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


class Span(Protocol):
    """A trace span."""

    def set_attribute(self, key: str, value: Attribute, /) -> None:
        """Add an attribute to the running span."""


class SpanScope(Protocol):
    """A span as a context manager: entering starts it, leaving ends it."""

    def __enter__(self) -> Span: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> bool | None: ...  # noqa: ANN401


class _NoSpan:
    """The shared no-op span of a process without tracing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        return None

    def set_attribute(self, _key: str, _value: Attribute, /) -> None:
        return None


_NO_SPAN: Final = _NoSpan()


class Tracing:
    """Creates spans, or no-op spans when tracing is off."""

    def __init__(
        self, provider: TracerProvider | None = None, *, export: SpanExport | None = None, sample_ratio: float = 1.0
    ) -> None:
        """Without a provider, every span is the shared no-op span. `export` takes the spans of `finish`."""
        self._provider = provider
        self._export = export
        self._sample_ratio = sample_ratio
        self._tracer = provider.get_tracer("headgate") if provider is not None else None

    @classmethod
    def start(
        cls,
        *,
        service_name: str,
        otlp_endpoint: str,
        exporter: SpanExporter | None = None,
        sample_ratio: float = 1.0,
    ) -> Tracing:
        """Return tracing that exports over OTLP/HTTP, or to `exporter`.

        Of traces that begin here, the share `sample_ratio` is recorded; others follow their parent.
        """
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

        export = None
        if exporter is None:
            url = _traces_url(otlp_endpoint)
            export = SpanExport(url, service_name=service_name, timeout_seconds=EXPORT_SECONDS_MAX)
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=_traces_url(otlp_endpoint), timeout=EXPORT_SECONDS_MAX)
        provider = TracerProvider(
            resource=Resource.create({"service.name": service_name}),
            sampler=ParentBasedTraceIdRatio(sample_ratio),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider, export=export, sample_ratio=sample_ratio)

    @property
    def is_on(self) -> bool:
        """Whether real spans are created."""
        return self._tracer is not None

    def span(self, name: str, /, *, parent: Mapping[str, str] | None = None, **attributes: Attribute) -> SpanScope:
        """Return a span to enter. `parent` holds request headers with the caller's W3C `traceparent`, if any."""
        if self._tracer is None:
            return _NO_SPAN
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(dict(parent)) if parent is not None else None
        identifier = correlation_id()
        if identifier is not None:
            attributes["correlation_id"] = identifier
        return self._tracer.start_as_current_span(name, context=context, attributes=attributes)

    def child_of(self, parent: str) -> str:
        """Return the context of a new span below a trace context, or of a new trace. Without tracing: `parent`."""
        if self._tracer is None:
            return parent
        span_id = f"{random.getrandbits(64):016x}"
        if parent:
            return f"{parent[:36]}{span_id}{parent[52:]}"
        is_sampled = self._sample_ratio >= 1.0 or random.random() < self._sample_ratio
        return f"00-{random.getrandbits(128):032x}-{span_id}-{'01' if is_sampled else '00'}"

    def finish(self, record: SpanRecord) -> None:
        """Record a span that is over, whose context `child_of` made. One that is not sampled is dropped."""
        # The last digit of the flags says whether the trace is sampled.
        if record.context[54] in _SAMPLED:
            if self._export is not None:
                self._export.put(record)
            elif self._provider is not None:
                _end_in_sdk(self._provider, record)

    def record(
        self,
        name: str,
        parent: str,
        from_ms: int,
        to_ms: int,
        attributes: Mapping[str, Attribute],
        *,
        is_error: bool = False,
    ) -> str:
        """Record a span that is over, below a trace context, and return its own. Without tracing: `parent`."""
        if self._tracer is None:
            return parent
        parent = parent if _TRACEPARENT.fullmatch(parent) else ""
        context = self.child_of(parent)
        from_ns = from_ms * 1_000_000
        self.finish(SpanRecord(name, context, parent, from_ns, to_ms * 1_000_000, attributes, is_error))
        return context

    def close(self) -> None:
        """Flush the remaining spans and shut down."""
        if self._provider is not None:
            self._provider.shutdown()
        if self._export is not None:
            self._export.close()


def _end_in_sdk(provider: TracerProvider, record: SpanRecord) -> None:
    """Pass a span on to the processors of a provider."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, Status, StatusCode

    provider._active_span_processor.on_end(
        ReadableSpan(
            name=record.name,
            context=_span_context(record.context),
            parent=_span_context(record.parent) if record.parent else None,
            resource=provider.resource,
            attributes=record.all_attributes(),
            links=[Link(_span_context(link)) for link in record.links],
            status=Status(StatusCode.ERROR if record.is_error else StatusCode.UNSET),
            start_time=record.start_ns,
            end_time=max(record.start_ns, record.end_ns),
            instrumentation_scope=InstrumentationScope("headgate"),
        )
    )


class Metrics:
    """The Prometheus registry of one process, with process, platform and version metrics."""

    def __init__(self, *, version: str, registry: CollectorRegistry | None = None) -> None:
        """Register the standard metrics in `registry`, by default a new one."""
        from prometheus_client import CollectorRegistry, Info, PlatformCollector, ProcessCollector

        self.registry: CollectorRegistry = CollectorRegistry() if registry is None else registry
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        Info("headgate", "The version that runs.", registry=self.registry).info({"version": version})

    def watch_store(self, counters: Callable[[], Mapping[str, int]]) -> None:
        """Expose the store's counters, as `watch_store` does."""
        watch_store(self.registry, counters)

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


def watch_store(registry: CollectorRegistry, counters: Callable[[], Mapping[str, int]]) -> None:
    """Expose the store's counters as `headgate_store_*_total`, read on every scrape."""
    from prometheus_client.registry import Collector

    class StoreCollector(Collector):
        def collect(self) -> Iterator[Metric]:
            return _store_metrics(counters())

    registry.register(StoreCollector())


def _store_metrics(counters: Mapping[str, int]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, value in counters.items():
        yield CounterMetricFamily(
            f"headgate_store_{name}", f"Store {name} since the start of the process.", value=value
        )


def _traces_url(endpoint: str) -> str:
    has_path = "/" in endpoint.partition("://")[2].rstrip("/")
    return endpoint if has_path else endpoint.rstrip("/") + _TRACES_PATH


def _add_correlation(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401
    identifier = correlation_id()
    if identifier is not None:
        event.setdefault("correlation_id", identifier)
    for name, value in _log_fields.get().items():
        text = value() if callable(value) else value
        if text:
            event.setdefault(name, text)
    execution_id = _execution_id.get()
    if execution_id:
        event.setdefault("execution_id", execution_id)
    trace_id = trace_id_of(traceparent())
    if trace_id:
        event.setdefault("trace_id", trace_id)
    return event


def _redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401
    for key, value in event.items():
        # Keys with a leading underscore are structlog's own and never rendered.
        if not key.startswith("_"):
            event[key] = _HIDDEN if _SECRET_NAME.search(key) else _without_secrets(value, _DEPTH_MAX)
    return event


def without_url_secrets(text: str) -> str:
    """Return a text with the passwords and tokens of its URLs redacted."""
    return _URL_SECRET.sub(rf"\1{_HIDDEN}", _URL_PASSWORD.sub(rf"\1{_HIDDEN}@", text))


def _without_secrets(value: object, depth_left: int) -> object:
    if isinstance(value, BaseException | bytes):
        value = str(value) if isinstance(value, BaseException) else repr(value)
    if isinstance(value, str):
        return without_url_secrets(value) if "://" in value else value
    if depth_left == 0:
        return value if isinstance(value, int | float | None) else _HIDDEN
    if isinstance(value, Mapping):
        return {
            key: _HIDDEN if _SECRET_NAME.search(str(key)) else _without_secrets(inner, depth_left - 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(inner, depth_left - 1) for inner in value]
    return value
