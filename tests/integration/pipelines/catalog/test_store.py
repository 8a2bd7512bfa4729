"""The store of pipelines: versions, differences, dependencies, and rows that are none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.clock import VirtualClock
from headgate.durable.model.duration import Seconds
from headgate.errors import (
    ConflictError,
    CorruptionError,
    InvalidPayloadError,
    NotFoundError,
    TransactionLimitError,
    VersionConflictError,
)
from headgate.pipelines.authoring.loader import load_folder, load_pipeline
from headgate.pipelines.catalog.rows import config_key
from headgate.pipelines.catalog.store import PipelineChange, PipelineStore
from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Schedule, Sla, Trait, TriggerSpec, Upstream
from headgate.pipelines.definition.serialization import differences, digest
from headgate.pipelines.schedule.dependencies import Dependency
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put, Write
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite
from tests.unit.pipelines.authoring.formats.test_detect import NEWER
from tests.unit.pipelines.loading_rig import MEDALLION, RIGHT, SOURCE

BY = "ada"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as opened:
        yield opened


@pytest.fixture
def pipelines(store: Store, clock: VirtualClock) -> PipelineStore:
    return PipelineStore(store, clock)


def _orders(**changes: Any) -> Pipeline:
    return msgspec.structs.replace(load_pipeline(RIGHT, SOURCE), **changes)


def _waiting_for(*upstreams: str, pipeline_id: str = "down") -> Pipeline:
    rules = tuple(Rule(upstream=Upstream(pipeline=upstream)) for upstream in upstreams)
    return Pipeline(id=pipeline_id, readiness=Readiness(rules=rules))


def _row(pipeline_id: str, config: Any, **more: Any) -> dict[str, Any]:
    keys = {"PK": f"PIPELINE#{pipeline_id}", "SK": "CONFIG", "GSI1PK": "PIPELINES", "GSI1SK": pipeline_id}
    return {**keys, "config": config, **more}


# Versions.


def test_put__new__is_version_one_with_who_when_and_what(pipelines: PipelineStore, clock: VirtualClock) -> None:
    change = pipelines.put(_orders(), RIGHT, BY, source="pipelines/orders.yaml", reason="first")
    stored = pipelines.get("orders")
    assert change.is_new
    assert change.lines == ("+ pipeline orders",)
    assert change.stored == stored
    assert (stored.version, stored.by, stored.source, stored.reason) == (1, BY, "pipelines/orders.yaml", "first")
    assert stored.at == "2025-06-15T15:06:40.000Z"
    assert stored.pipeline == _orders()
    assert stored.digest == digest(_orders())
    assert pipelines.source_text("orders", 1) == RIGHT


def test_put__the_same_again__is_no_new_version(pipelines: PipelineStore) -> None:
    pipelines.put(_orders(), RIGHT, BY)
    change = pipelines.put(_orders(), RIGHT, "eve")
    assert not change.is_changed
    assert (change.stored.version, change.stored.by) == (1, BY)
    assert len(pipelines.versions("orders").pipelines) == 1


def test_put__another_definition__is_the_next_version_and_the_old_one_stays(pipelines: PipelineStore) -> None:
    pipelines.put(_orders(), RIGHT, BY)
    change = pipelines.put(_orders(tier=1), RIGHT + "tier: 1\n", BY)
    assert (change.stored.version, change.lines) == (2, ("+ tier: 1",))
    assert pipelines.get("orders").pipeline.tier == 1
    assert pipelines.get("orders", 1).pipeline.tier == 3
    assert pipelines.source_text("orders", 1) == RIGHT
    assert [stored.version for stored in pipelines.versions("orders").pipelines] == [2, 1]


def test_put__other_remarks_alone__keep_the_digest_and_are_a_version_that_says_so(pipelines: PipelineStore) -> None:
    before = pipelines.put(_orders(), RIGHT, BY).stored
    change = pipelines.put(_orders(), "# why\n" + RIGHT, BY)
    assert (change.stored.version, change.stored.digest) == (2, before.digest)
    assert change.lines == ("~ its text alone: comments, order or layout",)


def test_put__expecting_another_version__is_refused_and_nothing_is_written(pipelines: PipelineStore) -> None:
    pipelines.put(_orders(), RIGHT, BY, version=0)
    with pytest.raises(VersionConflictError, match="it is at version 1, not 0"):
        pipelines.put(_orders(tier=1), "", BY, version=0)
    pipelines.put(_orders(tier=1), "", BY, version=1)
    assert pipelines.get("orders").version == 2


def test_put__by_many_at_once__each_is_a_version_and_none_is_lost(pipelines: PipelineStore) -> None:
    results: list[PipelineChange | Exception] = []

    def change(tier: int) -> None:
        try:
            results.append(pipelines.put(_orders(owner=f"owner-{tier}"), "", BY))
        except VersionConflictError as exc:
            results.append(exc)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [result for result in results if isinstance(result, PipelineChange)]
    assert sorted(change.stored.version for change in done) == list(range(1, len(done) + 1))
    assert pipelines.get("orders").version == len(done)
    assert len(pipelines.versions("orders").pipelines) == len(done) >= 1


def test_put__with_writes_of_the_caller__is_one_transaction_with_them(pipelines: PipelineStore, store: Store) -> None:
    def event(change: PipelineChange) -> list[Write]:
        key = {"PK": "PIPELINE#orders", "SK": f"EVENT#{change.stored.version}"}
        return [Put(PIPELINES, {**key, "lines": list(change.lines)}, absent())]

    pipelines.put(_orders(), RIGHT, BY, also=event)
    assert store.get(PIPELINES, PIPELINES.key_of({"PK": "PIPELINE#orders", "SK": "EVENT#1"})) is not None
    # What refuses the event refuses the change.
    store.put(PIPELINES, {"PK": "PIPELINE#orders", "SK": "EVENT#2"})
    with pytest.raises(ConflictError):
        pipelines.put(_orders(tier=1), "", BY, also=event)
    assert pipelines.get("orders").version == 1


def test_put__a_text_without_end__is_refused(pipelines: PipelineStore) -> None:
    with pytest.raises(InvalidPayloadError, match="split it"):
        pipelines.put(_orders(), "x" * 300_000, BY)


def test_get__what_is_changed_by_who_got_it__is_not_changed_for_others(pipelines: PipelineStore) -> None:  # bug 57
    given = _orders()
    pipelines.put(given, RIGHT, BY)
    assert given.trigger is not None
    given.trigger.config["command"].append("--par_day")
    first = pipelines.get("orders").pipeline
    assert first.trigger is not None
    first.trigger.config["injected"] = "2026-03-03"
    again = pipelines.get("orders").pipeline
    assert again.trigger == TriggerSpec(type="command", config={"command": ["./load", "${date}"]})


@pytest.mark.parametrize(
    "wanted", [("none", None), ("orders", 2), ("orders", -1), ("orders", 10**9), ("", None), ("a#b", 1)]
)
def test_find__what_is_not_there__is_none_and_get_says_so(
    pipelines: PipelineStore, wanted: tuple[str, int | None]
) -> None:
    pipelines.put(_orders(), RIGHT, BY)
    assert pipelines.find(*wanted) is None
    with pytest.raises(NotFoundError):
        pipelines.get(*wanted)


# Deleting.


def test_delete__the_pipeline__is_in_no_list_and_its_versions_stay(pipelines: PipelineStore) -> None:
    pipelines.put(_orders(), RIGHT, BY)
    change = pipelines.delete("orders", "eve", reason="not needed")
    assert (change.stored.version, change.lines) == (2, ("- pipeline orders",))
    assert pipelines.find("orders") is None
    assert pipelines.all().pipelines == ()
    last, first = pipelines.versions("orders").pipelines
    assert (last.deleted, last.by, last.reason, first.deleted) == (True, "eve", "not needed", False)
    # A run that was begun by it still finds what it was made by.
    assert pipelines.get("orders", 1).pipeline == _orders()
    with pytest.raises(NotFoundError):
        pipelines.delete("orders", BY)


def test_put__after_it_was_deleted__is_there_again_and_versions_go_on(pipelines: PipelineStore) -> None:
    pipelines.put(_orders(), RIGHT, BY)
    pipelines.delete("orders", BY)
    change = pipelines.put(_orders(), RIGHT, BY, version=0)
    assert (change.stored.version, change.is_new) == (3, True)
    assert [stored.pipeline.id for stored in pipelines.all().pipelines] == ["orders"]


def test_put__after_its_row_was_taken_away__goes_on_after_the_last_version(
    pipelines: PipelineStore, store: Store
) -> None:
    pipelines.put(_orders(), RIGHT, BY)
    pipelines.put(_orders(tier=1), "", BY)
    store.delete(PIPELINES, PIPELINES.key_of(_row("orders", "")))
    assert pipelines.put(_orders(tier=2), "", BY).stored.version == 3


# Lists.


def test_all__more_than_a_megabyte__is_complete(pipelines: PipelineStore) -> None:  # bug 75
    text = "x" * 12_000
    for number in range(130):
        pipelines.put(Pipeline(id=f"p{number:03d}", description=text), "", BY)
    found = pipelines.all()
    assert [stored.pipeline.id for stored in found.pipelines] == [f"p{number:03d}" for number in range(130)]
    assert sum(len(stored.pipeline.description) for stored in found.pipelines) > 1_500_000


def test_ls__by_pages__has_each_once(pipelines: PipelineStore) -> None:
    for number in range(7):
        pipelines.put(Pipeline(id=f"p{number}"), "", BY)
    found: list[str] = []
    page = pipelines.ls(limit=3)
    while True:
        found += [stored.pipeline.id for stored in page.pipelines]
        if page.cursor is None:
            break
        page = pipelines.ls(limit=3, cursor=page.cursor)
    assert found == [f"p{number}" for number in range(7)]


@pytest.mark.parametrize(
    "row",
    [
        _row("bad", "{not json", digest="d", version=1),
        _row("bad", '{"id": "bad", "tier": "one"}', digest="d", version=1),
        _row("bad", '{"id": "bad", "retry": {"attempts": 99}}'),
        _row("bad", '{"id": "other"}', digest="d", version=1),
        _row("bad", None),
        _row("bad", 7),
        _row("bad", "pipeline: {id: bad}\njob: {type: nothing}\n"),
        _row("bad", '{"id": "bad"}', digest="d", version="one"),
    ],
)
def test_all__a_row_that_is_no_definition__is_reported_and_leaves_the_others_alone(
    pipelines: PipelineStore, store: Store, row: dict[str, Any]
) -> None:  # D29
    pipelines.put(Pipeline(id="aa"), "", BY)
    pipelines.put(Pipeline(id="zz"), "", BY)
    store.put(PIPELINES, row)
    found = pipelines.all()
    assert [stored.pipeline.id for stored in found.pipelines] == ["aa", "zz"]
    assert [bad.pipeline_id for bad in found.bad] == ["bad"]
    assert "row PIPELINE#bad / CONFIG" in found.bad[0].problem
    assert pipelines.get("zz").version == 1


def test_get__a_row_that_is_no_definition__is_an_error_and_not_silence(
    pipelines: PipelineStore, store: Store
) -> None:  # bug 38
    store.put(PIPELINES, _row("bad", "{", digest="d", version=4))
    with pytest.raises(CorruptionError, match="put the definition again"):
        pipelines.get("bad")


@pytest.mark.parametrize("version", [4, None])
def test_put__over_a_row_that_is_no_definition__repairs_it(
    pipelines: PipelineStore, store: Store, version: int | None
) -> None:
    pipelines.put(_waiting_for("up", pipeline_id="bad"), "", BY)
    more = {} if version is None else {"version": version, "digest": "d"}
    store.put(PIPELINES, _row("bad", "{", **more))
    change = pipelines.put(Pipeline(id="bad"), "", BY)
    assert pipelines.get("bad").version == change.stored.version == 2
    # What it depended on by its last version is not forgotten.
    assert pipelines.downstream_of("up") == []


@pytest.mark.parametrize(
    "config",
    [NEWER, RIGHT.replace("id: orders", "id: gold-revenue"), '{"id": "gold-revenue"}', {"id": "gold-revenue"}],
)
def test_get__rows_that_others_write_in_yaml_json_or_as_a_map__are_read(
    pipelines: PipelineStore, store: Store, config: Any
) -> None:  # bug 54
    store.put(PIPELINES, _row("gold-revenue", config))
    stored = pipelines.get("gold-revenue")
    assert (stored.pipeline.id, stored.version) == ("gold-revenue", 0)
    assert pipelines.get("gold-revenue", 0) == stored
    assert pipelines.put(stored.pipeline, "mine", BY).stored.version == 1


def test_put__the_row__holds_json_that_any_reader_understands(pipelines: PipelineStore, store: Store) -> None:  # bug 54
    pipelines.put(load_pipeline(NEWER, SOURCE), NEWER, BY)
    item = store.get(PIPELINES, PIPELINES.key_of(_row("gold-revenue", "")))
    assert item is not None
    assert msgspec.json.decode(item["config"])["id"] == "gold-revenue"
    assert (item["GSI1PK"], item["GSI1SK"]) == ("PIPELINES", "gold-revenue")
    assert load_pipeline(item["config"], "row") == pipelines.get("gold-revenue").pipeline


# Dependencies.


def test_put__upstreams__are_rows_that_go_with_the_definition(pipelines: PipelineStore) -> None:
    for loaded in load_folder(MEDALLION).checked():
        pipelines.put(loaded.pipeline, loaded.text, BY)
    (silver,) = pipelines.downstream_of("bronze-orders")
    hours = Upstream(pipeline="bronze-orders", schedule="hourly", periods="all")
    assert (silver.pipeline_id, silver.starts) == ("silver-orders", True)
    assert silver.dependencies == (
        Dependency(upstream=hours, schedule="daily", starts=True),
        Dependency(upstream=hours),
    )
    (gold,) = pipelines.downstream_of("silver-orders")
    assert (gold.pipeline_id, gold.starts) == ("gold-revenue", False)
    assert pipelines.downstream_of("gold-revenue") == []


def test_put__upstreams_change__their_rows_do_too(pipelines: PipelineStore) -> None:
    pipelines.put(_waiting_for("aa", "bb"), "", BY)
    pipelines.put(_waiting_for("bb", "cc"), "", BY)
    assert [bool(pipelines.downstream_of(upstream)) for upstream in ("aa", "bb", "cc")] == [False, True, True]
    pipelines.delete("down", BY)
    assert [bool(pipelines.downstream_of(upstream)) for upstream in ("aa", "bb", "cc")] == [False, False, False]


def test_put__a_trait_that_asks_for_a_run__is_a_dependency(pipelines: PipelineStore) -> None:
    config = {"upstreamPipeline": "raw", "upstreamSchedule": "h06"}
    trait = Trait(evaluator="builtin:upstream-job-log", config=config)
    pipelines.put(Pipeline(id="down", readiness=Readiness(traits={"up": trait})), "", BY)
    (found,) = pipelines.downstream_of("raw")
    assert found.dependencies == (Dependency(upstream=Upstream(pipeline="raw", schedule="h06")),)


def test_downstream_of__many_and_one_bad_row__gives_all_the_others(pipelines: PipelineStore, store: Store) -> None:
    for number in range(105):
        pipelines.put(_waiting_for("up", pipeline_id=f"d{number:03d}"), "", BY)
    store.put(PIPELINES, {"PK": "DEP#up", "SK": "DEP#broken", "dependencies": "none"})
    assert len(pipelines.downstream_of("up")) == 105


def test_put__more_changes_of_upstreams_than_one_transaction_takes__is_refused_whole(pipelines: PipelineStore) -> None:
    pipelines.put(_waiting_for(*(f"a{number:02d}" for number in range(60))), "", BY)
    with pytest.raises(TransactionLimitError, match="in two steps"):
        pipelines.put(_waiting_for(*(f"b{number:02d}" for number in range(60))), "", BY)
    assert pipelines.get("down").version == 1
    assert pipelines.downstream_of("b00") == []


# Differences.


def test_differences__fields_parts_and_times__are_lines_a_person_reads() -> None:
    old = _orders(schedules=(Schedule(name="a", cron="0 6 * * *"), Schedule(name="b", cron="@daily")))
    new = _orders(
        schedules=(Schedule(name="new", cron="@hourly"), Schedule(name="a", cron="0 7 * * *")),
        readiness=Readiness(window=Seconds(9_000), rules=(Rule(not_=Rule(key="hold")),)),
        sla=Sla(deadline="09:00", expected_duration=Seconds(600)),
        labels={"team": "x"},
    )
    assert differences(old, new) == [
        "~ schedules[a].cron: 0 6 * * * → 0 7 * * *",
        '- schedules[b]: {"name":"b","cron":"@daily"}',
        '+ schedules[new]: {"name":"new","cron":"@hourly"}',
        '- readiness.rules[export]: {"key":"export","check":"equals","field":"status","value":"done"}',
        '+ readiness.rules[0]: {"not":{"key":"hold"}}',
        "+ readiness.window: 2h30m",
        '+ sla: {"deadline":"09:00","expected_duration":"10m"}',
        '+ labels: {"team":"x"}',
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": None}, {}),
        ({"a": "1"}, {"a": 1}),
    ],
)
def test_differences__values_that_python_takes_for_the_same__are_distinguished(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    def made(config: dict[str, Any]) -> Pipeline:
        return _orders(trigger=TriggerSpec(type="http", config=config))

    assert len(differences(made(old), made(new))) == 1
    assert differences(made(old), made(dict(old))) == []


def test_diff__two_versions_and_since_one__are_what_changed(pipelines: PipelineStore) -> None:
    pipelines.put(_orders(), RIGHT, BY)
    pipelines.put(_orders(tier=1), "", BY)
    pipelines.put(_orders(tier=2), "", BY)
    assert pipelines.diff("orders", 1, 2) == ["+ tier: 1"]
    assert pipelines.diff("orders", 2, 3) == pipelines.diff("orders", 2) == ["~ tier: 1 → 2"]
    assert pipelines.diff("orders", 3, 3) == []


def test_plan__what_put_would_change__is_said_and_nothing_is_written(pipelines: PipelineStore) -> None:
    assert pipelines.plan(Pipeline(id="orders", tier=1)) == ["+ pipeline orders", "+ tier: 1"]
    pipelines.put(_orders(), RIGHT, BY)
    assert pipelines.plan(_orders()) == []
    assert pipelines.plan(_orders(tier=1)) == ["+ tier: 1"]
    assert pipelines.get("orders").version == 1


def test_get__kept_when_not_had_another_name__is_read_as_before(pipelines: PipelineStore, store: Store) -> None:
    rules = (Rule(all=(Rule(not_=Rule(key="hold")),)),)
    kept = pipelines.put(_orders(readiness=Readiness(rules=rules)), "text", "ana").stored
    key = config_key("orders")
    row = store.get(PIPELINES, key)
    assert row is not None
    assert '"not":' in row["config"]

    store.put(PIPELINES, {**row, "config": row["config"].replace('"not":', '"not_":')})

    assert pipelines.get("orders").pipeline == kept.pipeline
