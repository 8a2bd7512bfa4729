"""Step Functions adapter: runs the lifecycle on AWS in place of the durable engine."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import msgspec

from headgate.clock import Clock
from headgate.errors import StaleClaimError
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import Json
from headgate.pipelines.lifecycle.aws_errors import aws_request
from headgate.pipelines.lifecycle.eventbridge_timers import OneShotSchedules

# EventBridge Scheduler's universal target that starts an execution under a given name.
START_TARGET: Final = "arn:aws:scheduler:::aws-sdk:sfn:startExecution"
_OPEN: Final = frozenset({"RUNNING", "PENDING_REDRIVE"})


class StepFunctions:
    """Implements `pipelines.service.Engine` on Step Functions."""

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - boto3 has no types here
        one_shots: OneShotSchedules,
        *,
        machine_arn: str,
        clock: Clock,
        ids: IdMaker,
        hand_over_events: int,
    ) -> None:
        self.one_shots = one_shots
        self.hand_over_events = hand_over_events
        self._client = client
        self._machine_arn = machine_arn
        self._clock = clock
        self._ids = ids

    def start(self, name: str, machine_input: Json, delay_seconds: float) -> bool:
        """Start an execution, now or after a delay. False: an execution of this name exists or existed.

        Raises `TransientError` and `StoreIOError`.
        """
        assert isinstance(machine_input, dict), "the lifecycle takes a document"
        # Step Functions accepts a second start with the same name and input. A unique start id makes ours differ, so
        # that it is refused, while the client's own retry of one call still has the same input.
        text = msgspec.json.encode({**machine_input, "startId": self._ids.ulid()}).decode()
        if delay_seconds > 0:
            at = self._clock.now() + timedelta(seconds=delay_seconds)
            target_input: Json = {"StateMachineArn": self._machine_arn, "Name": name, "Input": text}
            return not self._is_known(name) and self.one_shots.put(f"start-{name}", at, START_TARGET, target_input)
        with aws_request(f"execution {name}"):
            try:
                self._client.start_execution(stateMachineArn=self._machine_arn, name=name, input=text)
            except self._client.exceptions.ExecutionAlreadyExists:
                return False
        return True

    def answer(self, token: str, output: dict[str, str]) -> None:
        """Complete the task of a token. Raises `StaleClaimError` if it has ended, `TransientError`, `StoreIOError`."""
        exceptions = self._client.exceptions
        with aws_request("a task token"):
            try:
                self._client.send_task_success(taskToken=token, output=msgspec.json.encode(output).decode())
            except (exceptions.TaskDoesNotExist, exceptions.TaskTimedOut, exceptions.InvalidToken) as exc:
                raise StaleClaimError("task token: the task has ended or timed out; nothing is left to do") from exc

    def is_open(self, name: str) -> bool:
        """Whether an execution of this name is running. Raises `TransientError` and `StoreIOError`."""
        return self._status(name) in _OPEN

    def _is_known(self, name: str) -> bool:
        return self._status(name) is not None

    def _status(self, name: str) -> str | None:
        arn = f"{self._machine_arn.replace(':stateMachine:', ':execution:', 1)}:{name}"
        with aws_request(f"execution {name}"):
            try:
                return str(self._client.describe_execution(executionArn=arn)["status"])
            except self._client.exceptions.ExecutionDoesNotExist:
                return None
