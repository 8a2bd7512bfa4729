"""What would have followed a dry run: reported as that, and nothing is done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.pipelines.definition.model import Budgets, PostRun, RetryPolicy, Rule
from headgate.pipelines.enums import RerunReason
from headgate.pipelines.events.names import EventName as E
from headgate.store.catalogue.tables import PIPELINES
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of

SLOT = slot_of()
COUNTED = PostRun(rules=(Rule(key="orders"),), drift_field="count")
DRY = [name for name in E if name.name.startswith("DRY_RUN_")]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.define(
            pipeline(dry_run=True, post_run=COUNTED, budgets=Budgets(manual=1), retry=RetryPolicy(attempts=2))
        )
        opened.push("silver", "orders", date=DATE, count=10)
        opened.push("silver", "landed", date=DATE)
        opened.advance("1m")
        yield opened
        assert opened.jobs.begun == [], "a dry run starts nothing"
        assert (
            opened.event_names("silver", E.RERUN_ACCEPTED, E.RERUN_REJECTED, E.LATE_DATA_ARRIVAL, E.POST_RUN_DRIFT)
            == []
        )


def since_then(rig: Rig) -> list[str]:
    """Return what was reported of dry runs since the first was over."""
    events = rig.event_names("silver", *DRY)
    return events[events.index("DRY_RUN_COMPLETED") + 1 :]


def test_dry_run__data_comes_after_it__is_late_once(rig: Rig) -> None:
    rig.push("silver", "landed", date=DATE, again=1)
    rig.receive_again(rig.all_changes())

    assert since_then(rig) == ["DRY_RUN_LATE_DATA"]
    [late] = rig.events("silver", E.DRY_RUN_LATE_DATA)
    assert late.detail["late_by"] == "60 s"


def test_dry_run__what_it_was_made_from_changes__would_have_drifted(rig: Rig) -> None:
    rig.push("silver", "orders", date=DATE, count=12)

    assert since_then(rig) == ["DRY_RUN_DRIFT"]


def test_dry_run__reruns_within_and_beyond_their_budget__are_reported_as_what_they_would_be(rig: Rig) -> None:
    for _ in range(2):
        rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana", note="again")
        rig.advance("1m")

    result = since_then(rig)
    assert result[0] == "DRY_RUN_WOULD_RERUN"
    assert result[-1] == "DRY_RUN_RERUN_REJECTED"
    assert rig.event_names("silver", E.RERUN_CAP_REACHED) == []


def test_dry_run__others_report_failures__says_whether_it_would_try_again(rig: Rig) -> None:
    for number in (1, 2):
        key = {"PK": "PIPELINE#silver", "SK": f"JOB#stream#{DATE}#177252490000{number}"}
        rig.store.put(PIPELINES, {**key, "event": "fail"})
        rig.pump()
    rig.receive_again(rig.all_changes())

    assert since_then(rig) == ["DRY_RUN_WOULD_RETRY", "DRY_RUN_RETRY_EXHAUSTED"]
