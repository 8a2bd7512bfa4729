"""Reset API: computes an execution again from a turn or an activity, or continues it from its failure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headgate.durable.client.resets import Messages, ResetResult
from headgate.durable.service import Service
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.raw_json import idempotency_key
from headgate.serve.rest.durable.models import Why
from headgate.serve.rest.parameters import NonEmpty, Reason


class Reset(Struct, forbid_unknown_fields=True):
    """The turn to compute again, or the activity to run again (NAME, or NAME#SEQ), and the reason.

    `signals` is whether signals and updates from there on are applied again. The Idempotency-Key deduplicates it.
    """

    to: Annotated[int, Meta(ge=1)] | NonEmpty
    signals: Messages = Messages.KEEP
    reason: Reason = ""


class ResetView(Struct, frozen=True):
    """A reset execution: its run, and the turn that is computed again. `created` is False for a repeated request."""

    id: str
    workflow: str
    run: int
    to: int
    created: bool


def reset_operations(service: Service) -> list[Operation]:
    """Return the operations."""
    resets = _Resets(service)
    one = "/executions/{id}"
    return [
        Operation(
            "POST",
            f"{one}/reset",
            "Reset to a turn or an activity, with the history so far",
            resets.reset,
            {202: ResetView},
            body=Reset,
        ),
        Operation(
            "POST",
            f"{one}/retry-from-failure",
            "Continue from the failure, without repeating completed activities",
            resets.retry_from_failure,
            {202: ResetView},
            body=Why,
        ),
    ]


class _Resets:
    def __init__(self, service: Service) -> None:
        self._client = service.client

    def reset(self, call: Call[Reset, NoQuery]) -> Answer:
        body = call.body
        key = idempotency_key(call.headers) or ""
        done = self._client.reset(call.path["id"], body.to, messages=body.signals, reason=body.reason, request_id=key)
        return _view(done)

    def retry_from_failure(self, call: Call[Why, NoQuery]) -> Answer:
        key = idempotency_key(call.headers) or ""
        return _view(self._client.retry_from_failure(call.path["id"], reason=call.body.reason, request_id=key))


def _view(done: ResetResult) -> Answer:
    return Answer(ResetView(done.execution_id, done.workflow, done.run, done.to, done.is_new), 202)
