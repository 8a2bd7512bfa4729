"""The conditions of a store: what begins one, what ends it, and that each is logged once."""

from __future__ import annotations

from structlog.testing import capture_logs

from headgate.errors import CorruptionError, NotFoundError, ReadOnlyStoreError, StoreDamagedError, StoreFullError
from headgate.store import faults as module
from headgate.store.faults import StoreFaults


def test_record__the_same_condition_many_times__one_line_and_the_count() -> None:
    faults = StoreFaults()

    with capture_logs() as logs:
        for _ in range(50):
            faults.record(StoreFullError("home: no space"), 2)

    assert [each["event"] for each in logs] == ["store condition began"]
    (fault,) = faults.current()
    assert (fault.name, fault.failures, fault.fact) == ("store full", 100, "home: no space")


def test_record__errors_of_callers__are_no_condition() -> None:
    faults = StoreFaults()

    faults.record(NotFoundError("run 7: there is none"))
    faults.record(ValueError("a bug"))

    assert faults.current() == []


def test_on_written__soon_after_a_failure__the_condition_lasts() -> None:
    faults = StoreFaults()
    faults.record(StoreFullError("home: no space"))

    faults.on_written()

    assert [fault.code for fault in faults.current()] == ["store_full"]


def test_on_written__long_after_the_last_failure__ends_it_with_one_line() -> None:
    faults = StoreFaults()
    faults.record(ReadOnlyStoreError("home: read-only"))
    (fault,) = faults.current()
    aged = module.StoreFault(fault.code, fault.fact, 3, fault.began_at - 9, fault.failed_at - module.QUIET_SECONDS)
    faults = StoreFaults([aged])

    with capture_logs() as logs:
        faults.on_written()
        faults.on_written()

    assert faults.current() == []
    assert [(each["event"], each["failures"]) for each in logs] == [("store condition ended", 3)]


def test_on_written__damage__stays() -> None:
    faults = StoreFaults()
    faults.record(StoreDamagedError("home: damaged"))
    faults.record(CorruptionError("table t: a row is corrupt"))

    assert not faults.is_active
    faults.on_written()

    assert [fault.name for fault in faults.current()] == ["store damaged", "store corrupt row"]
    assert faults.damage is not None
