"""The folder of a project, as a server takes it over: archetypes beside it, and every change reported."""

from __future__ import annotations

from pathlib import Path

from headgate.durable.sdk.app import App
from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.events.names import EventName
from tests.acceptance.pipeline_world import World

PIPELINE = "id: silver\narchetype: own-load\nschedules: [{cron: 0 6 * * *}]\ntrigger: {type: workflow, config: %s}\n"


def test_apply_folder__archetypes_beside_it__are_known_and_what_is_wrong_with_one_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    for each in (folder, tmp_path / "archetypes"):
        each.mkdir()
    (folder / "silver.yaml").write_text(PIPELINE % "{workflow: load}")
    own = tmp_path / "archetypes" / "own.yaml"
    own.write_text("name: own-load\nrequired_traits: [{type: landed, evaluator: push, color: red}]\n")
    with World("2026-03-03T08:00:00+00:00", App("shop"), tmp_path / "home") as world:
        world.apply(folder)
        refused = world.event_names(INFRASTRUCTURE, EventName.PIPELINE_CONFIG_INVALID)
        own.write_text("name: own-load\nrequired_traits: [{type: landed, evaluator: push}]\n")
        world.apply(folder)
        world.apply(folder)

        defined = world.pipelines.definitions.get("silver").pipeline
        events = world.event_names("silver", EventName.PIPELINE_DEFINED)

    # The archetype that is none, and the pipeline that has it.
    assert len(refused) == 2
    assert list(defined.readiness.traits) == ["landed"]
    assert events == ["PIPELINE_DEFINED"]


def test_apply_folder__job_that_is_a_fan_out__runs_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "tiles.yaml").write_text(
        "id: tiles\nschedules: [{cron: 0 6 * * *}]\n"
        "trigger: {type: fan-out, config: {handler: 'builtins:sum', range: [0, 10], chunk_size: 5}}\n"
    )
    with World("2026-03-03T05:00:00+00:00", App("shop"), tmp_path / "home") as world:
        world.apply(folder)
        world.advance("90m")
        (run,) = world.all_runs("tiles")

    assert (run.status, run.date) == (RunStatus.COMPLETED, "2026-03-03")
