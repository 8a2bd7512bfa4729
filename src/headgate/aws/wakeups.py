"""Wakeup handlers: send the queue messages that changed rows call for, and sweep every minute for missed ones.

The table streams and the delay queue invoke `waker`; an EventBridge rule invokes `sweep`.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.aws.app_container import AppContainer, app_container
from headgate.aws.invocation import Context, Event, handle, is_out_of_time


def waker(event: Event, context: Context) -> Event:
    """Send the wakeups that stream records or due messages call for."""
    return _handle("waker", context, lambda container: {"sent": container.wake(event["Records"])})


def sweep(event: Event, context: Context) -> Event:
    """Send overdue wakeups again, and run timed maintenance. With `check`, only load the app and read the tables."""
    if event.get("check"):
        return _handle("sweep", context, lambda container: {"workflows": container.check()})
    return _handle("sweep", context, lambda container: {"sent": container.sweep(lambda: is_out_of_time(context))})


def _handle(function: str, context: Context, call: Callable[[AppContainer], Event]) -> Event:
    def run() -> Event:
        container = app_container()
        with container.metrics.of(function):
            return call(container)

    return handle(function, context, run)
