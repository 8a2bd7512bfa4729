"""Wakes on Lambda: passes on what changed rows ask for, and looks every minute for what nobody was told of.

The waker is called by the streams of the tables and by the queue of what is to come later; the sweep by a rule.
"""

from __future__ import annotations

from headgate.aws.app_container import app_container
from headgate.aws.invocations import Context, Event, answered, is_over


def waker(event: Event, context: Context) -> Event:
    """Send what records of a stream, or messages that are due, ask for."""
    return answered("waker", context, lambda: {"sent": app_container().wake(event["Records"])})


def sweep(event: Event, context: Context) -> Event:
    """Tell again what is overdue, and do what is done by the clock."""
    del event
    return answered("sweep", context, lambda: {"sent": app_container().sweep(lambda: is_over(context))})
