"""Activities behind Tasks: their names and the inputs that the interpreter sends them.

`machines.task_activities` implements them. The names contain a dot, which no user function can have.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.aws_jobs import AwsJob

SERVICE: Final = "headgate.asl.service"
START: Final = "headgate.asl.start"
LOAD: Final = "headgate.asl.load"
FANOUT: Final = "headgate.asl.fanout"
RESOURCE: Final = "headgate.asl.resource"


class JobStep(enum.StrEnum):
    """What a call does of a job that is waited for; a plain call is no part of one."""

    NONE = ""
    START = "start"
    POLL = "poll"
    STOP = "stop"


class ServiceCall(Struct, frozen=True):
    """Input of `SERVICE`: one call of an AWS service action."""

    service: str
    action: str
    parameters: Json = None
    step: JobStep = JobStep.NONE
    # The started job, to poll or to stop it.
    job: AwsJob | None = None


class ResourceCall(Struct, frozen=True):
    """Input of `RESOURCE`: a call that the resource map replaces by an HTTP call or a command."""

    resource: str
    # As the map matches it.
    parameters: Json = None
    # As it is sent.
    input: Json = None


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
