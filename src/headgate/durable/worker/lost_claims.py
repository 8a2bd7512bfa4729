"""Lost claim finder: finds claims under this worker's id that this process does not hold.

A claim is lost when the store commits it and the answer does not arrive. Each claim is tracked in `HeldClaims` until
its result is stored, because the store may delay a call for longer than the time between two searches.
"""

from __future__ import annotations

from headgate.durable.engine.activity_store import Activities
from headgate.durable.engine.engine import Engine
from headgate.durable.model.records import Activity
from headgate.durable.worker.claims import HeldClaims


class LostClaimFinder:
    """Finds the lost claims of one worker. For the polling thread."""

    def __init__(self, activities: Activities, claims: HeldClaims, engine: Engine) -> None:
        self._activities = activities
        self._claims = claims
        self._engine = engine
        self._suspects: set[str] = set()

    def find(self) -> list[Activity]:
        """Return claims that two searches in a row found lost: one may just have caught a claim between two stages."""
        known = self._claims.known_tokens()
        ending = self._engine.ready.removal_keys()
        claimed = self._activities.held()
        lost = [each for each in claimed if each.token not in known and each.activity_id not in ending]
        confirmed = [each for each in lost if each.token in self._suspects]
        self._suspects = {each.token for each in lost} - {each.token for each in confirmed}
        # The index may lag behind the row, which may have ended.
        return [each for each in confirmed if self._activities.is_held(each)]
