"""Step Functions in the place of the durable engine: starts executions of the lifecycle, and answers their tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import msgspec

from headgate.clock import Clock
from headgate.errors import StaleClaimError
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import Json
from headgate.pipelines.lifecycle.aws_errors import asking
from headgate.pipelines.lifecycle.eventbridge_timers import OneShots

# Whom a schedule calls to start an execution under a name of our choice.
START_TARGET: Final = "arn:aws:scheduler:::aws-sdk:sfn:startExecution"
_OPEN: Final = frozenset({"RUNNING", "PENDING_REDRIVE"})


class StepFunctions:
    """The lifecycle on Step Functions: what `pipelines.service.Engine` asks for."""

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - boto3 has no types here
        one_shots: OneShots,
        *,
        machine_arn: str,
        clock: Clock,
        ids: IdMaker,
    ) -> None:
        self.one_shots = one_shots
        self._client = client
        self._machine_arn = machine_arn
        self._clock = clock
        self._ids = ids

    def start(self, name: str, given: Json, delay_seconds: float) -> bool:
        """Start an execution, or have it started later. False: there is, or was, one of this name.

        Raises `TransientError` and `StoreIOError`.
        """
        assert isinstance(given, dict), "the lifecycle takes a document"
        # A start under the same name with the same input would be answered as if it were the first. No two of ours
        # have the same, so that the second is refused; the client's own repetition of one call still is the same.
        text = msgspec.json.encode({**given, "startId": self._ids.ulid()}).decode()
        if delay_seconds > 0:
            at = self._clock.now() + timedelta(seconds=delay_seconds)
            later: Json = {"StateMachineArn": self._machine_arn, "Name": name, "Input": text}
            return not self._is_known(name) and self.one_shots.put(f"start-{name}", at, START_TARGET, later)
        with asking(f"execution {name}"):
            try:
                self._client.start_execution(stateMachineArn=self._machine_arn, name=name, input=text)
            except self._client.exceptions.ExecutionAlreadyExists:
                return False
        return True

    def answer(self, token: str, output: dict[str, str]) -> None:
        """End the task of a token. Raises `StaleClaimError` for one that is over, `TransientError`, `StoreIOError`."""
        refused = self._client.exceptions
        with asking("a task token"):
            try:
                self._client.send_task_success(taskToken=token, output=msgspec.json.encode(output).decode())
            except (refused.TaskDoesNotExist, refused.TaskTimedOut, refused.InvalidToken) as exc:
                raise StaleClaimError("task token: it is not waited for any more; nothing is left to do") from exc

    def is_open(self, name: str) -> bool:
        """Whether an execution of this name is under way. Raises `TransientError` and `StoreIOError`."""
        return self._status(name) in _OPEN

    def _is_known(self, name: str) -> bool:
        return self._status(name) is not None

    def _status(self, name: str) -> str | None:
        arn = f"{self._machine_arn.replace(':stateMachine:', ':execution:', 1)}:{name}"
        with asking(f"execution {name}"):
            try:
                return str(self._client.describe_execution(executionArn=arn)["status"])
            except self._client.exceptions.ExecutionDoesNotExist:
                return None
