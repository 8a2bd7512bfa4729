"""Operators: `GateOperator` asks the gate once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from headgate_airflow.airflow_names import AirflowFailException, AirflowSkipException, BaseOperator
from headgate_airflow.hook import DEFAULT_CONN_ID, HeadgateHook
from headgate_airflow.rulings import HoldOn, Question
from headgate_airflow.server import AddressError, RequestRefusedError


class OnHold(StrEnum):
    """What a hold does to the task: FAIL without retries, or SKIP it and the tasks downstream."""

    FAIL = "fail"
    SKIP = "skip"


class GateOperator(BaseOperator):
    """Asks the gate whether datasets may be used now, and fails or skips the task if not.

    A hold fails without retries: use `GateSensor` to wait. A server that does not answer raises, and the task is
    retried as its `retries` say. The result is the decision and the ruling on each dataset.
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
        on_hold: str = OnHold.FAIL.value,
        conn_id: str = DEFAULT_CONN_ID,
        **options: Any,  # noqa: ANN401 - those of Airflow
    ) -> None:
        super().__init__(**options)
        self.datasets = datasets
        self.verb = verb
        self.principal = principal
        self.on_unknown = on_unknown
        self.max_age = max_age
        self.hold_on = HoldOn(hold_on).value
        self.on_hold = OnHold(on_hold).value
        self.conn_id = conn_id

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ANN401, ARG002 - the context of Airflow
        """Ask the gate once."""
        question = Question(tuple(self.datasets), self.verb, self.principal, self.on_unknown, self.max_age)
        try:
            answer = HeadgateHook(self.conn_id).get_conn().gate(question)
        except (AddressError, RequestRefusedError) as exc:
            raise AirflowFailException(f"connection {self.conn_id}: {exc}") from exc
        for line in (line for each in answer.datasets for line in each.lines()):
            self.log.info("%s", line)
        if answer.holds(HoldOn(self.hold_on)):
            why = f"held by the gate\n{answer.explanation(HoldOn(self.hold_on))}"
            raise AirflowSkipException(why) if self.on_hold == OnHold.SKIP.value else AirflowFailException(why)
        return answer.xcom()
