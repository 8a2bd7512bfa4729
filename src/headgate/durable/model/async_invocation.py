"""Asynchronous invocation: how AWS Lambda runs an activity that has a function of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headgate.durable.model.duration import Duration, seconds
from headgate.durable.model.history import ActivityOptions
from headgate.errors import DefinitionError

# Limits of Lambda: retries of a failed invocation, and the time that an event may wait.
RETRIES_MAX: Final = 2
AGE_SECONDS_MIN: Final = 60.0
AGE_SECONDS_MAX: Final = 21_600.0
# Lambda ends an invocation after 15 minutes; the result is stored in the last 15 seconds.
ATTEMPT_SECONDS_MAX: Final = 885.0


@dataclass(frozen=True)
class AsyncInvocation:
    """Have an activity invoked asynchronously on AWS, as a Lambda function of its own.

    `retries` is how often Lambda invokes the function again after a failed invocation. `max_age` is how long Lambda
    tries to start it, for example while it is throttled. What Lambda gives up on is counted as a failed attempt, to
    which the `retry` of the activity applies. Workers run the activity as any other.
    """

    retries: int = 0
    max_age: Duration = "6h"

    def __post_init__(self) -> None:
        if not isinstance(self.retries, int) or not 0 <= self.retries <= RETRIES_MAX:
            raise DefinitionError(f"AsyncInvocation(retries={self.retries!r}): Lambda takes 0 to {RETRIES_MAX}")
        if not AGE_SECONDS_MIN <= self.age_seconds <= AGE_SECONDS_MAX:
            raise DefinitionError(f"AsyncInvocation(max_age={self.max_age!r}): Lambda takes one minute to six hours")

    @property
    def age_seconds(self) -> float:
        """`max_age` in seconds."""
        return seconds(self.max_age, name="max_age")


def check_invocation(name: str, options: ActivityOptions) -> None:
    """Raise `DefinitionError` if an activity with these options cannot be invoked asynchronously."""
    if options.queue != "default":
        raise DefinitionError(
            f"activity {name}: queue={options.queue!r} with invocation=: the activity has a function of its own and no "
            "task queue; leave one of them out"
        )
    limit_seconds = options.start_to_close
    if limit_seconds is not None and limit_seconds > ATTEMPT_SECONDS_MAX:
        raise DefinitionError(
            f"activity {name}: timeout={limit_seconds:g} s with invocation=: Lambda ends an invocation after 15 "
            f"minutes; use at most {ATTEMPT_SECONDS_MAX:g} s, or leave out invocation= and run it on a worker"
        )
