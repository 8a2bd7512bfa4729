"""Tracing of a process, from its settings."""

from __future__ import annotations

from headgate.extras import Extra, require
from headgate.settings import TelemetrySettings
from headgate.telemetry import Tracing


def open_tracing(settings: TelemetrySettings) -> Tracing:
    """Return tracing that exports as configured, or that makes no spans. Close it at the end of the process.

    Raises `MissingExtraError` if tracing is on and its libraries are not installed.
    """
    if not settings.tracing:
        return Tracing()
    require(Extra.OTEL, "telemetry.tracing")
    return Tracing.start(
        service_name=settings.service_name,
        otlp_endpoint=settings.otlp_endpoint,
        sample_ratio=settings.sample_ratio,
    )
