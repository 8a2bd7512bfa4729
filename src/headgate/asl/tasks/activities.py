"""Activities behind Tasks: their names and the inputs that the interpreter sends them.

`machines.task_activities` implements them. The names contain a dot, which no user function can have.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.asl.expressions.scope import Json

SERVICE: Final = "headgate.asl.service"
START: Final = "headgate.asl.start"
LOAD: Final = "headgate.asl.load"
FANOUT: Final = "headgate.asl.fanout"


class ServiceCall(Struct, frozen=True):
    """Input of `SERVICE`: one call of an AWS service action."""

    service: str
    action: str
    parameters: Json = None


class MachineOrder(Struct, frozen=True):
    """Input of `START` and `LOAD`: the machine to start or to read."""

    machine: str
    input: Json = None
    name: str | None = None
    version: int | None = None


class FanoutOrder(Struct, frozen=True):
    """Input of `FANOUT`: the fan-out to start."""

    fanout: str
    parameters: Json = None
    wait: str = ""
