"""Schedules declared in code: created, changed and removed by workers, also of several builds at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.model.schedule_declarations import ScheduleDeclaration
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.declared import REMOVE_SECONDS, DeclaredSchedules, Verdict, judge
from headgate.durable.schedules.schedules import Schedules
from headgate.durable.schedules.slots import Schedule, Spec
from headgate.durable.service import Service
from headgate.errors import DefinitionError, InvalidScheduleError, NotFoundError
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from tests.stores import open_sqlite


class Rig:
    """A store, and builds of one app that declare schedules."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock)
        self.schedules = Schedules(self.store, self.clock, IdMaker(self.clock))

    def build(self, **crons: str) -> DeclaredSchedules:
        declared = [ScheduleDeclaration(name, "report", hg.Cron(text), "null") for name, text in crons.items()]
        return DeclaredSchedules(self.schedules, self.clock, "shop", declared)

    def cron(self, schedule_id: str) -> str:
        return self.schedules.get(schedule_id).spec.recurrence.expression


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.close()


def test_reconcile__new_and_changed_declarations__are_stored(rig: Rig) -> None:
    rig.build(nightly="0 6 * * *").reconcile(())
    first = rig.schedules.get("nightly")
    rig.build(nightly="0 6 * * *").reconcile(())
    assert rig.schedules.get("nightly") == first
    assert (first.declared_by, rig.cron("nightly")) == ("shop", "0 6 * * *")

    rig.build(nightly="0 7 * * *").reconcile(())

    assert rig.cron("nightly") == "0 7 * * *"


def test_reconcile__older_build_restarted_during_a_deployment__does_not_bring_its_own_back(rig: Rig) -> None:
    old, new = rig.build(nightly="0 6 * * *"), rig.build(nightly="0 7 * * *")
    old.reconcile(())
    new.reconcile(old.entries())

    for _ in range(3):
        old.reconcile(new.entries())
        new.reconcile(old.entries())

    assert rig.cron("nightly") == "0 7 * * *"
    # Rolled back: no worker of the newer build is left.
    old.reconcile(old.entries())
    assert rig.cron("nightly") == "0 6 * * *"
    # And forward again.
    new.reconcile(old.entries())
    assert rig.cron("nightly") == "0 6 * * *"
    new.reconcile(())
    assert rig.cron("nightly") == "0 7 * * *"


def test_reconcile__changed_or_paused_by_hand__stays_until_the_declaration_changes(rig: Rig) -> None:
    rig.build(nightly="0 6 * * *").reconcile(())
    rig.schedules.pause("nightly", "holidays")
    rig.schedules.update("nightly", Spec(workflow="report", recurrence=Recurrence("0 9 * * *")))

    rig.build(nightly="0 6 * * *").reconcile(())
    assert (rig.cron("nightly"), rig.schedules.get("nightly").paused) == ("0 9 * * *", True)

    rig.build(nightly="0 7 * * *").reconcile(())
    assert (rig.cron("nightly"), rig.schedules.get("nightly").paused) == ("0 7 * * *", True)


def test_reconcile__schedule_made_by_hand__is_left_alone(rig: Rig) -> None:
    by_hand = Spec(workflow="other", recurrence=Recurrence("0 9 * * *"))
    rig.schedules.create("nightly", by_hand)
    declared = rig.build(nightly="0 6 * * *")

    declared.reconcile(())
    rig.clock.advance(2 * REMOVE_SECONDS)
    rig.build().remove_undeclared(())

    assert rig.schedules.get("nightly").spec.workflow == "other"


def test_removed__from_the_code__is_deleted_once_no_live_worker_has_declared_it_for_a_while(rig: Rig) -> None:
    old, new = rig.build(nightly="0 6 * * *", hourly="@hourly"), rig.build(hourly="@hourly")
    old.reconcile(())

    for _ in range(3):
        new.remove_undeclared(old.entries())
        rig.clock.advance(REMOVE_SECONDS)
    assert rig.cron("nightly")
    # Since now no worker declares it.
    new.remove_undeclared(())
    rig.clock.advance(REMOVE_SECONDS - 1)
    new.remove_undeclared(())
    assert rig.cron("nightly")
    rig.clock.advance(1)
    new.remove_undeclared(())

    with pytest.raises(NotFoundError):
        rig.schedules.get("nightly")
    assert rig.cron("hourly")


def test_judge__each_case__has_its_verdict() -> None:
    spec = Spec(workflow="w", recurrence=Recurrence("@daily"))
    stored = Schedule(
        schedule_id="s",
        spec=spec,
        created_at_ms=0,
        judged_through_ms=0,
        version=1,
        revision=1,
        declared_by="shop",
        declared_digest="new",
        superseded=("old",),
    )

    assert judge(None, "shop", "new", ()) is Verdict.CREATE
    assert judge(stored, "other", "new", ()) is Verdict.REFUSE
    assert judge(stored, "shop", "new", ()) is Verdict.KEEP
    assert judge(stored, "shop", "newest", ("new",)) is Verdict.REPLACE
    assert judge(stored, "shop", "old", ("new",)) is Verdict.KEEP
    assert judge(stored, "shop", "old", ("old",)) is Verdict.REPLACE


def test_declare__not_valid__is_refused_where_it_is_declared_or_when_the_worker_starts(rig: Rig) -> None:
    app = hg.App("invalid")

    with pytest.raises(DefinitionError, match=r"schedule report: .* use app.schedule"):

        @app.workflow(schedule=hg.Cron("@daily"))
        async def report(region: str) -> None:
            pass

    with pytest.raises(InvalidScheduleError, match="schedule nightly: "):
        rig.build(nightly="every now and then")
    wrong = ScheduleDeclaration("nightly", "report", hg.Cron("@daily", overlap="never"), "null")
    with pytest.raises(InvalidScheduleError, match="overlap 'never': use one of"):
        DeclaredSchedules(rig.schedules, rig.clock, "shop", [wrong])


def made(cron: str) -> hg.App:
    app = hg.App("reports")

    @app.workflow(schedule=hg.Cron(cron, zone="Europe/Berlin", tags={"kind": "report"}))
    async def report(region: str = "all") -> str:
        return region

    app.schedule("north", report, hg.Cron("every 6h"), "north")
    return app


def test_worker__app_with_schedules__starts_its_executions() -> None:
    app = made("0 6 * * *")

    with hg.testing.Environment(app) as env:
        env.advance("1d")
        found = env.service.client.list(workflow="report", status=hg.Status.SUCCEEDED).executions
        results = sorted(each.result or "" for each in found)

    assert results == ['"all"', *['"north"'] * 4]
    assert {each.tags.get("kind") for each in found} == {"report", None}


def test_workers__of_two_builds_on_one_store__keep_the_newer_declaration(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = open_sqlite(tmp_path, clock=clock)
    keyring, blobs = Keyring.generate(clock), FolderBlobs(tmp_path / "blobs")
    try:
        workers = [
            Service(made(cron), store, clock, keyring, blobs).worker(host=f"host-{cron[2]}")
            for cron in ("0 6 * * *", "0 7 * * *")
        ]
        for worker in workers:
            worker.join()
        schedules = Schedules(store, clock, IdMaker(clock))
        for _ in range(5):
            clock.advance(9)
            for worker in workers:
                worker.poll()
            # The older one is restarted.
            workers[0].leave()
            workers[0].join()
        clock.advance(61)
        for worker in reversed(workers):
            worker.poll()

        assert schedules.get("report").spec.recurrence.expression == "0 7 * * *"
    finally:
        store.close()
