"""Observers: each looks at both regions now and then, and leaves what it saw with the authority for all to read.

What a process of two regions does all the time: keep its region's lease, look at both, and fail over if it must.
"""

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
    """One observer, by a name that no other has. `is_well` asks a region how it is, and must not raise."""

    def __init__(self, authority: Store, clock: Clock, name: str, is_well: Callable[[str], bool]) -> None:
        self._authority = authority
        self._clock = clock
        self._name = name
        self._is_well = is_well

    def look(self, region: str) -> ProbeReport:
        """Ask a region how it is, and report how many times in a row it was not well."""
        key = Key(_PARTITION, f"{region}#{self._name}")
        row = self._authority.get(CONTROL, key, consistent=True)
        before = 0 if row is None else int(row["failures"])
        failures = 0 if self._is_well(region) else before + 1
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
    """Return what all observers said last, by region and observer."""
    page = authority.query(Query(table=CONTROL, partition=_PARTITION, limit=_REPORTS_MAX, consistent=True))
    found: dict[str, dict[str, ProbeReport]] = {}
    for row in page.items:
        found.setdefault(row["region"], {})[row["observer"]] = ProbeReport(int(row["failures"]), int(row["at_ms"]))
    return found


# Several times a lease, which is a minute.
KEEP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 30.0


class RegionAgent:
    """Does what is due each time that it is called. `keeper` is None for an observer that writes nowhere."""

    def __init__(
        self,
        authority: Store,
        clock: Clock,
        *,
        regions: tuple[str, str],
        observer: RegionProbe,
        failover: Failover,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        self._authority = authority
        self._clock = clock
        self._regions = regions
        self._observer = observer
        self._failover = failover
        self._keeper = keeper
        self._looked_at: float | None = None

    def tend(self) -> FailoverDecision | None:
        """Keep the lease; look at the regions if it is time to, and return what was decided then.

        Raises what the authority raises; the fence closes by itself when the lease ends.
        """
        if self._keeper is not None:
            self._keeper.keep()
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < LOOK_SECONDS:
            return None
        self._looked_at = now
        return self.look()

    def look(self) -> FailoverDecision:
        """Look at both regions now, and do what the reports of all observers ask for."""
        for region in self._regions:
            self._observer.look(region)
        return self._failover.look(read_reports(self._authority))
