"""How pages behave in Chromium: search, keyboard, time zone, live updates, log, heat map and graph."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.history import RAW
from tests.acceptance.browser.person import Person
from tests.acceptance.browser.world import FAILED, PAYMENTS_MACHINE, RETRIED, STUCK, World

# Promised within one second; a loaded machine takes longer.
LIVE_SECONDS_MAX = 15.0


@pytest.fixture(autouse=True)
def without_problems(person: Person) -> Iterator[None]:
    person.problems_of_page()
    yield
    assert person.problems_of_page() == []


def test_search__name_typed__is_found_and_opened_with_the_keyboard(person: Person) -> None:
    page = person.open("/ui/audit")

    page.keyboard.press("Control+k")
    page.keyboard.type("orders-sc")
    expect(page.locator("#palette a[aria-selected=true]")).to_contain_text("orders-score")
    page.keyboard.press("Enter")

    page.wait_for_url("**/ui/pipelines/orders-score")


def test_keyboard__j_and_enter__moves_over_rows_and_opens_one(person: Person) -> None:
    page = person.open("/ui/alerts")
    second = page.locator("main a[data-row]").nth(1).get_attribute("href")

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    page.wait_for_url(f"**{second}")


def test_time_zone__chosen__holds_for_all_pages(person: Person) -> None:
    page = person.open("/ui/incidents")
    times = page.locator("main time .clock")
    expect(times.first).to_contain_text("UTC")

    page.locator("select[data-zone]").select_option("Europe/Berlin")
    expect(times.first).not_to_contain_text("UTC")
    page = person.open("/ui/alerts")
    expect(page.locator("main time .clock").first).not_to_contain_text("UTC")

    page.locator("select[data-zone]").select_option("UTC")
    expect(page.locator("main time .clock").first).to_contain_text("UTC")


def test_live__signal_set_through_the_api__is_on_the_open_page(world: World, person: Person) -> None:
    urn = world.dataset(f"urn:dp:trial:{world.name('live')}:v1")
    world.signal(urn, "OK")
    page = person.open(f"/ui/datasets/{quote(urn, safe='')}")
    expect(page.locator(".live")).to_have_text("live")
    expect(page.locator("h1 .badge")).not_to_have_text("BLOCK")

    began = time.monotonic()
    world.signal(urn, "CRITICAL")
    expect(page.locator("h1 .badge")).to_have_text("BLOCK", timeout=LIVE_SECONDS_MAX * 1000)

    print(f"on the page after {time.monotonic() - began:.2f} s")


def test_dialog__thing_changed_meanwhile__says_so_and_changes_nothing(world: World, person: Person) -> None:
    _, incident_id = world.troubled()
    page = person.open(f"/ui/incidents/{incident_id}")
    person.button("Assign").click()
    world.call("PATCH", f"/incidents/{incident_id}", {"assignee": "first"})
    page.fill("#dialog [name=assignee]", "second")
    page.click("#dialog button[type=submit]")

    expect(page.locator("#dialog .problem")).to_contain_text(incident_id)
    assert world.get(f"/incidents/{incident_id}")["assignee"] == "first"
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).not_to_have_attribute("open", "")
    # The refusal is in the console as well.
    assert all("412" in each for each in person.problems_of_page())


def test_log__of_a_running_job__is_followed_coloured_and_searched(world: World, person: Person) -> None:
    page = person.open(f"/ui/runs/{world.runs['warehouse-vacuum']}")
    lines = page.locator("hg-log .log-line")
    expect(page.locator("hg-log .ansi-green").first).to_have_text("connected")

    before = lines.count()
    person.wait("more lines", f"document.querySelectorAll('hg-log .log-line').length > {before}")
    page.get_by_label("Find in the log").fill("table 001")

    expect(page.locator("hg-log .match")).to_have_count(1)
    assert "vacuum warehouse" in str(lines.first.text_content())


def test_heat_map__cells__are_named_selected_and_opened(world: World, person: Person) -> None:
    page = person.open(f"/ui/fanouts/{world.fanout_id}")
    canvas = page.locator("hg-heatmap canvas")
    assert str(canvas.get_attribute("aria-label")).startswith(f"{world.orders} chunks: ")
    box = canvas.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + 5, box["y"] + 5)
    expect(page.locator("hg-heatmap .tip")).to_contain_text("chunk-0000000")
    page.mouse.down()
    page.mouse.move(box["x"] + 40, box["y"] + 5, steps=3)
    page.mouse.up()
    expect(page.locator("#dialog h2")).to_have_text("Redrive the selection")
    page.keyboard.press("Escape")

    canvas.click(position={"x": 5, "y": 5})
    page.wait_for_url(f"**/ui/fanouts/{world.fanout_id}/chunks/chunk-0000000")


def test_graph__expanded__has_one_more_step(person: Person) -> None:
    page = person.open(f"/ui/lineage?dataset={quote(RAW, safe='')}")
    nodes = page.locator("hg-graph .node")
    before = nodes.count()

    page.locator("hg-graph .expand").first.click()

    person.wait("more nodes", f"document.querySelectorAll('hg-graph .node').length > {before}")


def test_table__head_pressed__is_sorted(person: Person) -> None:
    page = person.open("/ui/lineage")
    head = page.locator("th", has_text="Dataset")
    names = page.locator("tbody td:first-child")

    head.click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    ascending = names.all_text_contents()
    head.click()
    expect(head).to_have_attribute("aria-sort", "descending")

    assert ascending[0] < ascending[-1]
    assert names.all_text_contents() == ascending[::-1]


def test_menu__opened__has_the_command_and_copies_it(person: Person) -> None:
    page = person.open("/ui/runs")
    page.locator("#page-menu summary").click()
    page.locator("#page-menu .copy").click()

    assert page.evaluate("navigator.clipboard.readText()").startswith("headgate run ls")


def test_execution__between_two_attempts__shows_the_traceback_the_wait_and_the_log(person: Person) -> None:
    page = person.open(f"/ui/executions/{RETRIED}")

    expect(page.locator("#waits")).to_contain_text("send_to_bank queued, attempt 1 of 20 failed, next attempt")
    attempts = page.locator("#failed-attempts")
    expect(attempts.locator("summary").first).to_contain_text("send_to_bank attempt 1 ConnectionError")
    expect(attempts.locator("pre.traceback").first).to_contain_text("in send_to_bank")
    expect(attempts.locator("pre.traceback").first).not_to_contain_text("headgate/durable")
    expect(page.locator("pre.log")).to_contain_text("INFO send_to_bank: sending 9")


def test_machine_execution__task_is_tried_again_later__shows_the_traceback_and_the_wait(person: Person) -> None:
    page = person.open(f"/ui/machine-executions/{PAYMENTS_MACHINE}%3Ainvoice-7")

    expect(page.locator("#waits")).to_contain_text("timer due in")
    expect(page.locator("#failed-attempts pre.traceback").first).to_contain_text("in read_prices")
    expect(page.get_by_text("None yet.")).to_be_visible()


def test_execution__failed__says_that_there_is_no_result(person: Person) -> None:
    page = person.open(f"/ui/executions/{FAILED}")

    expect(page.get_by_text("None: it ended without one.")).to_be_visible()
    expect(page.locator("pre.traceback").first).to_contain_text("in price_import")


def test_execution__stuck_in_its_first_turn__says_that_there_is_no_history_yet(person: Person) -> None:
    page = person.open(f"/ui/executions/{STUCK}")

    expect(page.get_by_text("No turn is recorded yet")).to_be_visible()
    expect(page.locator("pre.traceback").first).to_contain_text("in audit_ledger")
