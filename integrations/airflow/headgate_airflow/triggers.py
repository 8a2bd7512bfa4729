"""Trigger: asks the gate again and again while a sensor is deferred, in the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from headgate_airflow.airflow_names import connection_in_trigger
from headgate_airflow.hook import server_of
from headgate_airflow.rulings import HoldOn, Question
from headgate_airflow.server import AddressError, RequestRefusedError, ServerUnavailableError

ALLOWED = "allowed"
HELD = "held"
REFUSED = "refused"


class GateTrigger(BaseTrigger):
    """Fires when the gate allows the datasets, refuses the request, or still holds at the deadline.

    Only the id of the connection is stored; the API key is not.
    """

    def __init__(
        self,
        *,
        datasets: list[str],
        verb: str,
        principal: str | None,
        on_unknown: str,
        max_age: str | None,
        hold_on: str,
        conn_id: str,
        poll_seconds: float,
        deadline: str,
    ) -> None:
        super().__init__()
        self.datasets = datasets
        self.verb = verb
        self.principal = principal
        self.on_unknown = on_unknown
        self.max_age = max_age
        self.hold_on = hold_on
        self.conn_id = conn_id
        self.poll_seconds = poll_seconds
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow stores them."""
        arguments = {
            "datasets": self.datasets,
            "verb": self.verb,
            "principal": self.principal,
            "on_unknown": self.on_unknown,
            "max_age": self.max_age,
            "hold_on": self.hold_on,
            "conn_id": self.conn_id,
            "poll_seconds": self.poll_seconds,
            "deadline": self.deadline,
        }
        return "headgate_airflow.triggers.GateTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask until the gate allows, or the deadline has passed."""
        question = Question(tuple(self.datasets), self.verb, self.principal, self.on_unknown, self.max_age)
        deadline, hold_on = datetime.fromisoformat(self.deadline), HoldOn(self.hold_on)
        try:
            server = server_of(await connection_in_trigger(self.conn_id), retry_seconds=0.0)
            while True:
                try:
                    answer = await asyncio.to_thread(server.gate, question)
                except ServerUnavailableError as exc:
                    # Cannot tell is not ready.
                    why = f"the server does not answer: {exc}"
                else:
                    if not answer.holds(hold_on):
                        yield TriggerEvent({"outcome": ALLOWED, "answer": answer.xcom()})
                        return
                    why = answer.explanation(hold_on)
                self.log.info("held by the gate\n%s", why)
                left_seconds = (deadline - datetime.now(UTC)).total_seconds()
                if left_seconds <= 0:
                    yield TriggerEvent({"outcome": HELD, "why": why})
                    return
                await asyncio.sleep(min(self.poll_seconds, left_seconds))
        except (AddressError, RequestRefusedError) as exc:
            yield TriggerEvent({"outcome": REFUSED, "why": f"connection {self.conn_id}: {exc}"})
