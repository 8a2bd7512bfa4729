"""Region agent: keeps its region's lease, probes both regions, shares the reports, and fails over if necessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from headgate.clock import Clock
from headgate.health.regions.failover import Failover, FailoverDecision, LeaseKeeper, ProbeReport, Reports
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.port import Store

_PARTITION: Final = "REGION#REPORTS"
_KEPT_SECONDS: Final = 86_400
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
        if failures:
            _log.warning("primary_region_health_check_failed", region=region, observer=self._name, failures=failures)
        report = ProbeReport(failures, round(1000 * self._clock.seconds()))
        self._authority.put(
            CONTROL,
            {
                **CONTROL.key_attributes(key),
                "region": region,
                "observer": self._name,
                "failures": report.failures,
                "at_ms": report.at_ms,
                "ttl": int(self._clock.seconds()) + _KEPT_SECONDS,
            },
        )
        return report


def read_reports(authority: Store) -> Reports:
    """Return the last reports of all observers, by region and observer."""
    page = authority.query(Query(table=CONTROL, partition=_PARTITION, limit=_REPORTS_MAX, consistent=True))
    found: dict[str, dict[str, ProbeReport]] = {}
    for row in page.items:
        found.setdefault(row["region"], {})[row["observer"]] = ProbeReport(int(row["failures"]), int(row["at_ms"]))
    return found


# Several times during a lease, which lasts a minute.
KEEP_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 30.0


class RegionAgent:
    """Runs all due duties of a region process. `keeper` is None for an observer outside the regions."""

    def __init__(
        self,
        authority: Store,
        clock: Clock,
        *,
        regions: tuple[str, str],
        probe: RegionProbe,
        failover: Failover,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        self._authority = authority
        self._clock = clock
        self._regions = regions
        self._probe = probe
        self._failover = failover
        self._keeper = keeper
        self._probed_at: float | None = None

    def run_due(self) -> FailoverDecision | None:
        """Renew the lease; if a probe is due, probe the regions and return the decision.

        Raises what the authority raises; the fence closes by itself when the lease ends.
        """
        if self._keeper is not None:
            self._keeper.keep()
        now = self._clock.monotonic()
        if self._probed_at is not None and now - self._probed_at < PROBE_SECONDS:
            return None
        self._probed_at = now
        return self.evaluate()

    def evaluate(self) -> FailoverDecision:
        """Probe both regions now, and act on the reports of all observers."""
        for region in self._regions:
            self._probe.probe(region)
        return self._failover.evaluate(read_reports(self._authority))
