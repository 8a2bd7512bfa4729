"""What a process of two regions does all the time: keep its region's lease, look at both, and fail over if it must."""

from __future__ import annotations

from typing import Final

from headgate.clock import Clock
from headgate.health.failover import Decision, Failover, Keeper
from headgate.health.observers import Observer, read_reports
from headgate.store.port import Store

# Several times a lease, which is a minute.
KEEP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 30.0


class RegionDuty:
    """Does what is due each time that it is called. `keeper` is None for an observer that writes nowhere."""

    def __init__(
        self,
        authority: Store,
        clock: Clock,
        *,
        regions: tuple[str, str],
        observer: Observer,
        failover: Failover,
        keeper: Keeper | None = None,
    ) -> None:
        self._authority = authority
        self._clock = clock
        self._regions = regions
        self._observer = observer
        self._failover = failover
        self._keeper = keeper
        self._looked_at: float | None = None

    def tend(self) -> Decision | None:
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

    def look(self) -> Decision:
        """Look at both regions now, and do what the reports of all observers ask for."""
        for region in self._regions:
            self._observer.look(region)
        return self._failover.look(read_reports(self._authority))
