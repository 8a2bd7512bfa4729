"""Every action in Chromium: pressed, its dialog filled, its effect in the API, on the page without reload, and in the
audit log.

A test makes what it acts on, presses actions one after the other, and states after each what is true then. A page with
a new action fails `test_actions__of_every_page__are_pressed_by_a_test` until its label is in a test: add a step.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.history import PAYMENTS
from tests.acceptance.browser.pages import PAGES, STATES
from tests.acceptance.browser.person import Person
from tests.acceptance.browser.world import FAILED, INVOICES, World

_PRESSED: Final = re.compile(r'press\(\s*"([^"]+)"')


class Actor:
    """Presses the actions of one page and checks what came of it."""

    def __init__(self, world: World, person: Person) -> None:
        self.world = world
        self.person = person
        self._steps = 0

    def open(self, address: str) -> None:
        self.person.open(f"/ui{address}")

    def press(
        self,
        label: str,
        is_done: Callable[[], object],
        *,
        audit: str,
        shows: str = "",
        lacks: str = "",
        within: str = "main",
        reason: str = "reason",
        **values: str | bool,
    ) -> None:
        """Press an action. Then `is_done` comes true, the page shows one text and lacks another, and it is audited.

        `reason` is the field that takes the reason, or empty if the dialog has none; the entry has it.
        """
        self._steps += 1
        why = f"step {self._steps} of the test" if reason else ""
        given = {**values, reason: why} if reason else values
        before = self._entries()
        self.person.press(label, within=within, **given)
        self.world.wait(f"the effect of {label}", is_done)
        main = self.person.page.locator("main")
        if shows:
            expect(main).to_contain_text(shows)
        if lacks:
            expect(main).not_to_contain_text(lacks)
        if audit:
            self.world.wait(f"an audit entry {audit} {why!r}", lambda: self._entries(audit, why) - before)
        assert self.person.problems_of_page() == []

    def _entries(self, action: str = "", why: str = "") -> set[str]:
        """Return the latest audit entries, or those of an action with a reason."""
        entries = self.world.get("/audit", page_size=50)["items"]
        return {
            str(each) for each in entries if not action or (each["action"] == action and why in (each["reason"] or ""))
        }


@pytest.fixture
def actor(world: World, person: Person) -> Actor:
    return Actor(world, person)


def test_actions__of_every_page__are_pressed_by_a_test(world: World, person: Person) -> None:
    pressed = set(_PRESSED.findall(Path(__file__).read_text()))
    found: dict[str, str] = {}
    for name, address in (PAGES | STATES).items():
        page = person.page.request.get(f"{world.server.url}/ui{address(world)}")
        for text in re.findall(r'data-action="(.*?)"', page.text()):
            found.setdefault(json.loads(html.unescape(text))["title"], name)

    assert {label: page for label, page in found.items() if label not in pressed} == {}


# Health.


def test_incident__taken_explained_resolved_and_reopened(actor: Actor) -> None:
    world = actor.world
    urn, incident_id = world.troubled()
    actor.open(f"/incidents/{incident_id}")

    def now() -> Any:
        return world.get(f"/incidents/{incident_id}")

    change = {"audit": "incident.update", "reason": ""}
    actor.press("Assign", lambda: now()["assignee"] == "ann", shows="ann", assignee="ann", **change)
    actor.press("Snooze", lambda: now()["snoozed_until"], shows="Snoozed", audit="incident.snooze", duration="2h")
    cause = "the deployment of Monday"
    actor.press("Note the cause", lambda: now()["rca_summary"] == cause, shows=cause, rca_summary=cause, **change)
    change["audit"] = "incident.acknowledge"
    actor.press("Acknowledge", lambda: now()["status"] == "ACKNOWLEDGED", shows="ACKNOWLEDGED", **change)
    change["audit"] = "incident.resolve"
    actor.press(
        "Resolve",
        lambda: now()["status"] == "RESOLVED",
        shows="rolled back",
        resolution__root_cause="rolled back",
        resolution__false_positive=True,
        **change,
    )
    actor.press("Reopen", lambda: now()["status"] == "OPEN", shows="OPEN", audit="incident.reopen")
    assert now()["primary_dataset_urn"] == urn


def test_check__run_now__has_a_new_result(actor: Actor) -> None:
    world = actor.world
    actor.open(f"/datasets/{quote(PAYMENTS, safe='')}")
    main = actor.person.page.locator("main")
    expect(main).to_contain_text(re.compile(r"\d+ rows, expected \d+–\d+ for a \w+day"))  # noqa: RUF001
    expect(main).to_contain_text("the expected band is shaded")
    before = world.check("paid-once")["at"]

    actor.press(
        "Run",
        lambda: world.check("paid-once")["at"] > before,
        within="tr:has-text('paid-once')",
        audit="check.run",
        reason="",
    )


def test_incident__merged_into_another__is_a_part_of_it(actor: Actor) -> None:
    _, one = actor.world.troubled()
    _, other = actor.world.troubled()
    actor.open(f"/incidents/{one}")

    actor.press(
        "Merge",
        lambda: actor.world.get(f"/incidents/{one}")["merged_into"] == other,
        shows="Merged into",
        audit="incident.merge",
        into=other,
    )


def test_board__incident_of_a_card__is_acknowledged(actor: Actor) -> None:
    _, incident_id = actor.world.troubled("urgent")
    actor.open("")

    actor.press(
        "Acknowledge",
        lambda: actor.world.get(f"/incidents/{incident_id}")["assignee"] == "ben",
        within=f"[data-key='{incident_id}']",
        shows="ben has it",
        audit="incident.acknowledge",
        reason="",
        assignee="ben",
    )


def test_dataset__gate_overridden_revoked_and_signals_reset(actor: Actor) -> None:
    world = actor.world
    urn, _ = world.troubled()
    actor.open(f"/datasets/{quote(urn, safe='')}")

    def gate() -> str:
        return str(world.post("/gate", {"datasets": [urn], "verb": "read"})["decision"]).upper()

    assert gate() == "BLOCK"
    actor.press("Override the gate", lambda: gate() == "WARN", shows="Overrides", audit="gate.override", duration="1h")
    actor.press("Revoke", lambda: gate() == "BLOCK", lacks="Overrides", audit="gate.revoke", reason="")
    signals = f"/datasets/{quote(urn, safe='')}/signals"
    actor.press(
        "Reset signals", lambda: not world.get(signals)["signals"], shows="No signals yet", audit="signal.reset"
    )


# Pipelines.


def _period(world: World, pipeline: str, date: str) -> Any:
    return world.get(f"/pipelines/{pipeline}/run-logs/{date}", schedule="daily")


def _status(world: World, date: str, pipeline: str = "stock-sync") -> str:
    runs = world.get(f"/pipelines/{pipeline}/runs", limit=100)["runs"]
    return next((str(each["status"]) for each in runs if each["date"] == date), "")


def test_pipeline__paused_resumed_and_backfilled(actor: Actor) -> None:
    world = actor.world
    actor.open("/pipelines/customer-360")

    def state() -> str:
        return str(world.get("/pipelines/customer-360/control")["state"]).lower()

    actor.press("Pause", lambda: state() == "paused", shows="PAUSED", audit="pipeline.pause")
    actor.press("Resume", lambda: state() == "active", lacks="PAUSED by", audit="pipeline.resume")
    actor.press(
        "Backfill",
        lambda: world.get("/backfills", pipeline="customer-360")["backfills"],
        audit="backfill.start",
        **{"from": "2025-02-01", "to": "2025-02-02"},
    )


@pytest.mark.parametrize(
    ("label", "date", "audit"),
    [("Skip", "2025-03-01", "period.skip"), ("Mark as successful", "2025-03-02", "period.mark_success")],
)
def test_period__decided_without_a_run(actor: Actor, label: str, date: str, audit: str) -> None:
    """The labels: press("Skip"), press("Mark as successful")."""
    actor.open(f"/pipelines/stock-sync?date={date}&schedule=daily")

    actor.press(label, lambda: _period(actor.world, "stock-sync", date)["status"], audit=audit)


def test_period__held_and_approved__runs(actor: Actor) -> None:
    world, date = actor.world, "2025-03-03"
    actor.open(f"/pipelines/stock-sync?date={date}&schedule=daily")

    actor.press("Hold", lambda: _period(world, "stock-sync", date)["hold"], shows="HELD", audit="period.hold")
    actor.press("Approve", lambda: _status(world, date) == "RUNNING", shows="RUNNING", audit="period.approve")


def test_period__started_cancelled_and_run_again(actor: Actor) -> None:
    world, date = actor.world, "2025-03-07"
    actor.open(f"/pipelines/stock-sync?date={date}&schedule=daily")

    actor.press("Start a run", lambda: _status(world, date) == "RUNNING", shows="RUNNING", audit="run.start")
    actor.press("Cancel", lambda: _status(world, date) == "CANCELLED", shows="CANCELLED", audit="run.cancel")
    actor.press("Rerun", lambda: _status(world, date) == "RUNNING", audit="run.rerun", reason="note")


def test_period__forced__runs_whether_or_not_it_is_ready(actor: Actor) -> None:
    date = "2025-03-04"
    actor.open(f"/pipelines/stock-sync?date={date}&schedule=daily")

    actor.press("Force", lambda: _status(actor.world, date) == "RUNNING", shows="RUNNING", audit="period.force")


def test_run__its_end_reported_in_place_of_the_job(actor: Actor) -> None:
    world, date = actor.world, "2025-03-05"
    world.start("stock-sync", date)
    actor.open(f"/runs/{world.run_of('stock-sync', date, 'RUNNING')}")

    actor.press(
        "Report the end",
        lambda: _status(world, date) == "FAILED",
        shows="FAILED",
        audit="run.complete",
        status="failed",
    )


def test_run__of_a_failed_fan_out__its_chunks_redriven(actor: Actor) -> None:
    world = actor.world
    run_id = world.runs["orders-score"]
    actor.open(f"/runs/{run_id}")

    # They fail again, since the data is as it was.
    actor.press(
        "Redrive its chunks",
        lambda: "redrive" in str(world.get(f"/fanouts/{world.fanout_id}/events")).lower(),
        audit="fanout.redrive",
    )


def test_run__of_a_failed_workflow__retried_until_it_succeeds(actor: Actor) -> None:
    world = actor.world
    run_id = world.runs["supplier-prices"]
    good = world.project / "prices-are-good"
    good.touch()
    actor.open(f"/runs/{run_id}")

    actor.press(
        "Retry its workflow",
        lambda: world.get(f"/runs/{run_id}")["status"] == "COMPLETED",
        shows="COMPLETED",
        audit="execution.retry",
        reason="",
    )
    good.unlink()


def test_runs__of_the_list__cancelled_and_run_again(actor: Actor) -> None:
    world, date = actor.world, "2025-03-06"
    world.start("stock-sync", date)
    run_id = world.run_of("stock-sync", date, "RUNNING")
    row = f"tr:has(a[href='/ui/runs/{run_id}'])"
    actor.open("/runs?pipeline=stock-sync")
    actor.press("Cancel", lambda: _status(world, date) == "CANCELLED", within=row, audit="run.cancel")

    failed = world.runs["ledger-export"]
    actor.open("/runs?pipeline=ledger-export")
    before = len(world.get("/pipelines/ledger-export/runs", limit=100)["runs"])
    actor.press(
        "Rerun",
        lambda: len(world.get("/pipelines/ledger-export/runs", limit=100)["runs"]) > before,
        within=f"tr:has(a[href='/ui/runs/{failed}'])",
        audit="run.rerun",
        reason="note",
    )


def test_backfill__started_paused_resumed_and_cancelled(actor: Actor) -> None:
    world = actor.world
    actor.open("/backfills?pipeline=stock-sync")

    def newest() -> Any:
        found = world.get("/backfills", pipeline="stock-sync")["backfills"]
        return next((each for each in found if each["backfill_id"] != world.backfill_id), None)

    dates = {"from": "2025-04-01", "to": "2025-04-03"}
    actor.press("Start a backfill", newest, audit="backfill.start", **dates)
    actor.open(f"/backfills/{newest()['backfill_id']}")
    actor.press("Pause", lambda: newest()["state"] == "PAUSED", shows="PAUSED", audit="backfill.pause")
    actor.press("Resume", lambda: newest()["state"] == "RUNNING", lacks="PAUSED", audit="backfill.resume")
    actor.press("Cancel", lambda: newest()["state"] == "CANCELLED", shows="CANCELLED", audit="backfill.cancel")


# Executions, machines and schedules.


def test_execution__signalled__goes_on(actor: Actor) -> None:
    world = actor.world
    name = world.execution("wait_for_people", "today", world.name("signalled"))
    actor.open(f"/executions/{name}")

    # A signal is recorded in the history, not in the audit log.
    actor.press(
        "Send a signal",
        lambda: world.status(name) == "SUCCEEDED",
        shows="SUCCEEDED",
        audit="",
        reason="",
        name="go",
        payload='"yes"',
    )


@pytest.mark.parametrize(
    ("label", "status", "audit"),
    [("Cancel", "CANCELLED", "execution.cancel"), ("Terminate", "TERMINATED", "execution.terminate")],
)
def test_execution__ended(actor: Actor, label: str, status: str, audit: str) -> None:
    """The labels: press("Cancel"), press("Terminate")."""
    world = actor.world
    name = world.execution("wait_for_people", "today", world.name("ended"))
    actor.open(f"/executions/{name}")

    actor.press(label, lambda: world.status(name) == status, shows=status, audit=audit)


def test_execution__failed__retried_from_the_start(actor: Actor) -> None:
    world = actor.world
    actor.open(f"/executions/{FAILED}")

    def attempts() -> int:
        return int(world.get(f"/executions/{FAILED}")["run"])

    before = attempts()
    actor.press("Retry from the start", lambda: attempts() > before, audit="execution.retry", reason="")


def test_execution__failed__continued_from_the_failure_and_reset(actor: Actor) -> None:
    world = actor.world
    name = world.execution("price_import", "acme", world.name("repaired"), "FAILED")
    actor.open(f"/executions/{name}")

    def attempts() -> int:
        return int(world.get(f"/executions/{name}")["run"])

    actor.press("Continue from the failure", lambda: attempts() == 2, audit="execution.retry-from-failure")
    world.wait("the second failure", lambda: world.status(name) == "FAILED")
    actor.open(f"/executions/{name}")
    actor.press("Reset", lambda: attempts() == 3, audit="execution.reset", to="1", signals="drop")


def test_execution__stuck__redriven_and_stuck_again(actor: Actor) -> None:
    world = actor.world
    name = world.execution("audit_ledger", "friday", world.name("stuck"), "STUCK")
    actor.open(f"/executions/{name}")

    actor.press("Redrive", lambda: world.status(name) == "STUCK", audit="execution.redrive", reason="")


def test_machine__started_and_its_execution_stopped_and_redriven(actor: Actor) -> None:
    world = actor.world
    actor.open(f"/machines/{INVOICES}")

    def count() -> int:
        return len(world.get(f"/machines/{INVOICES}/executions")["executions"])

    before = count()
    actor.press("Start", lambda: count() > before, audit="machine.start", reason="", input='{"amount": 5}')
    name = world.machine_execution({"amount": 7}, world.name("invoice"))
    actor.open(f"/machine-executions/{quote(name, safe='')}")

    def status() -> str:
        return str(world.get(f"/machine-executions/{quote(name, safe='')}")["status"])

    actor.press("Stop", lambda: status() == "ABORTED", shows="ABORTED", audit="execution.stop", reason="cause")
    actor.press("Redrive", lambda: status() == "RUNNING", shows="RUNNING", audit="execution.redrive", reason="")
    actor.press("Stop", lambda: status() == "ABORTED", shows="ABORTED", audit="execution.stop", reason="cause")
    actor.press("Reset", lambda: status() == "RUNNING", shows="RUNNING", audit="execution.reset")


def test_schedule__paused_resumed_triggered_and_deleted(actor: Actor) -> None:
    world = actor.world
    name = world.name("schedule")
    world.post("/schedules", {"id": name, "workflow": "load_orders", "cron": "0 5 * * *", "input": "x"})
    actor.open(f"/schedules/{name}")

    def schedule() -> Any:
        return world.get(f"/schedules/{name}")

    actor.press("Pause", lambda: schedule()["paused"], shows="It is paused", audit="schedule.pause")
    actor.press("Resume", lambda: not schedule()["paused"], lacks="It is paused", audit="schedule.resume", reason="")
    actor.press(
        "Trigger now",
        lambda: world.get("/executions", workflow="load_orders", limit=100)["executions"][0]["id"].startswith(name),
        audit="schedule.trigger",
        reason="",
        overlap="allow",
    )
    actor.person.press("Delete")
    # What the page showed is gone: the list is next.
    actor.person.page.wait_for_url("**/ui/schedules")
    assert all(each["id"] != name for each in world.get("/schedules")["schedules"])
    assert "404" in str(actor.person.problems_of_page())


# Fan-outs.


def test_fanout__paused_resumed_and_cancelled(actor: Actor) -> None:
    world = actor.world
    run_id = world.fanout("market_jobs:slow", 40, world.name("slow"))
    actor.open(f"/fanouts/{run_id}")

    def fanout() -> Any:
        return world.get(f"/fanouts/{run_id}")

    actor.press("Pause", lambda: fanout()["paused_at"], shows="It is paused", audit="fanout.pause")
    actor.press("Resume", lambda: not fanout()["paused_at"], lacks="It is paused", audit="fanout.resume")
    actor.press("Cancel", lambda: fanout()["status"] == "CANCELLED", shows="CANCELLED", audit="fanout.cancel")


def test_fanout__failed__redriven_whole_by_error_by_chunk_and_skipped(actor: Actor) -> None:
    world = actor.world
    run_id = world.fanout("market_jobs:score", 24, world.name("score"), chunk_size=4)

    def settled() -> bool:
        return bool(world.get(f"/fanouts/{run_id}")["is_finished"])

    def chunks() -> dict[str, int]:
        found: dict[str, int] = world.get(f"/fanouts/{run_id}")["chunks"]
        return found

    def redrives() -> int:
        return sum(str(each).lower().count("redrive") > 0 for each in world.get(f"/fanouts/{run_id}/events")["events"])

    world.wait("the chunks fail", settled)
    actor.open(f"/fanouts/{run_id}")
    actor.press("Redrive failed chunks", lambda: redrives() == 1, audit="fanout.redrive")
    world.wait("the chunks fail again", settled)
    actor.open(f"/fanouts/{run_id}")
    actor.press("Redrive", lambda: redrives() == 2, within="tbody", audit="fanout.redrive")
    world.wait("the chunks fail again", settled)

    first, second, third = (each["chunk_id"] for each in world.get(f"/fanouts/{run_id}/failures", limit=3)["chunks"])
    actor.open(f"/fanouts/{run_id}/chunks/{first}")
    actor.press("Redrive this chunk", lambda: redrives() == 3, audit="fanout.redrive")
    world.wait("the chunk fails again", settled)
    actor.open(f"/fanouts/{run_id}/chunks/{second}")
    before = chunks()["total"]
    actor.press("Bisect", lambda: chunks()["total"] > before, audit="fanout.bisect", reason="")
    world.wait("the halves end", settled)
    actor.open(f"/fanouts/{run_id}/chunks/{third}")
    actor.press("Skip", lambda: chunks()["skipped"] == 1, shows="SKIPPED", audit="fanout.skip")


def test_fanout__failed_items__redriven_all_by_error_and_of_a_chunk(actor: Actor) -> None:
    world = actor.world
    run_id = world.fanout("market_jobs:check", 40, world.name("check"), chunk_size=10, each=True)

    def settled() -> bool:
        return bool(world.get(f"/fanouts/{run_id}")["is_finished"])

    def redriven() -> int:
        return int(world.get(f"/fanouts/{run_id}")["counts"]["redriven"])

    world.wait("the items fail", settled)
    actor.open(f"/fanouts/{run_id}")
    shown = "32 ok + 8 failed + 0 deferred + 0 open = 40 items"
    actor.press("Redrive failed items", lambda: redriven() == 4, shows=shown, audit="fanout.redrive")
    world.wait("the items fail again", settled)
    actor.open(f"/fanouts/{run_id}")
    actor.press("Redrive", lambda: redriven() == 8, within="tbody", audit="fanout.redrive")
    world.wait("the items fail again", settled)
    actor.open(f"/fanouts/{run_id}/chunks/chunk-0000010")
    actor.press("Redrive its failed items", lambda: redriven() == 9, audit="fanout.redrive")


# Operations.


def test_dead_letters__redelivered_and_purged(actor: Actor) -> None:
    world = actor.world

    def letters() -> list[Any]:
        found: list[Any] = world.get("/dead-letters", kind="delivery")["dead_letters"]
        return found

    one, other = world.name("refund"), world.name("refund")
    world.refund(one)
    world.refund(other)
    actor.open("/events/dead-letters")
    events = {"audit": "", "reason": ""}
    events["audit"] = "dead_letter.redeliver"
    actor.press("Redeliver", lambda: letters(), within=f"tr:has-text('{one}')", **events)
    events["audit"] = "dead_letter.purge"
    actor.press("Purge", lambda: other not in str(letters()), within=f"tr:has-text('{other}')", lacks=other, **events)
    subscription = letters()[0]["subscription"]
    actor.open(f"/events/dead-letters?subscription={quote(subscription, safe='')}")
    events["audit"] = "dead_letter.redeliver"
    actor.press("Redeliver all", lambda: True, **events)
    world.wait("they fail again", lambda: len(letters()) >= 3)
    actor.open(f"/events/dead-letters?subscription={quote(subscription, safe='')}")
    events["audit"] = "dead_letter.purge"
    actor.press("Purge all", lambda: not letters(), lacks="refund-", **events)
    world.refund(world.name("refund"))


def test_subscription__retired(actor: Actor) -> None:
    world = actor.world
    actor.open("/events/subscriptions")
    name = next(each["name"] for each in world.get("/subscriptions")["subscriptions"] if "book_payment" in each["name"])

    actor.press(
        "Retire",
        lambda: any(
            each["name"] == name and each["retired_at"] for each in world.get("/subscriptions")["subscriptions"]
        ),
        within=f"tr:has-text('{name}')",
        shows="RETIRED",
        audit="subscription.retire",
        reason="",
    )


def test_alerts__acknowledged_muted_and_a_channel_tested(actor: Actor) -> None:
    world = actor.world
    alert = next(each for each in world.get("/alerts", status="OPEN")["alerts"] if each["event"] == "JOB_FAILED")
    actor.open(f"/alerts/{alert['alert_id']}")
    actor.press(
        "Acknowledge",
        lambda: world.get(f"/alerts/{alert['alert_id']}")["status"] == "ACKNOWLEDGED",
        shows="ACKNOWLEDGED",
        audit="alert.acknowledge",
        reason="note",
    )

    actor.open("/alerts")

    def mutes() -> str:
        return str(world.get("/alert-mutes")["mutes"])

    actor.press("Mute", lambda: "night-*" in mutes(), shows="night-*", audit="alert.mute", pipeline="night-*")
    row = "tr:has-text('night-*')"
    actor.press("End", lambda: "night-*" not in mutes(), within=row, lacks="night-*", audit="alert.unmute", reason="")
    actor.press("Send a test", lambda: True, audit="alert.test", reason="")


def test_pool__slots_of_a_run__freed(actor: Actor) -> None:
    world, date = actor.world, "2025-05-01"
    world.start("stock-sync", date)
    run_id = world.run_of("stock-sync", date, "RUNNING")
    actor.open("/workers")

    def holders() -> str:
        return str(world.get("/pools/docks")["leases"])

    assert run_id in holders()
    actor.press("Free", lambda: run_id not in holders(), within=f"li:has-text('{run_id}')", audit="pool.free")


def test_versions__current_build_set_and_drained__shown_without_a_reload(actor: Actor) -> None:
    world = actor.world

    def deployments() -> list[Any]:
        found: list[Any] = world.get("/deployments")["deployments"]
        return found

    app, version = next((each["app"], one["build"]) for each in deployments() for one in each["versions"])

    def state() -> tuple[str, str]:
        found = next(each for each in deployments() if each["app"] == app)
        return found["current"], next(one["state"] for one in found["versions"] if one["build"] == version)

    actor.open("/workers")
    row = f"tr:has-text('{version}'):has(button)"
    current = f"start on build {version}"
    audit = "deployment.set_current"
    actor.press("Set current", lambda: state() == (version, "CURRENT"), within=row, shows=current, audit=audit)
    actor.press("Any build", lambda: state() == ("", "ACTIVE"), lacks=current, audit=audit)
    actor.press("Drain", lambda: state()[1] == "DRAINED", within=row, shows="safe to remove", audit="deployment.drain")
    actor.press(
        "Undo drain", lambda: state()[1] == "ACTIVE", within=row, lacks="safe to remove", audit="deployment.drain"
    )


def test_keys__issued_rotated_and_revoked(actor: Actor) -> None:
    world = actor.world
    actor.open("/settings")

    def keys() -> list[Any]:
        return [each for each in world.get("/api-keys")["items"] if each["principal"] == "robot"]

    actor.press("Issue a key", keys, shows="robot", audit="key.issue", reason="", principal="robot", roles="viewer")
    row = "tr:has-text('robot')"
    actor.press("Rotate", lambda: True, within=row, audit="key.rotate", overlap="0s")
    actor.press(
        "Revoke",
        lambda: all(each["revoked_at"] or each["expires_at"] for each in keys()),
        within=row,
        audit="key.revoke",
        reason="",
    )


# Who may only read.


@pytest.mark.parametrize("path", ["", "/runs", "/alerts", "/fanouts/{run_id:str}", "/incidents/{incident_id:str}"])
def test_reader__of_a_page_with_actions__cannot_press_them(world: World, reader: Person, path: str) -> None:
    page = reader.open("/ui" + PAGES[path](world))

    buttons = page.locator("button[data-action]")
    assert buttons.count() > 0
    for number in range(buttons.count()):
        expect(buttons.nth(number)).to_be_disabled()
        assert "Needs one of the roles" in str(buttons.nth(number).get_attribute("title"))
    assert reader.problems_of_page() == []
