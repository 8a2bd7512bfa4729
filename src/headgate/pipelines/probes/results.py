"""Probe results: one row for each probe, with its lease and the last results, and the sensor that rules read.

The row is claimed before a look, so that one process looks at a time; the claim's number fences its result. Result and
sensor are one transaction. A sensor whose data is unchanged is rewritten quietly and wakes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError, NotFoundError
from headgate.pipelines.enums import Verdict
from headgate.pipelines.probes.model import Probe, ProbeResult, probe_key
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.sensors import Sensors
from headgate.store.catalogue.tables import PIPELINES, PROBE_STATE
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put
from headgate.store.port import Store

# A state that is not renewed for this long belongs to a probe that was removed.
RETENTION_SECONDS: Final = 30 * 86_400
# A claim outlives the time-out of the probe by this much.
GRACE_SECONDS: Final = 30.0


class ProbeState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The schedule and the last results of a probe. `version` counts claims."""

    probe_id: str
    version: int
    due_at_ms: int
    claimed_by: str = ""
    claimed_until_ms: int = 0
    # Number of looks, by the verdict that they had.
    counts: Mapping[str, int] = {}
    # The last result of each period, latest first.
    results: tuple[ProbeResult, ...] = ()
    # When the probe last could look.
    last_seen_at_ms: int = 0
    # The digest of the definition that the results are of.
    definition: str = ""

    def is_of(self, probe: Probe) -> bool:
        """Whether the results are of this definition of the probe, and not of an earlier one."""
        return self.definition == probe.digest

    def result_of(self, period: str) -> ProbeResult | None:
        """Return the last result of a period; of a probe without periods, that of the empty text."""
        return next((result for result in self.results if result.period == period), None)


class ProbeResults:
    """Stores results and claims. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, sensors: Sensors) -> None:
        self._store = store
        self._clock = clock
        self._sensors = sensors

    def states(self, probe_ids: Sequence[str]) -> dict[str, ProbeState]:
        """Return the states of probes that have one, with one read."""
        keys = [PROBE_STATE.key(probe_id=probe_id) for probe_id in probe_ids]
        items = self._store.get_many(PIPELINES, keys, consistent=True)
        return {
            probe_id: struct_of(item, ProbeState)
            for probe_id, item in zip(probe_ids, items, strict=True)
            if item is not None
        }

    def claim(self, probe: Probe, state: ProbeState | None, by: str, next_at_ms: int) -> ProbeState | None:
        """Claim a due probe, and return its new state. None: another process has it."""
        now_ms = epoch_ms(self._clock)
        lease_ms = round((float(probe.timeout) * probe.periods + GRACE_SECONDS) * 1000)
        claimed = ProbeState(
            probe_id=probe.id,
            version=1 if state is None else state.version + 1,
            due_at_ms=next_at_ms,
            claimed_by=by,
            claimed_until_ms=now_ms + lease_ms,
            counts={} if state is None else state.counts,
            results=() if state is None else state.results,
            last_seen_at_ms=0 if state is None else state.last_seen_at_ms,
            definition="" if state is None else state.definition,
        )
        condition = absent() if state is None else version_is(state.version)
        try:
            self._store.transact([Put(PIPELINES, self._item(claimed), condition, quiet=True)])
        except ConflictError:
            return None
        return claimed

    def record(self, probe: Probe, claimed: ProbeState, results: Sequence[ProbeResult]) -> bool:
        """Store the results of a claim with their sensors. False: the claim has expired and another has it."""
        counts = dict(claimed.counts)
        for result in results:
            counts[result.verdict.value] = counts.get(result.verdict.value, 0) + 1
        seen = [result.at_ms for result in results if result.verdict is not Verdict.UNKNOWN]
        state = ProbeState(
            probe_id=probe.id,
            version=claimed.version + 1,
            due_at_ms=claimed.due_at_ms,
            counts=counts,
            results=tuple(results),
            last_seen_at_ms=max([claimed.last_seen_at_ms, *seen]),
            definition=probe.digest,
        )
        writes = [Put(PIPELINES, self._item(state), version_is(claimed.version), quiet=True)]
        for result in results:
            data = result.sensor_data(probe)
            writes += self._sensors.probe_writes(probe_key(probe.id), data, period=result.period or None)
        try:
            self._store.transact(writes)
        except ConflictError:
            return False
        return True

    def get(self, probe_id: str) -> ProbeState:
        """Return the state of a probe. Raises `NotFoundError`."""
        state = self.states([probe_id]).get(probe_id)
        if state is None:
            raise NotFoundError(f"probe {probe_id}: it has not run yet")
        return state

    def _item(self, state: ProbeState) -> dict[str, object]:
        key = PROBE_STATE.key(probe_id=state.probe_id)
        return row(key, state, ttl=int(self._clock.seconds()) + RETENTION_SECONDS)
