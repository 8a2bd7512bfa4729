"""The folder of a project, as a server takes it over: archetypes beside it, and every change reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.bootstrap.project_folder import ProjectFolder, apply_folder
from headgate.durable.sdk.app import App
from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.authoring.loader import load_pipeline
from headgate.pipelines.catalog.proposals import Proposals
from headgate.pipelines.catalog.provenance import API
from headgate.pipelines.definition.problems import errors_of
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


SILVER = "id: silver\nschedules: [{cron: 0 6 * * *}]\ntrigger: {type: workflow, config: {workflow: load}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pipelines"
    made.mkdir()
    (made / "silver.yaml").write_text(SILVER)
    return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World("2026-03-03T08:00:00+00:00", App("shop"), tmp_path / "home") as opened:
        yield opened


def outcomes(world: World, folder: Path) -> dict[str, str]:
    return {each.pipeline_id: each.outcome.value for each in apply_folder(world.open, folder).definitions}


def put_over_api(world: World, text: str) -> None:
    world.pipelines.definitions.put(load_pipeline(text, "body"), text, "ana", source=API)


def test_reload__api_changed_it_and_the_file_did_not__api_stays_until_the_file_changes(
    world: World, folder: Path
) -> None:
    assert outcomes(world, folder) == {"silver": "new"}
    put_over_api(world, f"{SILVER}owner: ana\n")

    kept = [outcomes(world, folder), outcomes(world, folder)]
    in_force = world.pipelines.definitions.get("silver")
    (folder / "silver.yaml").write_text(f"{SILVER}owner: bob\n")
    replaced = outcomes(world, folder)

    assert kept == [{"silver": "kept"}, {"silver": "kept"}]
    assert (in_force.version, in_force.pipeline.owner) == (2, "ana")
    assert replaced == {"silver": "replaced"}
    assert world.pipelines.definitions.get("silver").pipeline.owner == "bob"
    assert world.event_names("silver", EventName.PIPELINE_REPLACED) == ["PIPELINE_REPLACED"]
    assert outcomes(world, folder) == {"silver": "unchanged"}


def test_reload__api_deleted_it__stays_deleted_until_the_file_changes(world: World, folder: Path) -> None:
    apply_folder(world.open, folder)
    world.pipelines.definitions.delete("silver", "ana")

    assert outcomes(world, folder) == {"silver": "kept-deleted"}
    assert world.pipelines.definitions.find("silver") is None
    (folder / "silver.yaml").write_text(f"{SILVER}owner: bob\n")
    assert outcomes(world, folder) == {"silver": "replaced"}


def test_reload__both_sides_agree__is_from_the_folder_without_a_new_version(world: World, folder: Path) -> None:
    apply_folder(world.open, folder)
    text = f"{SILVER}owner: ana\n"
    put_over_api(world, text)
    (folder / "silver.yaml").write_text(text)

    assert outcomes(world, folder) == {"silver": "unchanged"}
    stored = world.pipelines.definitions.get("silver")
    assert (stored.version, stored.source) == (2, "silver.yaml")


def test_reload__broken_file__definition_in_force_stays_and_the_others_load(world: World, folder: Path) -> None:
    apply_folder(world.open, folder)
    (folder / "silver.yaml").write_text("id: silver\nperiod: dayly\n")
    (folder / "gold.yaml").write_text(SILVER.replace("silver", "gold"))

    reports = [apply_folder(world.open, folder), apply_folder(world.open, folder)]

    assert [each.pipeline_id for each in reports[0].definitions] == ["gold"]
    assert "silver.yaml:2:9: period" in reports[0].problems[0]
    assert world.pipelines.definitions.get("silver").version == 1
    # The same problem is one event, however often the folder is loaded.
    assert len(world.event_names(INFRASTRUCTURE, EventName.PIPELINE_CONFIG_INVALID)) == 1


def test_reload__file_is_gone__pipeline_stays_and_is_named(world: World, folder: Path) -> None:
    apply_folder(world.open, folder)
    (folder / "silver.yaml").rename(folder / "other.txt")

    assert apply_folder(world.open, folder).gone == ("silver (silver.yaml)",)
    assert world.pipelines.definitions.get("silver").version == 1


def test_watch__file_changed_added_or_removed__is_loaded_once(world: World, folder: Path) -> None:
    project = ProjectFolder(folder, world.open)
    project.load()
    before = project.load_if_changed()
    (folder / "gold.yaml").write_text(SILVER.replace("silver", "gold"))

    after = [project.load_if_changed(), project.load_if_changed()]

    assert (before, after) == (0, [1, 0])
    assert world.pipelines.definitions.find("gold") is not None


PROBE = "id: landed\nfiles: {path: in/*}\n"


@pytest.fixture
def probes(folder: Path) -> Path:
    made = folder.parent / "probes"
    made.mkdir()
    (made / "a.yaml").write_text(PROBE)
    return made


def probe_changes(world: World, folder: Path) -> dict[str, str]:
    return {each.probe_id: each.outcome.value for each in apply_folder(world.open, folder).probes}


def test_reload__probes_change__are_replaced_and_each_change_is_reported(
    world: World, folder: Path, probes: Path
) -> None:
    catalog = world.open.probes.catalog
    assert probe_changes(world, folder) == {"landed": "new"}
    assert probe_changes(world, folder) == {}
    (probes / "a.yaml").write_text(PROBE.replace("in/*", "out/*"))
    (probes / "b.yaml").write_text(PROBE.replace("landed", "other"))
    assert probe_changes(world, folder) == {"landed": "changed", "other": "new"}
    changed = catalog.get("landed").probe.files
    assert changed is not None
    assert changed.path == "out/*"
    (probes / "b.yaml").unlink()
    assert probe_changes(world, folder) == {"other": "removed"}
    assert catalog.find("other") is None


def test_reload__probe_has_a_problem__stays_as_it_was_loaded_and_pipelines_that_read_it_load(
    world: World, folder: Path, probes: Path
) -> None:
    apply_folder(world.open, folder)
    (probes / "a.yaml").write_text("id: landed\nfilse: {path: out/*}\n")
    (folder / "silver.yaml").write_text(f"{SILVER}readiness: {{rules: [{{key: 'probe:landed'}}]}}\n")

    report = apply_folder(world.open, folder)

    assert [(each.pipeline_id, each.outcome.value) for each in report.definitions] == [("silver", "changed")]
    assert "probes/a.yaml:2:8: filse" in report.problems[0]
    assert report.probes == ()
    assert world.open.probes.catalog.get("landed").probe.files is not None


def test_watch__probe_file_is_changed__folder_is_loaded(world: World, folder: Path, probes: Path) -> None:
    project = ProjectFolder(folder, world.open)
    project.load()
    assert project.load_if_changed() == 0
    (probes / "a.yaml").write_text(f"{PROBE}owner: ana\n")
    assert project.load_if_changed() == 1
    assert world.open.probes.catalog.get("landed").probe.owner == "ana"


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("readiness", ["rules: [{key: 'probe:landd'}]", "traits: {there: {evaluator: 'probe:landd'}}"])
def test_propose__probe_that_is_not_defined__is_refused_with_the_nearest_name(
    world: World, folder: Path, readiness: str
) -> None:
    apply_folder(world.open, folder)
    service = world.pipelines
    proposals = Proposals(service.definitions, world.open.calendars.all, project=service.project)
    text = f"id: gold\nreadiness: {{{readiness}}}\n"

    refused = proposals.read(text, "body")

    assert refused.pipelines == ()
    assert "there is no probe 'landd'; did you mean landed?" in errors_of(refused.problems)[0].text()
    accepted = proposals.read(text.replace("landd", "landed"), "body")
    assert [each.pipeline.id for each in accepted.pipelines] == ["gold"]
