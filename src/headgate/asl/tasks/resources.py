"""Calls: what the Resource of a Task stands for."""

from __future__ import annotations

import enum
import functools
import re
from typing import Final

from msgspec import Struct

from headgate.asl.errors import StateError, runtime
from headgate.asl.expressions.scope import Json

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_FUNCTION_ARN: Final = re.compile(r"arn:aws[a-z-]*:lambda:[^:]*:[^:]*:function:([A-Za-z0-9_.-]+)(?::[A-Za-z0-9_$.-]+)?")
_ACTIVITY_ARN: Final = re.compile(r"arn:aws[a-z-]*:states:[^:]*:[^:]*:activity:([A-Za-z0-9_.-]+)")
_SERVICE_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:states:::((?:aws-sdk:)?[a-z0-9]+):([A-Za-z0-9]+)(\.[A-Za-z]+(?::2)?)?"
)
_OURS: Final = re.compile(r"(fanout|machine):([A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}?)(\.sync(?::2)?|\.waitForTaskToken)?")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,127})")
RESOURCES: Final = (
    "the name of a registered function, ${name}, the ARN of a Lambda function or of an activity, "
    "arn:aws:states:::service:action, machine:NAME or fanout:NAME"
)


class Wait(enum.StrEnum):
    """What the end of a Task is: the answer to the call, the end of the job, or a callback with the task's token."""

    ANSWER = ""
    JOB = ".sync"
    # The same, with the output of the job as JSON and not as text.
    JOB_AS_JSON = ".sync:2"
    TOKEN = ".waitForTaskToken"


class Callee(enum.StrEnum):
    """What kind of thing a Task calls."""

    FUNCTION = "function"
    ACTIVITY = "activity"
    SERVICE = "service"
    MACHINE = "machine"
    FANOUT = "fanout"


class Target(Struct, frozen=True):
    """A Resource, taken apart."""

    callee: Callee
    name: str
    action: str = ""
    wait: Wait = Wait.ANSWER

    @property
    def event_words(self) -> str:
        """How the events of such a call begin in Step Functions' history."""
        if self.callee is Callee.FUNCTION:
            return "LambdaFunction"
        return "Activity" if self.callee is Callee.ACTIVITY else "Task"

    @property
    def facts(self) -> dict[str, Json]:
        """What those events say of who is called."""
        if self.callee in (Callee.FUNCTION, Callee.ACTIVITY):
            return {"resource": self.name}
        return {"resourceType": self.name if self.action else self.callee.value, "resource": self.action or self.name}


@functools.lru_cache(maxsize=4096)
def target_of(resource: str) -> Target:
    """Return what a Resource stands for. Raises `ValueError` that says what is allowed."""
    stem = resource.removesuffix(Wait.TOKEN)
    wait = Wait.ANSWER if stem == resource else Wait.TOKEN
    if Wait.TOKEN in stem:
        raise ValueError(f"resource {resource!r}: {Wait.TOKEN.value} may come once, at the end")
    for pattern, callee in (
        (_VARIABLE, Callee.FUNCTION), (_FUNCTION_ARN, Callee.FUNCTION), (_ACTIVITY_ARN, Callee.ACTIVITY)
    ):  # fmt: skip
        found = pattern.fullmatch(stem)
        if found is not None:
            return Target(callee, found[1], wait=wait)
    found = _SERVICE_ARN.fullmatch(resource)
    if found is not None:
        return _service(resource, found[1], found[2], _wait(resource, found[3]))
    found = _OURS.fullmatch(resource)
    if found is not None:
        return Target(Callee(found[1]), found[2], wait=_wait(resource, found[3]))
    found = _NAME.fullmatch(stem)
    if found is not None:
        return Target(Callee.FUNCTION, found[1], wait=wait)
    raise ValueError(f"resource {resource!r}: use {RESOURCES}")


def _service(resource: str, service: str, action: str, wait: Wait) -> Target:
    if service == "states" and action == "startExecution":
        return Target(Callee.MACHINE, "states", action, wait)
    if wait in (Wait.JOB, Wait.JOB_AS_JSON):
        raise ValueError(f"resource {resource!r}: only states:startExecution, machine: and fanout: take {wait.value}")
    return Target(Callee.SERVICE, service, action, wait)


def _wait(resource: str, suffix: str | None) -> Wait:
    try:
        return Wait(suffix or "")
    except ValueError:
        allowed = ", ".join(wait.value for wait in Wait if wait.value)
        raise ValueError(f"resource {resource!r}: after the action may come {allowed}") from None


def field(parameters: Json, name: str, *, resource: str) -> Json:
    """Return a parameter of a call that has to be there. Raises `StateError`."""
    if not isinstance(parameters, dict) or name not in parameters:
        raise runtime(f"The Parameters of {resource} must have {name}")
    return parameters[name]


def as_error(error: Exception) -> StateError:
    """Return an error of ours as one of a state."""
    return error if isinstance(error, StateError) else StateError(type(error).__name__, str(error))
