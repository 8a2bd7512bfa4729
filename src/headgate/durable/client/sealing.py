"""Sealing: the payload codecs of the workflows that a client knows, applied to what it stores and reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.declarations import WorkflowDefinition
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import AnswerUpdate, Event
from headgate.durable.model.payload_codec import (
    ERROR,
    HEARTBEAT,
    INPUT,
    MEMO,
    RESULT,
    PayloadCodec,
    activity_place,
    open_error,
    open_sealed,
    refuse_sealed,
    seal,
    seal_error,
    seal_once,
)
from headgate.durable.model.records import Execution
from headgate.durable.model.starts import StartRequest
from headgate.durable.replay.sealed_history import answer_place, seal_message

_errors: Final = msgspec.json.Decoder(ErrorInfo)


class Sealing:
    """Seals and opens with the codec of each workflow. Values of workflows that are not loaded here stay as stored."""

    def __init__(self, workflows: Mapping[str, WorkflowDefinition]) -> None:
        self._workflows = workflows

    @property
    def is_in_use(self) -> bool:
        """Whether any workflow has a codec."""
        return any(each.codec is not None for each in self._workflows.values())

    def codec_of(self, workflow: str) -> PayloadCodec | None:
        """Return the codec of a workflow; None if it has none, or is not loaded here."""
        definition = self._workflows.get(workflow)
        return None if definition is None else definition.codec

    def start(self, request: StartRequest) -> StartRequest:
        """Return a request to start an execution as it is stored."""
        codec = self.codec_of(request.workflow)
        if codec is None:
            return request
        memo = (
            request.memo
            if bytes(request.memo) == b"null"
            else seal_once(codec, request.memo, request.execution_id, MEMO)
        )
        return replace(request, input=self.input(request.workflow, request.execution_id, request.input), memo=memo)

    def input(self, workflow: str, execution_id: str, input: Raw) -> Raw:
        """Return the input of an execution as it is stored."""
        codec = self.codec_of(workflow)
        return input if codec is None else seal_once(codec, input, execution_id, INPUT)

    def opened_input(self, workflow: str, execution_id: str, input: Raw) -> Raw:
        """Return a stored input as JSON of its own. Raises `SealedPayloadError`."""
        codec = self.codec_of(workflow)
        return input if codec is None else open_sealed(codec, input, execution_id, INPUT)

    def message(self, row: Execution, event: Event) -> Event:
        """Return a message to an execution as it is stored."""
        codec = self.codec_of(row.workflow)
        return event if codec is None else seal_message(codec, event, row.execution_id)

    def result(self, workflow: str, execution_id: str, seq: int, result: AttemptResult) -> AttemptResult:
        """Return the result of an activity of this execution as it is stored."""
        codec = self.codec_of(workflow)
        if codec is None:
            return result
        if result.error is not None:
            return replace(result, error=seal_error(codec, result.error, execution_id, activity_place(seq, ERROR)))
        return replace(result, result=seal_once(codec, result.result, execution_id, activity_place(seq, RESULT)))

    def details(self, row: Execution, seq: int, details: Raw) -> Raw:
        """Return the details of a heartbeat as they are stored."""
        codec = self.codec_of(row.workflow)
        return details if codec is None else seal(codec, details, row.execution_id, activity_place(seq, HEARTBEAT))

    def opened(self, row: Execution) -> Execution:
        """Return an ended execution with its plain result and error. Raises `SealedPayloadError`."""
        codec = self.codec_of(row.workflow)
        if codec is None:
            if row.result is not None:
                refuse_sealed(Raw(row.result.encode()), row.execution_id, RESULT)
            return row
        if row.result is not None:
            return replace(
                row, result=bytes(open_sealed(codec, Raw(row.result.encode()), row.execution_id, RESULT)).decode()
            )
        if row.error is not None:
            error = open_error(codec, _errors.decode(row.error), row.execution_id, ERROR)
            return replace(row, error=msgspec.json.encode(error).decode())
        return row

    def answer(self, row: Execution, answer: AnswerUpdate) -> AnswerUpdate:
        """Return the answer to an update with its plain result or error. Raises `SealedPayloadError`."""
        codec = self.codec_of(row.workflow)
        place = answer_place(answer.id)
        if codec is None:
            refuse_sealed(answer.result, row.execution_id, place)
            return answer
        return replace(
            answer,
            result=open_sealed(codec, answer.result, row.execution_id, place),
            error=open_error(codec, answer.error, row.execution_id, place),
        )
