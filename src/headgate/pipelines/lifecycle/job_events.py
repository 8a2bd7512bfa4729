"""Job end listener: wakes a run whose job (a workflow, fan-out or command of Headgate) ended, completes a repaired one.

The end of a workflow or fan-out is published in the transaction that ends it, also when a redrive or retry ends it once
more; that of a command by its supervisor. If the report is lost, the run polls at its interval, and the watchdog finds
the repaired job.
"""

from __future__ import annotations

from typing import Final

from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Filter
from headgate.durable.engine.turn_commit import ENDED_EVENT
from headgate.durable.sdk.app import App
from headgate.fanout.model import events as fanout_events
from headgate.pipelines.lifecycle.job_recovery import JobRecovery
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.runs.store import PREFIX, Runs

SUBSCRIPTION: Final = "headgate.pipelines.jobs"
TYPES: Final = (ENDED_EVENT, fanout_events.ENDED_EVENT)


class JobEndListener:
    """Subscribes to the ends of jobs. A spurious or duplicate wake-up is harmless."""

    def __init__(self, runs: Runs, waiters: Waiters, recovery: JobRecovery) -> None:
        self._runs = runs
        self._waiters = waiters
        self._recovery = recovery

    def subscribe(self, app: App) -> None:
        """Subscribe an app to the ends of workflows and fan-outs that are named like runs."""
        app.on_event(*TYPES, name=SUBSCRIPTION, filter=Filter(subject=f"{PREFIX}_*"))(self.handle)

    def handle(self, event: Event) -> None:
        """Wake the run whose job ended, or complete it if it has failed and its job was repaired."""
        self.wake(event.subject)
        self._recovery.recover(event.subject)

    def wake(self, run_id: str) -> None:
        """Wake a run whose job ended, if there is such a run. One that does not wait yet polls before it does."""
        run = self._runs.find(run_id)
        if run is not None:
            self._waiters.wake(run.slot, WaitKind.JOB, "the job has ended")
