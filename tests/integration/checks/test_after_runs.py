"""Checks after runs: a completed run makes the checks of the datasets it wrote due, once, also if the event repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.checks.after_runs import TYPES, AfterRuns
from headgate.durable.bus.events import Event
from headgate.pipelines.authoring.loader import load_pipeline
from tests.integration.checks.rig import CheckRig, check_rig
from tests.unit.notify.rig import a_notice

FILE = """\
dataset: urn:dp:orders:created
source:
  files: {path: "data/*.csv"}
checks:
  - id: landed
    volume: {min: 1}
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CheckRig]:
    with check_rig(tmp_path) as made:
        yield made


def completed(rig: CheckRig, pipeline_id: str) -> None:
    service, checks = rig.pipelines.service, rig.checks
    listener = AfterRuns(service, rig.health, checks.catalog, checks.states)
    notice = a_notice("evt-1", 1_772_519_400_000, pipeline_id=pipeline_id, run_id="run-7", event="PIPELINE_COMPLETED")
    listener.handle(Event(type=TYPES[0], data=notice))


def test_completed_run__of_a_writer__runs_the_checks_of_its_dataset(rig: CheckRig) -> None:
    for name, writes in (("writer", "urn:dp:orders:created"), ("other", "urn:dp:payments:settled")):
        text = f"id: {name}\nwrites: ['{writes}']\n"
        rig.pipelines.service.definitions.put(load_pipeline(text, "writer.yaml"), text, "somebody")
    rig.load(FILE)
    rig.advance(5)
    assert rig.states() == {}

    completed(rig, "other")
    rig.advance(5)
    assert rig.states() == {}

    completed(rig, "writer")
    completed(rig, "writer")
    rig.advance(5)

    assert rig.result("landed").run_id == "run-7"
    assert rig.result("landed").message == "0 files, at least 1 expected"
    assert len(rig.result("landed").history) == 1


def test_completed_run__with_after_runs_off__runs_nothing(rig: CheckRig) -> None:
    text = "id: writer\nwrites: ['urn:dp:orders:created']\n"
    rig.pipelines.service.definitions.put(load_pipeline(text, "writer.yaml"), text, "somebody")
    rig.load(FILE.replace("checks:\n", "after_runs: false\nevery: 7d\nchecks:\n"))
    rig.advance(5)
    before = rig.result("landed").history

    completed(rig, "writer")
    rig.advance(5)

    assert rig.result("landed").history == before
