"""Job end listener: wakes a run when its job, a workflow, fan-out or command of Headgate, ends.

The end of a workflow or fan-out is published in the transaction that ends it, that of a command by its supervisor. If
the report is lost, the run polls at its interval.
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


class JobEndListener:
    """Subscribes to the ends of jobs. A spurious or duplicate wake-up is harmless."""

    def __init__(self, runs: Runs, waiters: Waiters) -> None:
        self._runs = runs
        self._waiters = waiters

    def subscribe(self, app: App) -> None:
        """Subscribe an app to the ends of workflows and fan-outs that are named like runs."""
        app.on_event(*TYPES, name=SUBSCRIPTION, filter=Filter(subject=f"{PREFIX}_*"))(self.handle)

    def handle(self, event: Event) -> None:
        """Wake the run whose job ended. A run that does not wait yet polls before it does."""
        self.wake(event.subject)

    def wake(self, run_id: str) -> None:
        """Wake a run whose job ended, unless there is no such run."""
        run = self._runs.find(run_id)
        if run is not None:
            self._waiters.wake(run.slot, WaitKind.JOB, "the job has ended")
