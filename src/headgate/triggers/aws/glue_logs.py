"""Glue logs: detect whether a run that Glue reports as successful has failed.

Only streams of this run's driver are read. Glue's own failure analysis counts by the name of its event. Of the driver's
output, only lines that log4j wrote at level ERROR or FATAL count, since "Error" is part of the flags of every JVM.
Loggers that report recovered errors at that level are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.triggers.aws.clients import error_code
from headgate.triggers.contract import JobState, PollResult, failed, shown
from headgate.triggers.failure_patterns import category_of

INSIGHTS_SUFFIX: Final = "-job-insights-rca-driver"
INSIGHTS_EVENT: Final = "GlueExceptionAnalysisJobFailed"
_PAGES_MAX: Final = 20
# A superset for CloudWatch, to reduce the data; the patterns below decide.
_LEVELS: Final = ("ERROR", "FATAL")
_LINE: Final = re.compile(
    r"\s*\d{2,4}[/-]\d{2}[/-]\d{2}[ T]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,6})?Z?\s+(?P<level>ERROR|FATAL)\s+"
    r"(?:\[[^\]]*\]\s+)?(?P<logger>[\w.$]+)"
)
# These log ERROR for things that Spark retries, or that happen after the end.
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
    """The logs of runs in CloudWatch Logs."""

    def __init__(self, logs: Any) -> None:  # noqa: ANN401 - a client of boto3
        self._logs = logs

    def verdict(self, run_id: str, group: str) -> PollResult:
        """Return how a run that Glue reports as successful ended. Without readable logs, Glue's report counts."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            reason = failure_reason(self._messages(group, run_id + INSIGHTS_SUFFIX, f'"{INSIGHTS_EVENT}"'))
            for level in _LEVELS:
                reason = reason or log4j_error(self._messages(group, run_id, level))
        except (ClientError, BotoCoreError) as exc:
            return PollResult(JobState.SUCCEEDED, reason=shown(f"its logs could not be read: {exc}"))
        if reason is None:
            return PollResult(JobState.SUCCEEDED)
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
                    # A run without insights lacks this stream, and one without continuous logs the group.
                    return
                raise
            for event in page.get("events") or []:
                # The response may contain other streams: the check relies on the driver's own.
                if event.get("logStreamName", stream) == stream:
                    yield str(event.get("message") or "")
            if not page.get("nextToken"):
                return
            more = {"nextToken": page["nextToken"]}


def failure_reason(messages: Iterable[str]) -> str | None:
    """Return the failure reason of Glue's own analysis, or None."""
    for message in messages:
        if INSIGHTS_EVENT in message:
            return _reason_in(message)
    return None


def log4j_error(messages: Iterable[str]) -> str | None:
    """Return the first error line of the driver, or None."""
    for message in messages:
        for line in message.splitlines():
            match = _LINE.match(line)
            if match is not None and match.group("logger").rpartition(".")[2] not in _HARMLESS:
                return shown(line)
    return None


def _reason_in(message: str) -> str:
    start = message.find("{")
    try:
        detail = typed_decode.from_json(message[start:].encode(), dict[str, Any]) if start >= 0 else {}
    except msgspec.DecodeError:
        detail = {}
    reason = detail.get("Failure Reason") or detail.get("failureReason") or message
    return shown(str(reason))
