"""Reset API: computes an execution again from a turn or an activity, or continues it from its failure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headgate.asl.runtime.durable_host import WORKFLOW as MACHINE
from headgate.bootstrap.store import AppService
from headgate.durable.client.resets import Messages, ResetResult
from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution
from headgate.errors import InvalidPayloadError
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.raw_json import idempotency_key
from headgate.serve.rest.durable.models import Why
from headgate.serve.rest.parameters import NonEmpty, Reason


class Reset(Struct, forbid_unknown_fields=True):
    """The turn to compute again, or the activity to run again (NAME, or NAME#SEQ), and the reason.

    For an execution of a state machine: the state to begin with, one of the outermost level that it has entered.
    `signals` is whether signals and updates from there on are applied again. The Idempotency-Key deduplicates it.
    """

    to: Annotated[int, Meta(ge=1)] | NonEmpty
    signals: Messages = Messages.KEEP
    reason: Reason = ""


class ResetView(Struct, frozen=True):
    """A reset execution: its run, and the turn that is computed again. `created` is False for a repeated request.

    The run of a state machine begins with a turn of its own.
    """

    id: str
    workflow: str
    run: int
    to: int
    created: bool


def reset_operations(service: AppService) -> list[Operation]:
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
    def __init__(self, service: AppService) -> None:
        self._client = service.client
        self._machines = service.asl.executions

    def reset(self, call: Call[Reset, NoQuery]) -> Answer:
        body = call.body
        key = idempotency_key(call.headers) or ""
        row = self._client.get(call.path["id"])
        if row.workflow == MACHINE:
            state = _state(row, body)
            self._machines.reset(row.execution_id, state, reason=body.reason, request_id=key)
            return self._resumed(row)
        done = self._client.reset(call.path["id"], body.to, messages=body.signals, reason=body.reason, request_id=key)
        return _view(done)

    def retry_from_failure(self, call: Call[Why, NoQuery]) -> Answer:
        key = idempotency_key(call.headers) or ""
        row = self._client.get(call.path["id"])
        # The turn of a stuck one is tried again, as for any workflow.
        if row.workflow == MACHINE and row.status is not Status.STUCK:
            self._machines.redrive(row.execution_id, reason=call.body.reason, request_id=key)
            return self._resumed(row)
        return _view(self._client.retry_from_failure(call.path["id"], reason=call.body.reason, request_id=key))

    def _resumed(self, before: Execution) -> Answer:
        """Return the run of a machine after a redrive. It is the same as before if the request was a repeated one."""
        after = self._client.get(before.execution_id)
        is_new = after.first_run > before.first_run
        return Answer(ResetView(after.execution_id, after.workflow, after.run, after.first_turn, is_new), 202)


def _state(row: Execution, body: Reset) -> str:
    if isinstance(body.to, int):
        raise InvalidPayloadError(
            f"to {body.to}: execution {row.execution_id} is one of a state machine; give the name of a state, or "
            f"continue at the failed one: 'headgate asl redrive {row.execution_id}'"
        )
    if body.signals is not Messages.KEEP:
        raise InvalidPayloadError(
            f"signals {body.signals.value!r}: execution {row.execution_id} is one of a state machine, whose Tasks get "
            "new tokens; leave it out"
        )
    return body.to


def _view(done: ResetResult) -> Answer:
    return Answer(ResetView(done.execution_id, done.workflow, done.run, done.to, done.is_new), 202)
