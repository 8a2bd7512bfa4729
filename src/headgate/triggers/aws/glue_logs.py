"""Glue logs: whether a run that Glue calls a success did fail after all.

Three filters, each narrower than the last that was too wide: only streams of this run's driver are read, since others
log whatever they like; its analysis of failures is believed by the name of the event; and of what the driver prints,
only lines that log4j wrote at the level ERROR or FATAL count, since "Error" is part of the flags that every JVM is
started with. Loggers that complain at that level about what Spark has mended are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.triggers.aws.clients import error_code
from headgate.triggers.contract import JobState, Polled, failed, shown
from headgate.triggers.failure_patterns import category_of

INSIGHTS_SUFFIX: Final = "-job-insights-rca-driver"
INSIGHTS_EVENT: Final = "GlueExceptionAnalysisJobFailed"
_PAGES_MAX: Final = 20
# Wider than what counts: CloudWatch is to send less, not to judge.
_LEVELS: Final = ("ERROR", "FATAL")
_LINE: Final = re.compile(
    r"\s*\d{2,4}[/-]\d{2}[/-]\d{2}[ T]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,6})?Z?\s+(?P<level>ERROR|FATAL)\s+"
    r"(?:\[[^\]]*\]\s+)?(?P<logger>[\w.$]+)"
)
# They say ERROR of what Spark does again, or of what happens once everything is done.
_HARMLESS: Final = frozenset(
    {
        "AsyncEventQueue",
        "LiveListenerBus",
        "ShutdownHookManager",
        "TaskSchedulerImpl",
        "TransportChannelHandler",
        "TransportClient",
        "TransportRequestHandler",
        "TransportResponseHandler",
        "YarnClusterScheduler",
        "YarnScheduler",
    }
)


class GlueLogs:
    """The logs of runs, by a client of CloudWatch Logs."""

    def __init__(self, logs: Any) -> None:  # noqa: ANN401 - a client of boto3
        self._logs = logs

    def verdict(self, run_id: str, group: str) -> Polled:
        """Return how a run that Glue calls a success really ended. Where logs cannot be read, Glue is believed."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            reason = failure_reason(self._messages(group, run_id + INSIGHTS_SUFFIX, f'"{INSIGHTS_EVENT}"'))
            for level in _LEVELS:
                reason = reason or log4j_error(self._messages(group, run_id, level))
        except (ClientError, BotoCoreError) as exc:
            return Polled(JobState.SUCCEEDED, reason=shown(f"its logs could not be looked at: {exc}"))
        if reason is None:
            return Polled(JobState.SUCCEEDED)
        return failed(category_of(reason), f"Glue says SUCCEEDED, its log says otherwise: {reason}")

    def _messages(self, group: str, stream: str, pattern: str) -> Iterator[str]:
        from botocore.exceptions import ClientError

        more: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            try:
                page = self._logs.filter_log_events(
                    logGroupName=group, logStreamNames=[stream], filterPattern=pattern, **more
                )
            except ClientError as exc:
                if error_code(exc) == "ResourceNotFoundException":
                    # A run without insights has no such stream, and one without continuous logs no group.
                    return
                raise
            for event in page.get("events") or []:
                # A client may be given more than it asked for: the stream is what the whole check stands on.
                if event.get("logStreamName", stream) == stream:
                    yield str(event.get("message") or "")
            if not page.get("nextToken"):
                return
            more = {"nextToken": page["nextToken"]}


def failure_reason(messages: Iterable[str]) -> str | None:
    """Return why a run failed by Glue's own analysis of it, or None if that does not say so."""
    for message in messages:
        if INSIGHTS_EVENT in message:
            return _reason_in(message)
    return None


def log4j_error(messages: Iterable[str]) -> str | None:
    """Return the first line that the driver logged as an error, or None."""
    for message in messages:
        for line in message.splitlines():
            match = _LINE.match(line)
            if match is not None and match.group("logger").rpartition(".")[2] not in _HARMLESS:
                return shown(line)
    return None


def _reason_in(message: str) -> str:
    start = message.find("{")
    try:
        said = typed_decode.from_json(message[start:].encode(), dict[str, Any]) if start >= 0 else {}
    except msgspec.DecodeError:
        said = {}
    reason = said.get("Failure Reason") or said.get("failureReason") or message
    return shown(str(reason))
