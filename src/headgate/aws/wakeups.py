"""Wakeup handlers: send the queue messages that changed rows call for, and sweep every minute for missed ones.

The table streams and the delay queue invoke `waker`; an EventBridge rule invokes `sweep`.
"""

from __future__ import annotations

from headgate.aws.app_container import app_container
from headgate.aws.invocation import Context, Event, handle, is_out_of_time


def waker(event: Event, context: Context) -> Event:
    """Send the wakeups that stream records or due messages call for."""
    return handle("waker", context, lambda: {"sent": app_container().wake(event["Records"])})


def sweep(event: Event, context: Context) -> Event:
    """Send overdue wakeups again, and run timed maintenance. With `check`, only load the app and read the tables."""
    if event.get("check"):
        return handle("sweep", context, lambda: {"workflows": app_container().check()})
    return handle("sweep", context, lambda: {"sent": app_container().sweep(lambda: is_out_of_time(context))})
