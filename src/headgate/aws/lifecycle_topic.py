"""Lifecycle topic: publishes completed and failed periods to SNS."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import structlog

from headgate.durable.model.records import instant
from headgate.errors import HeadgateError
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.aws_errors import aws_request
from headgate.pipelines.runs.rows import run_log_of
from headgate.store.model.requests import Change

_EVENTS: Final = {
    RunStatus.COMPLETED: EventName.PIPELINE_COMPLETED,
    RunStatus.COMPLETED_MONITORING: EventName.PIPELINE_COMPLETED,
    RunStatus.FAILED: EventName.PIPELINE_FAILED,
}
_log = structlog.get_logger(__name__)


class LifecycleTopic:
    """Publishes to one SNS topic, best effort. Alerts are the reliable channel."""

    def __init__(self, client: Any, topic_arn: str) -> None:  # noqa: ANN401 - boto3 has no types here
        self._client = client
        self._topic_arn = topic_arn

    def on_change(self, change: Change) -> None:
        """Publish a run log change that ends its period. Errors are logged."""
        if change.new is None or not str(change.key.sort).startswith("RUNLOG#"):
            return
        log = run_log_of(change.new)
        name = _EVENTS.get(log.status)
        before = None if change.old is None else _EVENTS.get(run_log_of(change.old).status)
        if name is None or name is before:
            return
        message = {
            "eventType": name.value,
            "pipelineId": log.pipeline_id,
            "scheduleId": log.schedule_id,
            "date": log.date,
            "runId": log.run_id,
            "status": log.status.value,
            "timestamp": instant(log.updated_at_ms),
        }
        try:
            with aws_request(f"topic {self._topic_arn}"):
                self._client.publish(
                    TopicArn=self._topic_arn,
                    Message=msgspec.json.encode(message).decode(),
                    MessageAttributes={"eventType": {"DataType": "String", "StringValue": name.value}},
                )
        except HeadgateError as exc:
            _log.warning("lifecycle not published", action="stream-router", run_id=log.run_id, error=str(exc))
