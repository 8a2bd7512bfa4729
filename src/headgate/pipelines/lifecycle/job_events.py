"""Job news: a run whose job is a workflow or a fan-out of ours is woken when that ends, and asks after it then.

The bus brings the news, which was written down with the end itself. Were it lost, the run asks at its interval.
"""

from __future__ import annotations

from typing import Final

from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Filter
from headgate.durable.engine.turn_commit import ENDED_EVENT
from headgate.durable.sdk.app import App
from headgate.fanout.model import events as fanout_events
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.runs.store import PREFIX, Runs

SUBSCRIPTION: Final = "headgate.pipelines.jobs"
TYPES: Final = (ENDED_EVENT, fanout_events.ENDED_EVENT)


class JobNews:
    """Hears of jobs that have ended. To be woken in vain does no harm, so that news may come twice."""

    def __init__(self, runs: Runs, waiters: Waiters) -> None:
        self._runs = runs
        self._waiters = waiters

    def join(self, app: App) -> None:
        """Have an app take the news, of what is called as runs are."""
        app.on_event(*TYPES, name=SUBSCRIPTION, filter=Filter(subject=f"{PREFIX}_*"))(self.handle)

    def handle(self, event: Event) -> None:
        """Wake the run whose job has ended. One that does not wait yet looks for itself once it does."""
        run = self._runs.find(event.subject)
        if run is not None:
            self._waiters.wake(run.slot, WaitKind.JOB, "the job has ended")
