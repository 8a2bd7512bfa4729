"""Pages of machines, schedules, workers and events: what they show, their filters and their actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from headgate.asl.graph.labels import StateMark
from headgate.durable.bus.subscriptions import Subscription
from headgate.durable.engine.membership import Fleet
from headgate.durable.model.worker_limits import WorkerLimits, WorkerUsage
from headgate.serve.pages.work.machine_graph import machine_graph
from headgate.serve.pages.work.machines import progress_of
from headgate.serve.pages.work.workers import Queue, queues_of
from tests.integration.serve.health_rig import done
from tests.integration.serve.pages.test_routes import ORIGIN, Document, Site, actions_of, text_of

API: Final = f"{ORIGIN}/api/v1"
MACHINE: Final[dict[str, Any]] = {
    "Comment": "Approve an order",
    "StartAt": "Check",
    "States": {
        "Check": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.amount", "NumericGreaterThan": 100, "Next": "Both"}],
            "Default": "Done",
        },
        "Both": {
            "Type": "Parallel",
            "Branches": [
                {"StartAt": "Stock", "States": {"Stock": {"Type": "Pass", "End": True}}},
                {"StartAt": "Credit", "States": {"Credit": {"Type": "Fail", "Error": "NoCredit"}}},
            ],
            "Next": "Done",
        },
        "Done": {"Type": "Succeed"},
    },
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("operations") / "home", has_pipelines=True)
    try:

        @made.service.app.workflow
        async def refresh(day: str) -> str:
            return day

        done(made.put(f"{API}/machines/approve", MACHINE), 201)
        done(made.post(f"{API}/machines/approve/executions", {"input": {"amount": 1}, "name": "small"}), 201)
        spec = {"id": "nightly", "workflow": "refresh", "cron": "0 3 * * *", "input": "monday"}
        done(made.post(f"{API}/schedules", spec), 201)
        made.service.bus.register([Subscription(name="board", types=("order.*",))], "board")
        done(made.post(f"{API}/events", {"type": "order.created", "data": {"id": 7}}), 202)
        yield made
    finally:
        made.is_stopping = True
        made.close()


def test_graph__parallel__leads_through_its_branches() -> None:
    drawn = machine_graph(MACHINE, {"Stock": StateMark.VISITED, "Credit": StateMark.FAILED})

    assert set(drawn["edges"]) == {
        ("Check", "Both"), ("Check", "Done"), ("Both", "Stock"), ("Both", "Credit"), ("Stock", "Done"),
    }  # fmt: skip
    tones = {each["id"]: each.get("tone") for each in drawn["nodes"]}
    assert tones == {"Check": None, "Both": None, "Stock": "good", "Credit": "bad", "Done": None}


def test_progress__distributed_map__names_its_fanout() -> None:
    events = [
        {"id": 1, "previousEventId": 0, "timestamp": "2026-01-15T10:00:00Z", "type": "ExecutionStarted"},
        {
            "id": 2, "previousEventId": 1, "timestamp": "2026-01-15T10:00:00Z", "type": "MapStateEntered",
            "stateEnteredEventDetails": {"name": "Every"},
        },
        {
            "id": 3, "previousEventId": 2, "timestamp": "2026-01-15T10:00:01Z", "type": "MapRunStarted",
            "mapRunStartedEventDetails": {"mapRunArn": "map-7"},
        },
    ]  # fmt: skip

    found = progress_of(events)

    assert found.fanouts == {"Every": "map-7"}
    assert found.marks == {"Every": StateMark.CURRENT}


def test_queues__without_a_live_worker__come_first() -> None:
    workers = [{"queues": ["default", "slow"], "alive": False}, {"queues": ["default"], "alive": True}]

    assert queues_of(workers) == [Queue("slow", 0, 1), Queue("default", 1, 1)]


def test_machines__listed__link_to_the_drawn_machine(site: Site) -> None:
    assert "/ui/machines/approve" in Document.read(site.page("/ui/machines")).links
    page = site.page("/ui/machines/approve")

    assert [tag for tag, _ in Document.read(page).tags].count("hg-graph") == 1
    assert "/ui/machine-executions/approve%3Asmall" in Document.read(page).links
    start = actions_of(page)["Start"]
    done(site.post(f"{ORIGIN}{start['path']}", {"input": {"amount": 2}}), 201)


def test_machine_execution__running__is_drawn_and_can_be_stopped(site: Site) -> None:
    address = "/ui/machine-executions/approve%3Asmall"
    page = site.page(address)

    assert "hg-graph" in [tag for tag, _ in Document.read(page).tags]
    assert "/ui/executions/approve%3Asmall" in Document.read(page).links
    stop = actions_of(page)["Stop"]
    done(site.post(f"{ORIGIN}{stop['path']}", {"cause": "wrong order"}), 202)


def test_machine__unknown__is_not_found(site: Site) -> None:
    assert "Not Found" in text_of(site.page("/ui/machines/none", status=404))
    assert "Not Found" in text_of(site.page("/ui/machine-executions/none", status=404))
    assert "Not Found" in text_of(site.page("/ui/schedules/none", status=404))


def test_schedules__filtered_by_state__show_only_those(site: Site) -> None:
    assert "/ui/schedules/nightly" in Document.read(site.page("/ui/schedules?state=active")).links
    none = site.page("/ui/schedules?workflow=none")
    assert "No schedules match" in text_of(none)
    assert "headgate schedule create" in text_of(none)


def test_schedules__filtered__have_their_twins_with_the_same_filters(site: Site) -> None:
    page = site.page("/ui/schedules?state=paused&workflow=refresh")

    assert "headgate schedule ls --paused --workflow refresh" in text_of(page)
    assert 'href="/api/v1/schedules?workflow=refresh&amp;paused=true"' in page


def test_schedule__active__can_be_paused_resumed_triggered_and_deleted(site: Site) -> None:
    spec = {"id": "hourly", "workflow": "refresh", "cron": "0 * * * *", "input": "x"}
    done(site.post(f"{API}/schedules", spec), 201)
    address = "/ui/schedules/hourly"
    assert "It starts refresh next" in text_of(site.page(address))

    pause = actions_of(site.page(address))["Pause"]
    sent = {"headers": {"if-match": pause["ifMatch"]}}
    done(site.post(f"{ORIGIN}{pause['path']}", {"reason": "quiet week"}, **sent), 200)
    paused = site.page(address)
    assert "It is paused: quiet week" in text_of(paused)
    resume = actions_of(paused)["Resume"]
    done(site.post(f"{ORIGIN}{resume['path']}", {}, headers={"if-match": resume["ifMatch"]}), 200)
    trigger = actions_of(site.page(address))["Trigger now"]
    done(site.post(f"{ORIGIN}{trigger['path']}", {"overlap": "allow"}), 201)
    delete = actions_of(site.page(address))["Delete"]
    gone = site.ask("DELETE", f"{ORIGIN}{delete['path']}", headers={"if-match": delete["ifMatch"]})
    assert gone.status_code == 204


def test_schedule__changed_meanwhile__is_a_conflict(site: Site) -> None:
    done(site.post(f"{API}/schedules", {"id": "weekly", "workflow": "refresh", "cron": "0 0 * * 1", "input": "x"}), 201)
    pause = actions_of(site.page("/ui/schedules/weekly"))["Pause"]
    done(site.post(f"{ORIGIN}{pause['path']}", {"reason": "first"}, headers={"if-match": pause["ifMatch"]}), 200)

    again = site.post(f"{ORIGIN}{pause['path']}", {"reason": "second"}, headers={"if-match": pause["ifMatch"]})

    assert again.status_code == 412


def test_workers__none__say_how_to_start_one(site: Site) -> None:
    page = text_of(site.page("/ui/workers"))

    assert "headgate worker run --app" in page
    assert "headgate pool ls" in page


def test_workers__one_with_limits__shows_what_it_has_in_use(site: Site) -> None:
    usage = WorkerUsage(in_async=3, cached=1_200)
    fleet = Fleet(
        site.opened.store, site.clock, site.service.ids, limits=WorkerLimits(async_max=9), usage=lambda: usage
    )
    fleet.join("shop", ["order"], ["charge"], ["default"])
    fleet.renew()

    page = text_of(site.page("/ui/workers"))

    assert "3 of 9 async" in page
    assert "1,200 of 2,000 in memory" in page
    fleet.leave()


def test_workers__two_builds__shows_what_each_holds_and_its_actions(site: Site) -> None:
    fleets = [Fleet(site.opened.store, site.clock, site.service.ids, build=build, host=build) for build in ("v1", "v2")]
    for fleet in fleets:
        fleet.join("shop", ["order"], ["charge"], ["default"])
    done(site.post(f"{API}/deployments/shop/current", {"build": "v2", "reason": "release"}), 200)

    page = site.page("/ui/workers")

    text = text_of(page)
    assert "New executions of shop start on build v2" in text
    assert "safe to remove: no open execution is pinned to it" in text
    assert set(actions_of(page)) >= {"Set current", "Any build"}
    assert actions_of(page)["Any build"]["cli"] == "headgate deploy set-current --any --app shop --reason {reason}"
    done(site.post(f"{API}/deployments/shop/current", {"build": None}), 200)
    assert set(actions_of(site.page("/ui/workers"))) >= {"Set current", "Drain"}
    done(site.post(f"{API}/deployments/shop/drain", {"build": "v1"}), 200)
    assert "Undo drain" in actions_of(site.page("/ui/workers"))
    for fleet in fleets:
        fleet.leave()


def test_events__of_a_type__are_listed_with_their_content(site: Site) -> None:
    page = text_of(site.page("/ui/events?type=order.*"))

    assert "order.created" in page
    assert '"id":7' in page
    none = text_of(site.page("/ui/events?type=none"))
    assert "No events match" in none
    assert "headgate event emit" in none


def test_subscriptions__listed__lead_to_their_dead_letters(site: Site) -> None:
    page = site.page("/ui/events/subscriptions")

    assert "/ui/events/dead-letters?subscription=board" in Document.read(page).links
    retire = actions_of(page)["Retire"]
    done(site.post(f"{ORIGIN}{retire['path']}", {}), 200)
    assert "RETIRED" in text_of(site.page("/ui/events/subscriptions"))


def test_dead_letters__none__say_what_is_kept_here(site: Site) -> None:
    assert "headgate event dead" in text_of(site.page("/ui/events/dead-letters"))


def test_audit__a_change__is_listed_and_the_log_verified(site: Site) -> None:
    page = site.page("/ui/audit?verify=true")

    assert "machine.put" in text_of(page)
    assert "The log is intact" in text_of(page)
    entity = text_of(site.page("/ui/audit?entity=machine/approve"))
    assert "machine.put" in entity
    assert "schedule.create" not in entity
    none = text_of(site.page("/ui/audit?actor=none"))
    assert "No entries match" in none
    assert "headgate audit ls" in none
