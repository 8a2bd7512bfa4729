"""Result recorder: stores how attempts at activities ended, and passes the result on to the execution."""

from __future__ import annotations

import structlog

from headgate.durable.engine.activity_store import Activities, AttemptResult
from headgate.durable.engine.engine import Engine
from headgate.durable.engine.membership import Fleet
from headgate.durable.model.meters import EXTERNAL, FAILED, RETRIED, SUCCEEDED, TIMED_OUT, ExecutionMeters
from headgate.durable.model.records import Activity
from headgate.durable.worker.claims import HeldClaims
from headgate.durable.worker.poll_schedule import PollSchedule
from headgate.errors import OutcomeUnknownError, StaleClaimError, TransientError
from headgate.outage_log import OutageLog

_log = structlog.get_logger(__name__)


class ResultRecorder:
    """Records results for one worker. Safe to use from many threads."""

    def __init__(
        self,
        activities: Activities,
        fleet: Fleet,
        engine: Engine,
        claims: HeldClaims,
        schedule: PollSchedule,
        *,
        meters: ExecutionMeters | None = None,
    ) -> None:
        self._activities = activities
        self._fleet = fleet
        self._engine = engine
        self._unrecorded = claims.unrecorded
        self._schedule = schedule
        self._meters = meters
        self._is_stopping = False
        self._outage = OutageLog(_log, "store unavailable; result buffered", pause_seconds=0.0)

    def announce_stop(self) -> None:
        """Store each result at once: no later turn of this worker is certain to record it."""
        self._is_stopping = True

    def record_or_buffer(self, activity: Activity, result: AttemptResult | None) -> None:
        """Store a result; buffer it if the store is unavailable, drop it if the claim is lost.

        None as the result: the activity is completed from outside.
        """
        try:
            self.record(activity, result)
            self._outage.succeeded()
        except StaleClaimError as exc:
            _log.info("claim lost; result dropped", activity_id=activity.activity_id, fact=str(exc))
            if self._meters is not None:
                self._meters.on_claim_lost()
        except (TransientError, OutcomeUnknownError) as exc:
            # Recording it twice is safe: the second write is refused.
            self._outage.failed(exc, activity_id=activity.activity_id)
            self._unrecorded.append((activity, result))

    def retry_buffered(self) -> None:
        """Store the results that were buffered."""
        for _ in range(len(self._unrecorded)):
            self.record_or_buffer(*self._unrecorded.popleft())

    def record(self, activity: Activity, result: AttemptResult | None) -> None:
        """Store a result. Raises `StaleClaimError` if the claim is lost, and what the store raises."""
        outcome = SUCCEEDED
        if result is None:
            self._activities.hand_over(activity)
            self._schedule.poll_soon()
            outcome = EXTERNAL
        elif activity.subscription is not None:
            is_retried = self._activities.end_delivery(activity, result)
            if result.error is not None:
                self._schedule.poll_soon()
                outcome = RETRIED if is_retried else FAILED
        else:
            source = self._activities.end_attempt(activity, result)
            if result.error is not None:
                outcome = RETRIED if source is None else FAILED if result.timeout is None else TIMED_OUT
            if source is None:
                self._schedule.poll_soon()
            elif activity.limit_slot is None and not self._is_stopping and self._owns(activity.execution_id):
                # The turn that consumes the event removes the activity's row in its own transaction.
                self._engine.add_event(activity.execution_id, source)
            else:
                self._activities.send_end(activity, source)
                self._schedule.poll_soon()
                if self._is_stopping:
                    # No poll follows; the last cycles read it if there is time.
                    self._engine.read_inbox(activity.execution_id)
        if self._meters is not None:
            self._meters.on_attempt(activity.name, outcome)

    def _owns(self, execution_id: str) -> bool:
        # The row is needed only if some workers may not advance it. Without one, the engine checks that.
        row = self._engine.row_in_memory(execution_id) if self._fleet.is_mixed else None
        return self._fleet.owns(execution_id, row)
