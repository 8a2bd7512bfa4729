"""Pages of executions and fan-outs: what they show, their actions, and who may press them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate as hg
from headgate.auth.roles import Role
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.sources import RangeSource
from tests.integration.serve.health_rig import done
from tests.integration.serve.pages.test_routes import ORIGIN, Document, Site, actions_of, text_of


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("work") / "home", has_pipelines=True)
    try:
        made.service.fanouts.splitter.split(
            Order(group="nightly", chunk_size=10, handler="jobs:process"), RangeSource(0, 60), run_id="monday"
        )

        @made.service.app.workflow
        async def approval(order: str) -> str:
            await hg.wait_signal("approved")
            return order

        done(made.post(f"{ORIGIN}/api/v1/executions", {"workflow": "approval", "id": "order-7", "input": "7"}), 201)
        yield made
    finally:
        made.is_stopping = True
        made.close()


def test_fanouts__listed__link_to_their_pages(site: Site) -> None:
    page = site.page("/ui/fanouts")

    assert "/ui/fanouts/monday" in Document.read(page).links
    assert "nightly" in text_of(page)


def test_fanout__open__shows_its_chunks_and_can_be_paused_and_resumed(site: Site) -> None:
    page = site.page("/ui/fanouts/monday")
    assert "0 of 6 chunks are done" in text_of(page)

    pause = actions_of(page)["Pause"]
    done(site.post(f"{ORIGIN}{pause['path']}", {**pause["body"], "reason": "maintenance"}), 200)
    paused = site.page("/ui/fanouts/monday")
    assert "It is paused" in text_of(paused)
    resume = actions_of(paused)["Resume"]
    done(site.post(f"{ORIGIN}{resume['path']}", {**resume["body"], "reason": "over"}), 200)
    assert "It is paused" not in text_of(site.page("/ui/fanouts/monday"))


def test_fanout__cells__have_a_state_and_a_duration_for_each_chunk(site: Site) -> None:
    found = site.get(f"{ORIGIN}/api/v1/fanouts/monday/cells").json()

    cells = base64.b64decode(found["cells"])
    durations = struct.unpack("<6I", base64.b64decode(found["durations"]))
    assert [found["states"][each] for each in cells] == ["QUEUED"] * 6
    assert durations == (0,) * 6
    assert found["ids"][1] == "chunk-0000010"


def test_chunk__queued__has_no_attempt_yet(site: Site) -> None:
    said = text_of(
        site.page(
            "/ui/fanouts/monday/chunks/"
            + site.get(f"{ORIGIN}/api/v1/fanouts/monday/chunks").json()["chunks"][-1]["chunk_id"]
        )
    )

    assert "not started" in said
    assert "attempt 0" not in said


def test_chunk__queued__can_be_skipped(site: Site) -> None:
    page = site.page("/ui/fanouts/monday/chunks/chunk-0000050")

    skip = actions_of(page)["Skip"]
    done(site.post(f"{ORIGIN}{skip['path']}", {**skip["body"], "reason": "known bad"}), 200)
    assert "SKIPPED" in text_of(site.page("/ui/fanouts/monday/chunks/chunk-0000050"))


def test_fanout__unknown__is_not_found(site: Site) -> None:
    assert "Not Found" in text_of(site.page("/ui/fanouts/none", status=404))
    assert "Not Found" in text_of(site.page("/ui/executions/none", status=404))


def test_executions__nothing_started__say_how_to_start_one(site: Site) -> None:
    assert "headgate execution start" in text_of(site.page("/ui/executions?workflow=none"))


def test_executions__listed__link_to_their_pages_and_filter_by_workflow(site: Site) -> None:
    assert "/ui/executions/order-7" in Document.read(site.page("/ui/executions")).links
    assert "/ui/executions/order-7" in Document.read(site.page("/ui/executions?workflow=approval&status=RUNNING")).links
    assert "/ui/executions/order-7" in Document.read(site.page("/ui/executions?text=ORDER-7")).links
    future = "/ui/executions?since=2999-01-01T00:00:00Z&text=order"
    assert "No executions match" in text_of(site.page(future))
    assert "headgate execution ls --text order --since 2999-01-01T00:00:00Z" in text_of(site.page(future))


def test_execution__open__can_be_sent_a_signal_and_cancelled(site: Site) -> None:
    page = site.page("/ui/executions/order-7")
    actions = actions_of(page)

    assert "approval" in text_of(page)
    assert "headgate execution replay order-7" in text_of(page)
    assert {"Send a signal", "Cancel", "Terminate"} == set(actions)
    assert "None yet." in text_of(page)
    signal = actions["Send a signal"]
    done(site.post(f"{ORIGIN}{signal['path']}", {"name": "approved", "payload": True}), 202)
    done(site.post(f"{ORIGIN}{actions['Cancel']['path']}", {"reason": "wrong order"}), 202)


def test_actions__of_a_caller_who_may_only_read__cannot_be_pressed(tmp_path: Path) -> None:
    made = Site(tmp_path / "home", is_required=True, has_pipelines=True)
    try:
        made.service.fanouts.splitter.split(
            Order(group="nightly", chunk_size=10, handler="jobs:process"), RangeSource(0, 60), run_id="monday"
        )
        page = made.page("/ui/fanouts/monday", key=made.key("viewer", Role.VIEWER))
        buttons = [each for tag, each in Document.read(page).tags if tag == "button" and each.get("data-action")]
        assert buttons
        assert all("disabled" in each and "operator" in str(each["title"]) for each in buttons)
    finally:
        made.is_stopping = True
        made.close()
