"""Sensors: `GateSensor` waits until the gate allows datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from headgate_airflow.airflow_names import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseHook,
    BaseSensorOperator,
)
from headgate_airflow.hook import DEFAULT_CONN_ID, server_of
from headgate_airflow.rulings import HoldOn, Question
from headgate_airflow.server import AddressError, RequestRefusedError, ServerUnavailableError
from headgate_airflow.triggers import ALLOWED, HELD, GateTrigger


class GateSensor(BaseSensorOperator):
    """Waits until the gate allows datasets, and says at each look why it holds and until when.

    It gives its slot back between looks: `mode` is "reschedule", or the triggerer looks if `deferrable` is true. A
    server that does not answer holds; one that refuses the request fails the task without retries. At `timeout` the
    task fails with the reasons of the hold, or is skipped with `soft_fail`.
    """

    template_fields: Sequence[str] = ("datasets", "principal")

    def __init__(
        self,
        *,
        datasets: Sequence[str],
        verb: str = "read",
        principal: str | None = None,
        on_unknown: str = "warn",
        max_age: str | None = None,
        hold_on: str = HoldOn.UNKNOWN.value,
        deferrable: bool = False,
        conn_id: str = DEFAULT_CONN_ID,
        mode: str = "reschedule",
        **options: Any,  # noqa: ANN401 - those of Airflow
    ) -> None:
        super().__init__(mode=mode, **options)
        self.datasets = datasets
        self.verb = verb
        self.principal = principal
        self.on_unknown = on_unknown
        self.max_age = max_age
        self.hold_on = HoldOn(hold_on).value
        self.deferrable = deferrable
        self.conn_id = conn_id
        self._why = ""

    def execute(self, context: Any) -> Any:  # noqa: ANN401 - the context of Airflow
        """Wait for the gate."""
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as exc:
                raise AirflowSensorTimeout(f"{exc}\n{self._why}") from exc
        if self.poke(context):
            return None
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        trigger = GateTrigger(
            datasets=list(self.datasets),
            verb=self.verb,
            principal=self.principal,
            on_unknown=self.on_unknown,
            max_age=self.max_age,
            hold_on=self.hold_on,
            conn_id=self.conn_id,
            poll_seconds=float(self.poke_interval),
            deadline=deadline.isoformat(),
        )
        self.defer(trigger=trigger, method_name="execute_complete")
        return None

    def poke(self, context: Any) -> bool:  # noqa: ANN401, ARG002 - the context of Airflow
        """Return whether the gate allows the datasets now."""
        question = Question(tuple(self.datasets), self.verb, self.principal, self.on_unknown, self.max_age)
        try:
            answer = server_of(BaseHook.get_connection(self.conn_id), retry_seconds=0.0).gate(question)
        except ServerUnavailableError as exc:
            # Cannot tell is not ready.
            self._why = f"the server does not answer: {exc}"
            self.log.warning("held: %s", self._why)
            return False
        except (AddressError, RequestRefusedError) as exc:
            raise AirflowFailException(f"connection {self.conn_id}: {exc}") from exc
        if answer.holds(HoldOn(self.hold_on)):
            self._why = answer.explanation(HoldOn(self.hold_on))
            self.log.info("held by the gate\n%s", self._why)
            return False
        for line in (line for each in answer.datasets for line in each.lines()):
            self.log.info("%s", line)
        return True

    def execute_complete(self, context: Any, event: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401, ARG002
        """Go on with what the trigger found."""
        found = event or {}
        if found.get("outcome") == ALLOWED:
            self.log.info("allowed by the gate: %s", found["answer"])
            return None
        why = f"{found.get('why', 'the trigger gave no answer')}"
        if found.get("outcome") == HELD:
            message = f"still held after {self.timeout:g} s\n{why}"
            raise AirflowSkipException(message) if self.soft_fail else AirflowSensorTimeout(message)
        raise AirflowFailException(why)
