"""Activity functions: the Lambda functions of an app's activities that are invoked asynchronously."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Protocol

from msgspec import Struct

from headgate.deployment.names import resource_name
from headgate.durable.model.async_invocation import AsyncInvocation

# The name of a function has at most 64 characters, and 'headgate-activity-' goes before it.
_NAME_MAX: Final = 30


class ActivityFunction(Struct, frozen=True):
    """The function of an activity, as Terraform reads it."""

    activity: str
    maximum_retry_attempts: int
    maximum_event_age_in_seconds: int


class InvokedActivity(Protocol):
    """An activity of an app."""

    @property
    def name(self) -> str: ...

    @property
    def invocation(self) -> AsyncInvocation | None: ...


def activity_functions(activities: Iterable[InvokedActivity]) -> dict[str, ActivityFunction]:
    """Return the functions by the end of their name. Activities of task queues have none."""
    found = {
        resource_name(each.name, _NAME_MAX): ActivityFunction(
            each.name, each.invocation.retries, math.ceil(each.invocation.age_seconds)
        )
        for each in activities
        if each.invocation is not None
    }
    return dict(sorted(found.items()))
