"""Task resources: parses the Resource of a Task into what it calls and how it waits."""

from __future__ import annotations

import enum
import functools
import re
from typing import Final

from msgspec import Struct

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.scope import Json

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_FUNCTION_ARN: Final = re.compile(r"arn:aws[a-z-]*:lambda:[^:]*:[^:]*:function:([A-Za-z0-9_.-]+)(?::[A-Za-z0-9_$.-]+)?")
_ACTIVITY_ARN: Final = re.compile(r"arn:aws[a-z-]*:states:[^:]*:[^:]*:activity:([A-Za-z0-9_.-]+)")
_SERVICE_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:states:::((?:aws-sdk:)?[a-z0-9-]+):([A-Za-z0-9]+)(\.[A-Za-z]+(?::2)?)?"
)
_OURS: Final = re.compile(r"(fanout|machine):([A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}?)(\.sync(?::2)?|\.waitForTaskToken)?")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,127})")
_PLACEHOLDER: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.:-]*)\}")
_PARTITION: Final = re.compile(r"^arn:\$\{[^}]*\}:")
# A region and an account before an integration, which mean nothing.
_INTEGRATION_OWNER: Final = re.compile(r":states:[^:]+:[^:]+:(?!activity:)")
RESOURCES: Final = (
    "the name of a registered function, ${name}, the ARN of a Lambda function or of an activity, "
    "arn:aws:states:::service:action, machine:NAME or fanout:NAME"
)


class WaitMode(enum.StrEnum):
    """What completes a Task: the response, the end of the job, or a callback with the task token."""

    ANSWER = ""
    JOB = ".sync"
    # As JOB, with the job's output as JSON instead of text.
    JOB_AS_JSON = ".sync:2"
    TOKEN = ".waitForTaskToken"


class Callee(enum.StrEnum):
    """The kind of thing that a Task calls."""

    FUNCTION = "function"
    ACTIVITY = "activity"
    SERVICE = "service"
    MACHINE = "machine"
    FANOUT = "fanout"


class TaskTarget(Struct, frozen=True):
    """A parsed Resource."""

    callee: Callee
    name: str
    action: str = ""
    wait: WaitMode = WaitMode.ANSWER

    @property
    def event_prefix(self) -> str:
        """The prefix of the call's event types in Step Functions' history."""
        if self.callee is Callee.FUNCTION:
            return "LambdaFunction"
        return "Activity" if self.callee is Callee.ACTIVITY else "Task"

    @property
    def event_details(self) -> dict[str, Json]:
        """The details by which those events name the callee."""
        if self.callee in (Callee.FUNCTION, Callee.ACTIVITY):
            return {"resource": self.name}
        return {"resourceType": self.name if self.action else self.callee.value, "resource": self.action or self.name}


class TaskCall(Struct, frozen=True):
    """One call of a Task."""

    target: TaskTarget
    input: Json
    timeout_seconds: float | None
    heartbeat_seconds: float | None
    # With a token, the response only acknowledges the start: the holder of the token completes the Task.
    token: str
    # As written in the definition, and the name of the state.
    resource: str = ""
    state: str = ""


@functools.lru_cache(maxsize=4096)
def target_of(resource: str) -> TaskTarget:
    """Parse a Resource. Raises `ValueError` with the allowed forms."""
    resource = _normalized(resource)
    stem = resource.removesuffix(WaitMode.TOKEN)
    wait = WaitMode.ANSWER if stem == resource else WaitMode.TOKEN
    if WaitMode.TOKEN in stem:
        raise ValueError(f"resource {resource!r}: {WaitMode.TOKEN.value} may come once, at the end")
    for pattern, callee in (
        (_VARIABLE, Callee.FUNCTION), (_FUNCTION_ARN, Callee.FUNCTION), (_ACTIVITY_ARN, Callee.ACTIVITY)
    ):  # fmt: skip
        found = pattern.fullmatch(stem)
        if found is not None:
            return TaskTarget(callee, found[1], wait=wait)
    found = _SERVICE_ARN.fullmatch(resource)
    if found is not None:
        return _service(resource, found[1], found[2], _wait(resource, found[3]))
    found = _OURS.fullmatch(resource)
    if found is not None:
        return TaskTarget(Callee(found[1]), found[2], wait=_wait(resource, found[3]))
    found = _NAME.fullmatch(stem)
    if found is not None:
        return TaskTarget(Callee.FUNCTION, found[1], wait=wait)
    raise ValueError(f"resource {resource!r}: use {RESOURCES}")


def _normalized(resource: str) -> str:
    """Return an ARN with what a deployment fills in, such as the partition and the region, replaced by constants."""
    if not resource.startswith("arn:"):
        return resource
    arn = _PARTITION.sub("arn:aws:", resource)
    # The name of a function may be a placeholder too: it is the name of the function here.
    arn = _PLACEHOLDER.sub(lambda found: found[1].replace(":", "-"), arn)
    return _INTEGRATION_OWNER.sub(":states:::", arn)


def _service(resource: str, service: str, action: str, wait: WaitMode) -> TaskTarget:
    if service == "states" and action == "startExecution":
        return TaskTarget(Callee.MACHINE, "states", action, wait)
    if wait is WaitMode.JOB_AS_JSON:
        raise ValueError(f"resource {resource!r}: only states:startExecution, machine: and fanout: take {wait.value}")
    return TaskTarget(Callee.SERVICE, service, action, wait)


def _wait(resource: str, suffix: str | None) -> WaitMode:
    try:
        return WaitMode(suffix or "")
    except ValueError:
        allowed = ", ".join(wait.value for wait in WaitMode if wait.value)
        raise ValueError(f"resource {resource!r}: after the action may come {allowed}") from None


def required_parameter(parameters: Json, name: str, *, resource: str) -> Json:
    """Return a required parameter of a call. Raises `StateError` if it is missing."""
    if not isinstance(parameters, dict) or name not in parameters:
        raise runtime_error(f"The Parameters of {resource} must have {name}")
    return parameters[name]


def to_state_error(error: Exception) -> StateError:
    """Return an error as a `StateError`."""
    return error if isinstance(error, StateError) else StateError(type(error).__name__, str(error))
