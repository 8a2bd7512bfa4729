"""Region agent: keeps its region's lease, probes both regions, shares the reports, and fails over if necessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from headgate.clock import Clock
from headgate.health.regions.failover import (
    Failover,
    FailoverDecision,
    LeaseKeeper,
    ProbeReport,
    ReplicationReport,
    Reports,
)
from headgate.store.catalogue.tables import CONTROL, HEALTH_CHECK, REGION_PULSE
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.port import Store

_PARTITION: Final = "REGION#REPORTS"
_REPLICATION: Final = "REGION#REPLICATION"
_KEPT_SECONDS: Final = 86_400
# Several times during a lease, which lasts a minute.
KEEP_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 30.0
_REPORTS_MAX: Final = 1000
_log = structlog.get_logger("statestore.regions")


class RegionProbe:
    """A probe under a unique name. `is_healthy` returns whether a region is healthy, and must not raise."""

    def __init__(self, authority: Store, clock: Clock, name: str, is_healthy: Callable[[str], bool]) -> None:
        self._authority = authority
        self._clock = clock
        self._name = name
        self._is_healthy = is_healthy

    def probe(self, region: str) -> ProbeReport:
        """Probe a region, and store how many probes in a row have failed."""
        key = Key(_PARTITION, f"{region}#{self._name}")
        row = self._authority.get(CONTROL, key, consistent=True)
        before = 0 if row is None else int(row["failures"])
        failures = 0 if self._is_healthy(region) else before + 1
        now_ms = round(1000 * self._clock.seconds())
        since_ms = 0 if not failures or row is None else int(row.get("failing_since_ms") or 0)
        if failures:
            _log.warning("primary_region_health_check_failed", region=region, observer=self._name, failures=failures)
        report = ProbeReport(failures, now_ms, (since_ms or now_ms) if failures else 0)
        self._authority.put(
            CONTROL,
            {
                **CONTROL.key_attributes(key),
                "region": region,
                "observer": self._name,
                "failures": report.failures,
                "at_ms": report.at_ms,
                "failing_since_ms": report.failing_since_ms,
                "ttl": int(self._clock.seconds()) + _KEPT_SECONDS,
            },
        )
        return report


def read_reports(authority: Store) -> Reports:
    """Return the last reports of all observers, by region and observer."""
    page = authority.query(Query(table=CONTROL, partition=_PARTITION, limit=_REPORTS_MAX, consistent=True))
    found: dict[str, dict[str, ProbeReport]] = {}
    for row in page.items:
        found.setdefault(row["region"], {})[row["observer"]] = ProbeReport(
            int(row["failures"]), int(row["at_ms"]), int(row.get("failing_since_ms") or 0)
        )
    return found


class RegionPulse:
    """Measures replication: the writer stores the time beside its data, and the other region reports what arrived."""

    def __init__(self, store: Store, authority: Store, clock: Clock, *, region: str, other: str) -> None:
        self._store = store
        self._authority = authority
        self._clock = clock
        self._region = region
        self._other = other

    def beat(self) -> None:
        """Store the time as this region's pulse. Only for the writer."""
        now_ms = round(1000 * self._clock.seconds())
        key = REGION_PULSE.key(region=self._region)
        self._store.put(HEALTH_CHECK, {**HEALTH_CHECK.key_attributes(key), "at_ms": now_ms, "version": now_ms})

    def report(self) -> None:
        """Report the newest pulse of the other region that has arrived here."""
        row = self._store.get(HEALTH_CHECK, REGION_PULSE.key(region=self._other), consistent=True)
        if row is None:
            return
        report = ReplicationReport(self._other, int(row["at_ms"]), round(1000 * self._clock.seconds()))
        key = Key(_REPLICATION, self._region)
        self._authority.put(
            CONTROL,
            {
                **CONTROL.key_attributes(key),
                "region": self._region,
                **msgspec.to_builtins(report),
                "ttl": int(self._clock.seconds()) + _KEPT_SECONDS,
            },
        )


def read_replication(authority: Store) -> dict[str, ReplicationReport]:
    """Return how far each region has received the other's writes."""
    page = authority.query(Query(table=CONTROL, partition=_REPLICATION, limit=_REPORTS_MAX, consistent=True))
    return {
        row["region"]: ReplicationReport(row["writer"], int(row["pulse_at_ms"]), int(row["at_ms"]))
        for row in page.items
    }


def lag_seconds(report: ReplicationReport) -> float:
    """Return how far a region is behind, as measured. A pulse is up to a period old when the next one is sent."""
    return max(0.0, (report.at_ms - report.pulse_at_ms) / 1000 - KEEP_SECONDS)


class RegionAgent:
    """Runs all due duties of a region process. `keeper` and `pulse` are None for an observer outside the regions."""

    def __init__(
        self,
        authority: Store,
        clock: Clock,
        *,
        regions: tuple[str, str],
        probe: RegionProbe,
        failover: Failover,
        keeper: LeaseKeeper | None = None,
        pulse: RegionPulse | None = None,
    ) -> None:
        self._authority = authority
        self._clock = clock
        self._regions = regions
        self._probe = probe
        self._failover = failover
        self._keeper = keeper
        self._pulse = pulse
        self._probed_at: float | None = None

    def run_due(self) -> FailoverDecision | None:
        """Renew the lease; if a probe is due, probe the regions and return the decision.

        Raises what the authority raises; the fence closes by itself when the lease ends.
        """
        is_writer = self._keeper is not None and self._keeper.keep()
        if self._pulse is not None:
            if is_writer:
                self._pulse.beat()
            else:
                self._pulse.report()
        now = self._clock.monotonic()
        if self._probed_at is not None and now - self._probed_at < PROBE_SECONDS:
            return None
        self._probed_at = now
        return self.evaluate()

    def evaluate(self) -> FailoverDecision:
        """Probe both regions now, and act on the reports of all observers."""
        for region in self._regions:
            self._probe.probe(region)
        return self._failover.evaluate(read_reports(self._authority), read_replication(self._authority))
