"""Store faults: conditions that keep a store from being read or written. Logs when each one begins and ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, Final

from msgspec import Struct

from headgate.errors import CorruptionError, StoreDamagedError, StoreUnavailableError

# A condition ends with a successful write at least this long after the last failure: on a disk that is nearly full,
# small writes succeed between larger ones that fail.
QUIET_SECONDS: Final = 2.0
# Conditions that last until the process restarts.
_LASTING: Final = frozenset({StoreDamagedError.code, CorruptionError.code})
_NAMES: Final[Mapping[str, str]] = {CorruptionError.code: "store corrupt row"}


class StoreFault(Struct, frozen=True):
    """An active condition. `fact` is the message of its last error, `failures` the number of failed calls."""

    code: str
    fact: str
    failures: int
    began_at: float
    failed_at: float

    @property
    def name(self) -> str:
        """The name of the check that reports it."""
        return _NAMES.get(self.code) or self.code.replace("_", " ").replace("read only", "read-only")


class StoreFaults:
    """The current conditions of one store in this process, by error code. Thread-safe."""

    def __init__(self, faults: Iterable[StoreFault] = ()) -> None:
        self._lock = threading.Lock()
        # Replaced, never mutated: readers take no lock.
        self._faults = {fault.code: fault for fault in faults}

    @property
    def is_active(self) -> bool:
        """Whether a condition lasts that a successful write may end."""
        return bool(self._faults) and any(code not in _LASTING for code in self._faults)

    @property
    def damage(self) -> StoreFault | None:
        """The damage of the file, if a call has found any."""
        return self._faults.get(StoreDamagedError.code)

    def current(self) -> list[StoreFault]:
        """Return the conditions that last, oldest first."""
        return list(self._faults.values())

    def record(self, error: BaseException, failures: int = 1) -> None:
        """Count failed calls. Errors that are no condition of the store are ignored."""
        if not isinstance(error, (StoreUnavailableError, CorruptionError)):
            return
        now = monotonic()
        with self._lock:
            before = self._faults.get(error.code)
            began_at = now if before is None else before.began_at
            count = failures if before is None else before.failures + failures
            fault = StoreFault(error.code, error.message, count, began_at, now)
            self._faults = {**self._faults, error.code: fault}
        if before is None:
            _logger().error("store condition began", action="store.fault", code=error.code, error=error.message)

    def on_written(self) -> None:
        """End the conditions that a successful write disproves."""
        now = monotonic()
        with self._lock:
            ended = [
                fault
                for fault in self._faults.values()
                if fault.code not in _LASTING and now - fault.failed_at >= QUIET_SECONDS
            ]
            codes = {fault.code for fault in ended}
            self._faults = {code: fault for code, fault in self._faults.items() if code not in codes}
        for fault in ended:
            _logger().warning(
                "store condition ended",
                action="store.fault",
                code=fault.code,
                failures=fault.failures,
                seconds=round(now - fault.began_at, 1),
            )


def _logger() -> Any:  # noqa: ANN401 - structlog has no type for it
    # Imported on demand: it loads asyncio, which a process that only reads the store does not need.
    import structlog

    return structlog.get_logger(__name__)
